"""What the server of a federation tells about it: `status.json` as it goes, at the end the run directory.

The store itself is not for others: whoever reads it keeps dropped messages in its log. `status.json` says
what is the server's own: who is enrolled, connected and late, what is waited for, ε of what came. Nothing in
it depends on the records of one client. Bytes are totals of what is closed, and none where fewer than two
clients answered, or where some of them had answered a server that was killed; no client's time is told, but
that it is late.

`plan.toml`, `rounds.jsonl`, `model.safetensors` and `result.json` of a finished federation are as
everywhere; accuracies, norms and byte counts are missing, because a server learns them only as uncharged
diagnostics. ε follows from the releases that the server received.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.federation.server import Coordinator, Fields, Open
from sottovoce.federation.status import FILE, FORMAT, NAMED, read_object
from sottovoce.machine.files import FileError, private_folder, write_atomically
from sottovoce.plan import Plan
from sottovoce.privacy.accounting import epsilon
from sottovoce.release.blueprint import phases
from sottovoce.release.kind import spending
from sottovoce.release.secrets import participant_name
from sottovoce.report.result import Known, Site, write_result
from sottovoce.run.directory import RunDirectory
from sottovoce.run.models import GeneratorFile
from sottovoce.run.status import Status
from sottovoce.run.summary import of_rounds

EVERY_SECONDS = 2.0
ERRORS = 10
ABOUT = {key.name for key in fields(Plan)} & {field.name for field in fields(Status)} - {"epsilon"}
"""What is told of the plan; ε has the kinds that it was spent on."""


class LastErrors(logging.Handler):
    """The last warnings and errors of a log, each with the minute in which it last came."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[dict[str, Any]] = deque(maxlen=ERRORS)

    def emit(self, record: logging.LogRecord) -> None:
        # To the minute: when a single client's answer came is nobody's business.
        line = {"time": record.created // 60 * 60, "text": record.getMessage()}
        for same in [one for one in self.lines if one["text"] == line["text"]]:
            self.lines.remove(same)
        self.lines.append(line)


class Progress:
    """The server's half: it is told what happens, and writes the file when that is due.

    A client that is missing so many seconds after its phase began is `late`.
    """

    def __init__(self, directory: Path, coordinator: Coordinator, *, late: float) -> None:
        self._path = directory / FILE
        self._coordinator = coordinator
        self._late = late
        self.errors = LastErrors()
        before, store = dict[str, Any](), coordinator.store
        with suppress(SottovoceError, OSError):
            before = read_object(self._path)
        known = before if (before.get("format"), before.get("run")) == (FORMAT, store.run) else {}
        self._refusals = int(known.get("refusals", 0))
        self._history: list[dict[str, Any]] = list(known.get("history", []))[: len(store.lines())]
        self._open: Open = coordinator.open
        self._opened = self._progress = time.time()
        self._came: dict[int, int] = defaultdict(int)
        self._complete = not store.waiting()
        self._written = -math.inf

    def received(self, participant: int, size: int) -> None:
        """A release of a participant was accepted."""
        self._came[participant] += size

    def refused(self) -> None:
        """An answer or an enrolment was refused."""
        self._refusals += 1

    def update(self, connected: Collection[int], line: Fields | None = None, *, over: bool = False) -> None:
        """Writes what is true now, at once where something was closed, else every two seconds."""
        opened = self._coordinator.open
        changed = opened != self._open
        if changed:
            self._close(line)
            self._open, self._opened = opened, time.time()
        if changed or over or time.monotonic() - self._written >= EVERY_SECONDS:
            self._written = time.monotonic()
            text = json.dumps(self._fields(set(connected), over=over))
            with suppress(FileError):  # a run does not end because nobody can look at it
                write_atomically(self._path, text.encode())

    def _close(self, line: Fields | None) -> None:
        """Keeps the totals of what was closed, where they are of several clients and nothing is missing."""
        told = self._complete and len(self._came) > 1
        if line is not None:
            up = sum(self._came.values()) if told else None
            down = int(line["downlink_bytes"]) if len(line["clients"]) > 1 else None
            shown = {"round": line["round"], "seconds": line["seconds"], "bytes_up": up, "bytes_down": down}
            self._history.append(shown)
        self._came.clear()
        self._complete = True
        self._progress = time.time()

    def _fields(self, connected: set[int], *, over: bool) -> dict[str, Any]:
        coordinator = self._coordinator
        plan, roster = coordinator.agreement.plan, coordinator.roster
        names, enrolled = roster.names, roster.enrolled
        late = time.time() - self._opened > self._late
        missing = coordinator.missing()
        if self._open == "enrolment":
            missing = dict.fromkeys(set(range(plan.participants)) - enrolled, "context")
        members = enrolled | {p for p in coordinator.store.addresses() if p >= plan.participants}
        waiting = {p: _why(p, members, connected, late) for p in sorted(missing)}
        clients = [
            {
                "name": name,
                "enrolled": index in enrolled,
                "connected": index in connected,
                "late": waiting.get(index) is not None,
            }
            for index, name in enumerate(names)
        ]
        return {
            "format": FORMAT,
            "run": coordinator.run,
            "about": {name: getattr(plan, name) for name in sorted(ABOUT)},
            "phase": "finished" if over else phase_word(self._open),
            "phases": ["enrolment", *_words(plan), "models", "finished"],
            "round": coordinator.round,
            "clients": clients,
            "missing": len(missing),
            "waiting": [
                {"name": names[p] if p < len(names) else coordinator.called(p), "why": why}
                for p, why in waiting.items()
                if why
            ][:NAMED],
            "needed": max(missing, default=0) >= plan.participants,
            "patience": coordinator.options.patience,
            "opened": self._opened,
            "progress": self._progress,
            "epsilon": self._epsilon(plan),
            "history": self._history,
            "refusals": self._refusals,
            "errors": [{**line, "text": _named(line["text"], names)} for line in self.errors.lines],
        }

    def _epsilon(self, plan: Plan) -> dict[str, float | None]:
        """ε of what came, of the participant that has spent most, and what each kind is worth alone."""
        if not plan.private:
            return {"target": None}
        if self._open == "enrolment":
            return {"target": plan.epsilon, "spent": 0.0}
        blueprint, counts = self._coordinator.blueprint, self._coordinator.store.counts()
        spent = {p: spending(blueprint.releases_of(p), made) for p, made in counts.items()}
        most = max(spent, key=lambda participant: spent[participant], default=None)
        if most is None:
            return {"target": plan.epsilon, "spent": 0.0}
        releases = blueprint.releases_of(most)
        alone = {str(kind): spending(releases, {kind: count}) for kind, count in counts[most].items()}
        named = {"spent": spent[most], **alone}
        prices = {name: epsilon(value, plan.delta, plan.accounting) for name, value in named.items()}
        return {"target": plan.epsilon, **prices}


def phase_word(opened: Open) -> str:
    """Returns what is open, in a word: enrolment, contexts, rounds, confusions or models."""
    if isinstance(opened, str):
        return "models" if opened == "over" else opened
    return "rounds" if opened.by == "called" else f"{opened.kind}s"


def _words(plan: Plan) -> list[str]:
    """The phases of participants, in words and in order."""
    return list(dict.fromkeys(phase_word(phase) for phase in phases(plan) if phase.by != "future"))


def _named(text: str, names: list[str]) -> str:
    """A line of the log with the names of clients; the log itself has their numbers."""
    return re.sub(
        r"\bparticipant-(\d{1,9})\b",
        lambda found: names[int(found[1])] if int(found[1]) < len(names) else found[0],
        text,
    )


def _why(participant: int, enrolled: set[int], connected: set[int], late: bool) -> str | None:
    """Returns why a client that is missing is waited for; None where it is busy and nothing is wrong yet."""
    if participant not in enrolled:
        return "has not enrolled"
    if participant not in connected:
        return "is not connected"
    return "is late, and is asked again" if late else None


def write_run(path: str | Path, coordinator: Coordinator, *, engine: str = "flower") -> Known:
    """Writes the directory of a federation whose last round is closed, and returns its result.

    `engine` is the name of what carried the messages.
    """
    directory, called = RunDirectory(path), coordinator.roster.names
    private_folder(directory.path)
    write_atomically(directory.plan_file, coordinator.agreement.plan.to_toml().encode())
    names = {participant_name(index): name for index, name in enumerate(called)}
    lines = [
        {**line, "clients": [names[client] for client in line["clients"]]}
        for line in coordinator.store.lines()
    ]
    rounds = "".join(json.dumps(line) + "\n" for line in lines).encode()
    write_atomically(directory.rounds_file, rounds)
    state = coordinator.server.state()
    GeneratorFile.of(coordinator.blueprint, coordinator.run, state, called).write(directory.model_file)
    result = _result(coordinator, lines, engine)
    write_result(directory.path, result)
    return result


def _result(coordinator: Coordinator, lines: list[dict[str, Any]], engine: str) -> Known:
    blueprint, plan, counts = coordinator.blueprint, coordinator.agreement.plan, coordinator.store.counts()
    names, spent, clients = coordinator.roster.names, dict[str, float | None](), list[Site]()
    for participant in sorted(coordinator.roster.enrolled):
        name, size = names[participant], blueprint.sizes[participant]
        spent[name] = blueprint.epsilon(counts.get(participant, {}), participant)
        sigma = blueprint.releases_of(participant)["gradient"].sigma
        clients.append({"name": name, "role": "participant", "size": size, "sigma": sigma})
    known = of_rounds(blueprint, lines, clients, spent)
    known |= {"releases": sum(len(line["clients"]) for line in lines), "engine": engine}
    if plan.place.shared:
        known |= {"masks": True, "given_up": sum("given_up" in line for line in lines)}
    return known
