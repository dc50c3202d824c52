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
import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.federation.server import Coordinator, Fields, Open
from sottovoce.machine.files import PRIVATE, FileError, private_folder, write_atomically
from sottovoce.plan import Plan
from sottovoce.privacy.accounting import epsilon
from sottovoce.release.blueprint import phases
from sottovoce.release.kind import spending
from sottovoce.release.secrets import participant_name
from sottovoce.report.look import ERRORS, NAMED, stored
from sottovoce.report.result import Known, Site, write_result
from sottovoce.report.status import Line, Member, Said, Status, Waited
from sottovoce.run.directory import RunDirectory
from sottovoce.run.finished import GeneratorFile
from sottovoce.run.summary import of_rounds

EVERY_SECONDS = 2.0


class LastErrors(logging.Handler):
    """The last warnings and errors of a log, each with the minute in which it last came."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[Said] = deque(maxlen=ERRORS)

    def emit(self, record: logging.LogRecord) -> None:
        # To the minute: when a single client's answer came is nobody's business.
        line: Said = {"time": record.created // 60 * 60, "text": record.getMessage()}
        for same in [one for one in self.lines if one["text"] == line["text"]]:
            self.lines.remove(same)
        self.lines.append(line)


class Progress:
    """The server's half: it is told what happens, and writes the file when that is due.

    A client that is missing so many seconds after its phase began is `late`.
    """

    def __init__(self, directory: Path, coordinator: Coordinator, *, late: float) -> None:
        self._directory = directory
        self._coordinator = coordinator
        self._late = late
        self.errors = LastErrors()
        before, store = None, coordinator.store
        with suppress(SottovoceError, OSError, TypeError):
            before = stored(directory)
        known = before is not None and before.run == store.run
        self._refusals = before.refusals if before and known else 0
        self._history = before.history[: len(store.lines())] if before and known else []
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
            with suppress(FileError):  # a run does not end because nobody can look at it
                self._status(set(connected), over=over).write(self._directory)

    def _close(self, line: Fields | None) -> None:
        """Keeps the totals of what was closed, where they are of several clients and nothing is missing."""
        told = self._complete and len(self._came) > 1
        if line is not None:
            up = sum(self._came.values()) if told else None
            down = int(line["downlink_bytes"]) if len(line["clients"]) > 1 else None
            round_line: Line = {
                "round": line["round"],
                "seconds": line["seconds"],
                "bytes_up": up,
                "bytes_down": down,
                "seen": None,
                "future": None,
            }
            self._history.append(round_line)
        self._came.clear()
        self._complete = True
        self._progress = time.time()

    def _status(self, connected: set[int], *, over: bool) -> Status:
        coordinator = self._coordinator
        plan, roster = coordinator.agreement.plan, coordinator.roster
        names, enrolled = roster.names, roster.enrolled
        late = time.time() - self._opened > self._late
        missing = coordinator.missing()
        if self._open == "enrolment":
            missing = dict.fromkeys(set(range(plan.participants)) - enrolled, "context")
        members = enrolled | {p for p in coordinator.store.addresses() if p >= plan.participants}
        why = {p: _why(p, members, connected, late) for p in sorted(missing)}
        waiting: list[Waited] = [
            {"name": names[p] if p < len(names) else coordinator.called(p), "why": said}
            for p, said in why.items()
            if said
        ]
        clients: list[Member] = [
            {
                "name": name,
                "enrolled": index in enrolled,
                "connected": index in connected,
                "late": why.get(index) is not None,
            }
            for index, name in enumerate(names)
        ]
        phase = "finished" if over else phase_word(self._open)
        return Status.of(
            plan,
            "server",
            "waiting" if waiting else "running",
            self._place(phase) + (f": {self._waits(waiting, missing)}" if waiting else ""),
            engine="flower",
            run=coordinator.run,
            phase=phase,
            phases=["enrolment", *_words(plan), "models", "finished"],
            round=coordinator.round,
            clients=clients,
            waiting=waiting[:NAMED],
            since=self._progress,
            epsilon=self._epsilon(plan),
            history=self._history,
            refusals=self._refusals,
            errors=[{**line, "text": _named(line["text"], names)} for line in self.errors.lines],
        )

    def _place(self, phase: str) -> str:
        rounds = self._coordinator.agreement.plan.rounds
        return f"round {self._coordinator.round + 1} of {rounds}" if phase == "rounds" else phase

    def _waits(self, waiting: Sequence[Waited], missing: Collection[int]) -> str:
        """Who is waited for, and what happens if nobody comes."""
        said = "; ".join(f"{one['name']} {one['why']}" for one in waiting[:3])
        said += f"; and {len(missing) - 3} more" if len(missing) > 3 else ""
        if self._open == "enrolment":
            return f"{said}. Nothing begins before all have enrolled"
        if max(missing, default=0) >= self._coordinator.agreement.plan.participants:
            return f"{said}. No sum opens without it"
        if self._open == "over":
            return said
        until = max(0.0, self._opened + self._coordinator.options.patience - time.time())
        return f"{said}. It goes on without them in {math.ceil(until / 60)} min"

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


def keep_log(directory: Path) -> None:
    """Keeps what happened, also after an engine has forgotten the run, in the server's `federation.log`."""
    private_folder(directory)
    path = directory / "federation.log"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE))
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("sottovoce.federation").addHandler(handler)


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
    result = _result(coordinator, lines, engine)
    state, spent = coordinator.server.state(), result["epsilon"]["per_client"]
    GeneratorFile.of(coordinator.blueprint, coordinator.run, state, called, spent).write(directory.model_file)
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
