"""Brings a run to its end, through crashes of everything but this command, whatever engine carries it.

A run that ends early (a killed server, a restarted engine) is submitted again and continues from the server's
store, as does one that this command finds nobody working on. An engine that is not there is waited for.
Nothing is given up unless somebody says so.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import FileError, is_locked, locked, private_folder, write_atomically
from sottovoce.report.look import SUPERVISOR, Minutely, look
from sottovoce.report.status import Status

WATCH_SECONDS = 5.0
LONGEST_PAUSE = 60.0


class RunFailed(SottovoceError):
    """The run cannot be submitted, or fails again and again."""


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """This command is the only one that works on a run directory."""
    try:
        private_folder(directory)
    except OSError as error:
        raise RunFailed(
            f"cannot use {directory}, the run directory of the app ({error.strerror}): run this where the "
            "server keeps it"
        ) from None
    busy = f"another 'sottovoce federate' works on {directory}: stop it first"
    with locked((directory / SUPERVISOR).with_suffix(".lock"), timeout=1.0, busy=busy):
        yield


class Supervisor(ABC):
    """One federation, from its first submission to its end; `say` is called with a line for everything new.

    `give_up`: after so many seconds without progress; never by default.
    """

    watch_seconds = WATCH_SECONDS
    completed = ""
    """What an engine calls a run that came to its end."""

    def __init__(self, directory: Path, give_up: float | None, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._give_up = give_up
        self._say = say
        self._minutely = Minutely(say)
        self._progress, self._seen = time.monotonic(), (-1, "", 0)
        self._news = News(say)

    @abstractmethod
    def submit(self) -> tuple[str, str]:
        """The name of a new run; or none, and why."""

    @abstractmethod
    def ended(self, run: str) -> str | None:
        """How a run ended; None while it goes on. Raises `Silent` where nobody answers."""

    @property
    @abstractmethod
    def starting(self) -> str:
        """What is waited for once a run is submitted."""

    def run(self) -> str:
        """The name of the run that the engine calls completed."""
        pause = self.watch_seconds
        while True:
            self._watch_another()
            run, refused = self.submit()
            if not run:
                self._wait(refused)
                time.sleep(self.watch_seconds)
                continue
            began = time.monotonic()
            self._say(f"run {run} submitted")
            self._note(self.starting)
            reason = self._watch(run)
            if reason == self.completed:
                return run
            # A server that ends at once will do so again: it is tried ever more rarely.
            lived = time.monotonic() - began > LONGEST_PAUSE
            pause = self.watch_seconds if lived else min(2 * pause, LONGEST_PAUSE)
            self._say(f"run {run} ended as {reason}: continuing from the server's store in {pause:.0f} s")
            self._wait(f"run {run} ended as {reason}: the log of the server says why")
            time.sleep(pause)

    def _watch_another(self) -> None:
        """Lets a server that works on the store, of a command that was killed, come to its end."""
        told = False
        while self.working():
            if not told:
                told = True
                self._say("a server works on this run already: watching it")
            self._look()
            time.sleep(self.watch_seconds)

    def working(self) -> bool:
        """Returns whether a server has the store."""
        return is_locked(self._directory / "server.sqlite.lock")

    def _watch(self, run: str) -> str:
        """The status with which a run ended."""
        while True:
            time.sleep(self.watch_seconds)
            try:
                ended = self.ended(run)
            except Silent as silent:
                self._wait(str(silent))
                continue
            if ended is not None:
                return ended
            self._look()

    def _look(self) -> None:
        """Says what is new, and what the server waits for."""
        found = look(self._directory)
        self._news.tell(found)
        seen = (found.round, found.phase or "", found.counted("enrolled"))
        if seen != self._seen:
            self._seen, self._progress = seen, time.monotonic()
        if found.state == "waiting" and found.waiting:
            self._wait(found.why, told=True)

    def _wait(self, what: str, *, told: bool = False) -> None:
        """Says once a minute what is waited for, and gives up when that was asked for.

        What the server has `told` need not be noted for whoever asks for the status.
        """
        self._minutely.say(f"waiting: {what}")
        if not told:
            self._note(what)
        if self._give_up is not None and time.monotonic() - self._progress > self._give_up:
            raise RunFailed(f"gave up after {self._give_up:.0f} s without progress ({what})")

    def _note(self, what: str) -> None:
        with suppress(FileError):
            write_atomically(self._directory / SUPERVISOR, json.dumps({"waits": what}).encode())


class Silent(Exception):
    """The engine does not answer."""


@dataclass
class News:
    """Says who is enrolled, who is missing and which round is over, as it happens."""

    _say: Callable[[str], None]
    _enrolled: set[str] | None = None
    _round: int = -1
    _phase: str | None = None

    def tell(self, found: Status) -> None:
        """Says what is new in a status."""
        if not found.clients:
            return
        enrolled = {client["name"] for client in found.clients if client["enrolled"]}
        missing = [client["name"] for client in found.clients if not client["enrolled"]]
        if enrolled != self._enrolled:
            new = ", ".join(sorted(enrolled - (self._enrolled or set()))[:20]) or "nobody"
            left = f"; missing: {', '.join(missing[:20])}" if missing else ""
            left += f" and {len(missing) - 20} more" if len(missing) > 20 else ""
            self._say(f"enrolled: {new} ({len(enrolled)} of {found.participants}){left}")
            self._enrolled = enrolled
        if found.phase != self._phase and found.phase != "rounds":
            self._say(f"phase: {found.phase}")
        self._phase = found.phase
        if found.round > max(self._round, 0):
            self._say(f"round {found.round} of {found.rounds}")
        self._round = found.round
