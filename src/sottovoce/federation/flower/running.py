"""Runs a written app on a SuperLink until it is finished, through crashes of everything but this command.

A run that ends early (a killed ServerApp, a restarted SuperLink) is submitted again and continues from the
server's store, as does one that this command finds nobody working on. A SuperLink that is not there yet, or
not any more, is waited for. Nothing is given up unless somebody says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.status import SUPERVISOR, Minutely, read_federation
from sottovoce.machine.files import FileError, locked, private_folder, write_atomically
from sottovoce.run.status import Status, is_locked

WATCH_SECONDS = 5.0
LONGEST_PAUSE = 60.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
SILENT = "the SuperLink does not answer"
_UNREACHED = "SuperLink is unavailable"


class RunFailed(SottovoceError):
    """The run cannot be submitted, or fails again and again."""


def run_app(
    app: str | Path,
    superlink: str,
    *,
    give_up: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Submits and watches until Flower calls a run of the app completed; returns its id.

    `superlink` is a name in Flower's config.toml. `give_up`: after so many seconds without progress; never by
    default. `say` is called with a line for everything new, and once a minute with what is waited for.
    """
    directory = _run_directory(Path(app))
    try:
        private_folder(directory)
    except OSError as error:
        raise RunFailed(
            f"cannot use {directory}, the run directory of the app ({error.strerror}): run this where the "
            "server keeps it"
        ) from None
    busy = f"another 'sottovoce federate' works on {directory}: stop it first"
    with locked((directory / SUPERVISOR).with_suffix(".lock"), timeout=1.0, busy=busy):
        return Supervisor(str(app), superlink, directory, give_up, say).run()


class Supervisor:
    """One federation, from its first submission to its end."""

    def __init__(
        self, app: str, superlink: str, directory: Path, give_up: float | None, say: Callable[[str], None]
    ) -> None:
        self._app = app
        self._superlink = superlink
        self._directory = directory
        self._give_up = give_up
        self._say = say
        self._minutely = Minutely(say)
        self._progress, self._seen = time.monotonic(), (-1, "", 0)
        self._news = News(say)

    def run(self) -> str:
        """The id of the run that Flower calls completed."""
        pause = WATCH_SECONDS
        while True:
            self._watch_another()
            submitted = _flwr("run", self._app, self._superlink)
            if submitted is None or not submitted.get("success"):
                said = shown(" ".join(str((submitted or {}).get("error-message", submitted)).split()))
                self._wait(SILENT if submitted is None else f"the SuperLink refused the app: {said}")
                time.sleep(WATCH_SECONDS)
                continue
            run, began = str(submitted["run-id"]), time.monotonic()
            self._say(f"run {run} submitted")
            self._note("the SuperLink has the app, and starts the server")
            reason = self._watch(run)
            if reason == "finished:completed":
                return run
            # A server that ends at once will do so again: it is tried ever more rarely.
            pause = (
                WATCH_SECONDS if time.monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            )
            self._say(f"run {run} ended as {reason}: continuing from the server's store in {pause:.0f} s")
            self._wait(f"run {run} ended as {reason}: the log of the SuperLink says why")
            time.sleep(pause)

    def _watch_another(self) -> None:
        """Lets a server that works on the store, of a command that was killed, come to its end."""
        told = False
        while is_locked(self._directory / "server.sqlite.lock"):
            if not told:
                told = True
                self._say("a server works on this run already: watching it")
            self._look()
            time.sleep(WATCH_SECONDS)

    def _watch(self, run: str) -> str:
        """The status with which a run ended."""
        while True:
            time.sleep(WATCH_SECONDS)
            listed = _flwr("ls", self._superlink)
            if listed is None:
                self._wait(SILENT)
                continue
            for entry in listed.get("runs", []):
                if entry["run-id"] == run and entry["status"].startswith("finished"):
                    return str(entry["status"])
            self._look()

    def _look(self) -> None:
        """Says what is new, and what the server waits for."""
        found = read_federation(self._directory)
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


def _run_directory(app: Path) -> Path:
    """Returns where the server of an app has its store."""
    try:
        settings = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        return Path(settings["tool"]["flwr"]["app"]["config"]["run-directory"])
    except FileNotFoundError:
        raise RunFailed(
            f"{app} holds no app: write one there, with 'sottovoce federate' and a plan", "out", "plan"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RunFailed(f"{app / 'pyproject.toml'} is not that of an app of ours: write it again") from None


def _flwr(*arguments: str) -> dict[str, Any] | None:
    """The JSON answer of a `flwr` command; None if it could not reach the SuperLink."""
    done = subprocess.run(
        [program("flwr"), *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return None if _UNREACHED in str(answer.get("error-message")) else answer


def program(name: str) -> str:
    """A program of Flower's, beside this Python or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RunFailed(f"the command '{name}' is missing: install sottovoce[flower]")
    return found
