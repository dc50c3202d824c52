"""Worker processes of this machine: each trains the batches that it is handed, and says what it has finished.

A worker is a fresh interpreter with its share of the threads. Nothing beyond the standard library is needed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path

from sottovoce import data
from sottovoce.data import Dataset
from studies.work import Batch, Ended, Said, Setting, work


class Pool:
    """At most `jobs` processes (0: one per core) for `batches` in the folder `root`; they share the cores."""

    def __init__(self, root: Path, device: str, jobs: int, *, law: bool, batches: int) -> None:
        cores = os.cpu_count() or 1
        self._jobs = max(1, min(jobs or cores, batches))
        self._root = root.resolve()
        self._setting = Setting(device, max(1, cores // self._jobs), law)
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def room(self) -> bool:
        return len(self._busy) < self._jobs

    def start(self, batch: Batch) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._root, self._setting)
        worker.send(batch)
        self._busy.append(worker)

    def wait(self, seconds: float | None) -> list[tuple[Batch, Said]]:
        ready = wait([worker.connection for worker in self._busy], seconds)
        found = []
        for worker in [worker for worker in self._busy if worker.connection in ready]:
            said = worker.receive()
            found.append((worker.batch, said))
            if isinstance(said, Ended):
                self._busy.remove(worker)
                if worker.alive:
                    self._idle.append(worker)
        return found

    def close(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.end()


class _Worker:
    """A process and the connection to it."""

    def __init__(self, root: Path, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.batch: Batch = []
        self._process = context.Process(target=_serve, args=(theirs, root, setting), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, batch: Batch) -> None:
        self.batch = batch
        self.connection.send(batch)

    def receive(self) -> Said:
        """The next thing the worker says; a process that has died has ended with a problem."""
        try:
            said: Said = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            return Ended(f"a worker ended with code {code}; was there enough memory?", again=True)
        return said

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._process.terminate()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, root: Path, setting: Setting) -> None:
    # Ctrl-C reaches the whole group; the parent decides what to do with its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            batch: Batch = connection.recv()
        except EOFError:
            return
        work(root, batch, setting, _dataset, connection.send)


@lru_cache(maxsize=4)
def _dataset(name: str) -> Dataset:
    return data.load(name)
