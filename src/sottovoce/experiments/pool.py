"""Worker processes: each trains the batches that it is handed, and says what it has finished.

A worker is a fresh interpreter with its share of the threads. It may be ended at any moment: runs are
checkpointed, and one that is finished has left its summary before it is reported.
"""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.experiments.grid import CellRun
from sottovoce.experiments.summary import write_summary
from sottovoce.plan import Plan
from sottovoce.simulation.directory import RunDirectory
from sottovoce.simulation.sweep import Job, run_batch
from sottovoce.simulation.training import train


@dataclass(frozen=True)
class Setting:
    """Where runs lie, the device, the threads of each worker; `law` as in `CellRun.law`."""

    root: Path
    device: str
    threads: int
    law: bool = False


@dataclass(frozen=True)
class Progress:
    """So many more rounds of runs are done."""

    rounds: int


@dataclass(frozen=True)
class Finished:
    """A run is finished and summarized."""

    run: CellRun


@dataclass(frozen=True)
class Idle:
    """The batch is done; `problem` says in one line why, if it failed."""

    problem: str | None


class Worker:
    """A process and the connection to it."""

    def __init__(self, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.batch: list[CellRun] = []
        self._process = context.Process(target=_serve, args=(theirs, setting), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, batch: list[CellRun]) -> None:
        """Hands over the next batch."""
        self.batch = batch
        self.connection.send(batch)

    def receive(self) -> Progress | Finished | Idle:
        """The next thing the worker says; a process that has died is an Idle with a problem."""
        try:
            said: Progress | Finished | Idle = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return Idle(f"a worker ended with code {self._process.exitcode}; was there enough memory?")
        return said

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        """Ends the process at once; its runs can be resumed from their checkpoints."""
        self._process.terminate()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, setting: Setting) -> None:
    # Ctrl-C reaches the whole group; the parent decides what to do with its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(setting.threads)
    name = device_name(setting.device)
    while True:
        try:
            batch: list[CellRun] = connection.recv()
        except EOFError:
            return
        problem = None
        try:
            _train(batch, setting, name, connection)
        except SottovoceError as error:
            problem = str(error)
        except Exception as error:  # one broken batch must not take the rest of the grid with it
            problem = f"{type(error).__name__}: {error}"
        connection.send(Idle(problem))


def _train(batch: list[CellRun], setting: Setting, device: str, connection: Connection) -> None:
    runs = {run.name: run for run in batch}
    jobs = [Job(_placed(run, setting), setting.root / run.name) for run in batch]

    def finish(job: Job, result: dict[str, Any]) -> None:
        write_summary(setting.root, runs[job.out.name], device, law=setting.law)
        connection.send(Finished(runs[job.out.name]))

    if setting.device != "cpu" or len(batch) > 1:
        run_batch(jobs, setting.device, finish, lambda number: connection.send(Progress(len(batch))))
        return
    [job] = jobs
    result = train(
        job.plan,
        job.out,
        resume=RunDirectory(job.out).plan_file.exists(),
        dataset=_dataset(job.plan.dataset),
        on_round=lambda line: connection.send(Progress(1)),
    )
    finish(job, result)


def _placed(run: CellRun, setting: Setting) -> Plan:
    """The plan that is carried out: it names the file whose gains are replayed by its place here."""
    plan = run.law() if setting.law else run.plan
    return plan.replace(replay_gains=str(setting.root / plan.replay_gains)) if plan.replay_gains else plan


@lru_cache(maxsize=2)
def _dataset(name: str) -> Dataset:
    return data.load(name)


def device_name(device: str) -> str:
    """The device in words, for results.

    >>> device_name("cpu")
    'cpu'
    """
    return device if device == "cpu" else torch.cuda.get_device_name(torch.device(device))
