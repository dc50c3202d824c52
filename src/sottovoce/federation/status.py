"""What a federation is doing, by the files of its server: read without disturbing it.

A server holds the lock of its store, and `sottovoce federate` another one; both end with their process. So a
federation without a result waits or runs while one of them is held, and has failed otherwise. What is told of
it the server has written itself (`federation.progress`).
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.run import RunDirectory
from sottovoce.run.status import RECENT, Status, is_locked, unreadable

FILE = "status.json"
SUPERVISOR = "federate.json"
"""What `sottovoce federate` waits for, while it holds the lock beside it."""
FORMAT = 1
NAMED = 20
"""Clients that are named in a list of those who are waited for."""


class Minutely:
    """Says what is waited for: at once where it is new, else once a minute."""

    def __init__(self, say: Callable[[str], None], seconds: float = 60.0) -> None:
        self._say = say
        self._seconds = seconds
        self._said, self._at = "", 0.0

    def say(self, text: str) -> None:
        """Says a line, unless it was just said."""
        now = time.monotonic()
        if text != self._said or now - self._at >= self._seconds:
            self._said, self._at = text, now
            self._say(text)


def is_federation(directory: Path) -> bool:
    """Whether a directory is a server's."""
    return any((directory / name).exists() for name in (FILE, SUPERVISOR, "server.sqlite"))


def read_federation(path: Path) -> Status:
    """The status of a federation by the files in its server's directory; unknown, and why, if that fails."""
    try:
        return _federation(path)
    except Exception as error:
        return Status(str(path), "unknown", unreadable(path, error))


def _federation(path: Path) -> Status:
    directory = RunDirectory(path)
    works = is_locked(path / "server.sqlite.lock")  # before the result is looked for
    supervised = is_locked((path / SUPERVISOR).with_suffix(".lock"))
    told = read_object(path / FILE)
    if told and told.get("format") != FORMAT:
        raise SottovoceError(f"{path / FILE} was written by another version: look with that one")
    about = _told(str(path), told) if told else Status(str(path), "unknown", "")
    if works:
        return replace(about, **_working(about, told))
    if directory.result_file.exists():
        late = [client["name"] for client in about.clients if client["late"]]
        why = "it has a result" + (f"; {_names(late)} get their models when it runs again" if late else "")
        return replace(about, state="finished", why=why, phase="finished", waiting=[], seconds_left=None)
    alone = [{**client, "connected": False, "late": False} for client in about.clients]
    about = replace(about, clients=alone, waiting=[])  # there is no server to be connected to
    if supervised:
        waits = read_object(path / SUPERVISOR).get("waits", "the server is about to start")
        return replace(about, state="waiting", why=f"sottovoce federate waits: {waits}")
    why = "nobody works on it, and it has no result: continue with 'sottovoce federate --app APP --on NAME'"
    return replace(about, state="failed", why=why, phase=None, seconds_left=None)


def _working(about: Status, told: Mapping[str, Any]) -> dict[str, Any]:
    if not told:
        return {"state": "running", "why": "the server is starting"}
    phase, waits = str(told["phase"]), about.waiting
    place = f"round {about.round + 1} of {about.rounds}" if phase == "rounds" else phase
    if not waits:
        return {"state": "running", "why": place}
    said = "; ".join(f"{one['name']} {one['why']}" for one in waits[:3])
    more = int(told["missing"]) - 3
    said += f"; and {more} more" if more > 0 else ""
    if phase == "enrolment":
        said += ". Nothing begins before all have enrolled"
    elif told["needed"]:
        said += ". No sum opens without it"
    elif phase != "models":
        until = max(0.0, float(told["opened"]) + float(told["patience"]) - time.time())
        said += f". It goes on without them in {math.ceil(until / 60)} min"
    return {"state": "waiting", "why": f"{place}: {said}", "seconds_left": None}


def _told(path: str, told: Mapping[str, Any]) -> Status:
    about = dict(told["about"])
    history = [{**line, "seen": None, "future": None} for line in told["history"]]
    recent, done = [float(line["seconds"]) for line in history[-RECENT:]], int(told["round"])
    return Status(
        path,
        "unknown",
        "",
        engine="flower",
        phase=str(told["phase"]),
        phases=list(told["phases"]),
        **about,
        round=done,
        bytes_up=sum(line["bytes_up"] or 0 for line in history),
        bytes_down=sum(line["bytes_down"] or 0 for line in history),
        epsilon=dict(told["epsilon"]),
        seconds=sum(float(line["seconds"]) for line in history),
        seconds_left=statistics.median(recent) * (about["rounds"] - done) if recent else None,
        seconds_since_progress=max(0.0, time.time() - float(told["progress"])),
        history=history,
        clients=list(told["clients"]),
        waiting=list(told["waiting"]),
        refusals=int(told["refusals"]),
        errors=list(told["errors"]),
    )


def _names(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file; nothing where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise SottovoceError(f"{path} is damaged: it is written again while the server runs") from None
    if not isinstance(found, dict):
        raise SottovoceError(f"{path} is damaged: it is written again while the server runs")
    return found
