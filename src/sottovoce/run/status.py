"""What a run is doing, read from its directory without disturbing it: for `sottovoce status` and `watch`.

A process that trains holds the directory's lock, which ends with the process. So a run without a result is
running while the lock is held, and has failed otherwise, however it was ended. Nothing is written here, and
the ledger is only read.
"""

from __future__ import annotations

import fcntl
import statistics
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.plan.catalog import PLACES
from sottovoce.plan.checks import PlanError
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.ledger_file import LedgerError
from sottovoce.run.directory import RunDirectory

EXIT_CODES = {"finished": 0, "failed": 1, "unknown": 2, "running": 3, "waiting": 4}
"""What `sottovoce status` ends with, by state."""
RECENT = 20
"""Rounds from which the time of the others is estimated."""


@dataclass(frozen=True)
class Status:
    """The state of a run, why it is said to be in it, and how far it is; what is not known is None."""

    directory: str
    state: str
    why: str
    phase: str | None = None
    """preparing, rounds, finishing or finished"""
    method: str | None = None
    dataset: str | None = None
    noise: str | None = None
    """The place of the noise."""
    seeded: bool = False
    """Whether it is a simulation whose noise protects nobody."""
    participants: int | None = None
    round: int = 0
    rounds: int | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    epsilon: dict[str, float | None] = field(default_factory=dict)
    """`target`, and what the client that spent most has spent in this run: `spent`, and by kind."""
    delta: float | None = None
    accuracy: dict[str, float | None] = field(default_factory=dict)
    """`seen` and `future`, in percent, after `round`."""
    seconds: float = 0.0
    """Of all rounds."""
    seconds_left: float | None = None
    seconds_since_progress: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    """Each round: round, seconds, bytes_up, bytes_down, seen, future."""
    engine: str | None = None
    """What carries the messages of a federation."""
    phases: list[str] = field(default_factory=list)
    """All phases of a federation, in order."""
    clients: list[dict[str, Any]] = field(default_factory=list)
    """Of a federation: name, and whether it is enrolled, connected, late."""
    waiting: list[dict[str, str]] = field(default_factory=list)
    """Clients that a federation waits for: name, why."""
    refusals: int = 0
    """Answers and enrolments that a federation's server has refused."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The last warnings and errors of a federation's server: time, text."""

    @property
    def noise_words(self) -> str:
        """The place of the noise, in words."""
        return PLACES[self.noise].phrase if self.noise in PLACES else f"noise at the {self.noise}"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]

    def counted(self, what: str) -> int:
        """Clients of a federation that are `enrolled`, `connected` or `late`."""
        return sum(bool(client[what]) for client in self.clients)


def read_status(path: str | Path) -> Status:
    """The status of the run in a directory; where there is none that can be read, it is unknown, and why."""
    try:
        return _status(RunDirectory(path))
    except Exception as error:
        return Status(str(path), "unknown", unreadable(path, error))


def unreadable(path: str | Path, error: Exception) -> str:
    """Returns why the files of a run cannot be read, in one line; what is no fault of theirs is raised."""
    if isinstance(error, SottovoceError):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot read {error.filename or path}: {error.strerror}"
    if isinstance(error, ValueError | KeyError | TypeError):
        return f"{path} was made by another version, or is damaged"
    raise error


def _status(directory: RunDirectory) -> Status:
    if not directory.plan_file.exists():
        why = "holds no run (no plan.toml): name the folder of one"
        if not directory.path.is_dir():
            why = "is not a directory: name that of a run"
        return Status(str(directory.path), "unknown", f"{directory.path} {why}")
    held = is_locked(directory.lock_file)  # before the result is looked for: it may be written meanwhile
    plan, lines = _plan(directory), directory.rounds()
    done, of, spent = len(lines), plan.rounds, None
    if held:
        phase = "rounds" if 0 < done < of else "finishing" if done else "preparing"
        state, why = "running", f"a process trains in it: round {min(done + 1, of)} of {of}"
    elif directory.result_file.exists():
        spent = directory.result()["epsilon"]["spent_max"]
        state, why, phase = "finished", "it has a result", "finished"
    else:
        state, phase = "failed", None
        why = "no process trains in it any more, and it has no result: resume it"
    history = [_line(line) for line in lines]
    recent = [line["seconds"] for line in history[-RECENT:]]
    evaluated = [line for line in history if line["seen"] is not None or line["future"] is not None]
    changed = max(
        file.stat().st_mtime for file in (directory.plan_file, directory.rounds_file) if file.exists()
    )
    return Status(
        str(directory.path),
        state,
        why,
        phase=phase,
        method=plan.method,
        dataset=plan.dataset,
        noise=plan.noise,
        seeded=plan.seeded,
        participants=plan.participants,
        round=done,
        rounds=of,
        bytes_up=sum(line["bytes_up"] for line in history),
        bytes_down=sum(line["bytes_down"] for line in history),
        epsilon=_epsilon(directory, plan, spent),
        delta=plan.delta,
        accuracy={name: evaluated[-1][name] for name in ("round", "seen", "future")} if evaluated else {},
        seconds=sum(line["seconds"] for line in history),
        seconds_left=statistics.median(recent) * (of - done) if recent and state == "running" else None,
        seconds_since_progress=max(0.0, time.time() - changed),
        history=history,
    )


def _plan(directory: RunDirectory) -> Plan:
    try:
        return directory.plan()
    except PlanError as error:
        what = str(error).partition(":")[0]
        raise SottovoceError(
            f"{directory.plan_file} is of another version, or changed by hand ({what}): look with that one"
        ) from None


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of a file; for a moment this takes its place in the queue."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _line(line: dict[str, Any]) -> dict[str, Any]:
    """Returns what is shown of a round: totals of its bytes, none about a single client."""
    return {
        "round": line["round"],
        "seconds": float(line.get("seconds") or 0.0),
        "bytes_up": int(line.get("bytes") or 0) + int(line.get("context_bytes") or 0),
        "bytes_down": int(line.get("downlink_bytes") or 0),
        "seen": line.get("seen"),
        "future": line.get("future"),
    }


def _epsilon(directory: RunDirectory, plan: Plan, spent: float | None) -> dict[str, float | None]:
    """ε that is promised, and what this run has spent: of the client that has spent most, by kind too.

    A federation has no ledger at the server: what it has spent, in all, is in its result.
    """
    if not plan.private:
        return {"target": None}
    found: dict[str, float | None] = {"target": plan.epsilon, "spent": spent}
    if not directory.identity_file.exists():
        return found
    run, path = directory.identity()
    totals: dict[str, dict[str, float]] = defaultdict(dict)
    with suppress(LedgerError), Ledger.peek(path) as ledger:  # it may be another user's
        for (client, kind), (_, charged) in ledger.by_kind(run).items():
            totals[client][kind] = charged
    if totals:
        most = max(totals.values(), key=lambda kinds: sum(kinds.values()))
        for kind, charged in {"spent": sum(most.values()), **most}.items():
            found[kind] = epsilon(charged, plan.delta, plan.accounting)
    return found
