"""What a directory's run, server or client is doing: its `status.json`, and what changes meanwhile.

Nothing is written, and nobody is disturbed. Whether somebody works a lock tells, which ends with its process:
so a run without a result is running while the lock is held and has failed otherwise, however it was ended.
Rounds of a simulation are those of rounds.jsonl, ε is read from the ledger as it stands, errors of a client
from its log.

A status of another version is refused; a run from before there was any is told by its rounds and its result.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import is_locked
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.ledger_file import LedgerError
from sottovoce.report import result, status
from sottovoce.report.result import Known
from sottovoce.report.status import Line, Role, Said, Status, epsilon_of

LOCKS = {"run": "run.lock", "server": "server.sqlite.lock", "client": "lock"}
"""What whoever works holds; a client holds it while it answers."""
SUPERVISOR = "federate.json"
"""What `sottovoce federate` waits for, while it holds the lock beside it."""
RECENT = 20
"""Rounds from which the time of the others is estimated."""
NAMED = 20
"""Clients that are named in a list."""
ERRORS = 10
TAIL_BYTES = 65_536


def look(path: str | Path) -> Status:
    """The status of a directory; where there is none that can be read, it is unknown, and why."""
    try:
        return _look(Path(path))
    except SottovoceError as error:
        why = str(error)
    except OSError as error:
        why = f"cannot read {error.filename or path}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        why = f"{path} was made by another version, or is damaged"
    role: Role | None = None
    with suppress(OSError):
        role = _role(Path(path))
    return Status(str(path), "unknown", why, role=role or "run")


def stored(folder: Path) -> Status | None:
    """The status of a directory as it was written; None where there is none."""
    values = _object(folder / status.FILE)
    if not values:
        return None
    if values.pop("format", None) != status.FORMAT:
        raise SottovoceError(f"{folder / status.FILE} was written by another version: look with that one")
    return Status(str(folder), **values)


def _look(folder: Path) -> Status:
    found = stored(folder)
    role = _role(folder) if found is None else found.role
    if role is None:
        why = "holds no run (no plan.toml): name the folder of one"
        if not folder.is_dir():
            why = "is not a directory: name that of a run"
        return Status(str(folder), "unknown", f"{folder} {why}")
    works = is_locked(folder / LOCKS[role])  # before the result is looked for: it may be written meanwhile
    if role == "client":
        return _client(folder, found, works=works)
    found = found or _from_before(folder, role)
    if role == "run":
        found = _trained(folder, found)
    found = _summed(found)
    found = _working(found) if works else _resting(folder, found)
    return found if found.state == "running" else replace(found, seconds_left=None)


def _role(folder: Path) -> Role | None:
    """Whose directory it is, where it holds no status."""
    if any(folder.glob(f"{Path(SUPERVISOR).stem}.*")) or (folder / "server.sqlite").exists():
        return "server"
    if (folder / "client.log").exists() or any(folder.glob("enrolment-*.json")):
        return "client"
    return "run" if (folder / "plan.toml").exists() else None


def _from_before(folder: Path, role: Role) -> Status:
    """What its result says of a run that kept no status; nothing where there is no result."""
    found, values = Status(str(folder), "failed", "", role=role), _object(folder / result.FILE)
    if not values:
        return found
    names = ("method", "dataset", "noise", "seeded", "participants", "rounds", "delta", "engine")
    about = {name: values[name] for name in names if name in values}
    return replace(found, **about, round=values["rounds"], epsilon=epsilon_of(cast(Known, values)))


def _trained(folder: Path, found: Status) -> Status:
    """With what a simulation has done and spent so far."""
    path, since = folder / "rounds.jsonl", found.since or 0.0
    if not path.exists():
        return replace(found, epsilon=_spent(folder, found))
    try:  # a last line without its end was cut off by a kill
        history = [_line(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SottovoceError(f"{path} is damaged: restore it from a backup") from None
    since = max(since, path.stat().st_mtime)
    return replace(found, history=history, round=len(history), since=since, epsilon=_spent(folder, found))


def _line(line: dict[str, Any]) -> Line:
    """What is shown of a round of rounds.jsonl."""
    return {
        "round": line["round"],
        "seconds": float(line.get("seconds") or 0.0),
        "bytes_up": int(line.get("bytes") or 0) + int(line.get("context_bytes") or 0),
        "bytes_down": int(line.get("downlink_bytes") or 0),
        "seen": line.get("seen"),
        "future": line.get("future"),
    }


def _spent(folder: Path, found: Status) -> dict[str, float | None]:
    """ε that is promised, and what a run has spent: of the client that has spent most, by kind too."""
    if found.ledger is None or found.delta is None:
        return found.epsilon
    totals: dict[str, dict[str, float]] = defaultdict(dict)
    with suppress(LedgerError), Ledger.peek(folder / found.ledger) as ledger:  # it may be another user's
        for (client, kind), (_, spent) in ledger.by_kind(found.run or "").items():
            totals[client][kind] = spent
    if not totals:
        return found.epsilon
    most = max(totals.values(), key=lambda kinds: sum(kinds.values()))
    named = {"spent": sum(most.values()), **most}
    prices = {name: epsilon(spent, found.delta, found.accounting) for name, spent in named.items()}
    return {**found.epsilon, **prices}


def _summed(found: Status) -> Status:
    """With what the closed rounds come to."""
    history = found.history
    recent = [line["seconds"] for line in history[-RECENT:]]
    evaluated: list[dict[str, float | None]] = [
        {"round": line["round"], "seen": line["seen"], "future": line["future"]}
        for line in history
        if line["seen"] is not None or line["future"] is not None
    ]
    left = (found.rounds or 0) - found.round
    return replace(
        found,
        bytes_up=sum(line["bytes_up"] or 0 for line in history),
        bytes_down=sum(line["bytes_down"] or 0 for line in history),
        seconds=math.fsum(line["seconds"] for line in history),
        seconds_left=statistics.median(recent) * left if recent else None,
        accuracy=evaluated[-1] if evaluated else {},
    )


def _working(found: Status) -> Status:
    """Somebody works on it; a server says itself what it does."""
    if found.role == "server":
        says = found.state in ("running", "waiting")
        return found if says else replace(found, state="running", why="the server is starting")
    done, of = found.round, found.rounds or 0
    phase = "rounds" if 0 < done < of else "finishing" if done else "preparing"
    why = f"a process trains in it: round {min(done + 1, of)} of {of}"
    return replace(found, state="running", why=why, phase=phase)


def _resting(folder: Path, found: Status) -> Status:
    """Nobody works on it."""
    if (folder / result.FILE).exists():
        _object(folder / result.FILE)
        late = [client["name"] for client in found.clients if client["late"]]
        why = "it has a result" + (f"; {_names(late)} get their models when it runs again" if late else "")
        return replace(found, state="finished", why=why, phase="finished", waiting=[])
    if found.role == "run":
        why = "no process trains in it any more, and it has no result: resume it"
        return replace(found, state="failed", why=why, phase=None)
    for client in found.clients:  # there is no server to be connected to
        client |= {"connected": False, "late": False}
    found = replace(found, waiting=[])
    if is_locked((folder / SUPERVISOR).with_suffix(".lock")):
        waits = _object(folder / SUPERVISOR).get("waits", "the server is about to start")
        return replace(found, state="waiting", why=f"sottovoce federate waits: {waits}")
    why = "nobody works on it, and it has no result: start it again"
    return replace(found, state="failed", why=why, phase=None)


def _client(folder: Path, found: Status | None, *, works: bool) -> Status:
    """A client of a federation, and what its records have spent; it says itself what it waits for."""
    errors = _errors(folder / "client.log")
    if found is None:
        why = errors[-1]["text"] if errors else "no message of a server has come yet"
        return Status(str(folder), "waiting", why, role="client", errors=errors)
    found = replace(found, errors=errors)
    if works:
        found = replace(found, state="running", why="it answers a request")
    try:
        with Ledger.peek(folder / (found.ledger or "")) as ledger:
            budget, spent = ledger.allowed, ledger.spent(found.account or "")
            here = ledger.past.total_in(found.run or "", found.account or "").spent
            kinds = ledger.by_kind(found.run or "")
    except LedgerError:
        return replace(found, epsilon={}, delta=None)
    prices = {"budget": budget.epsilon, "spent": budget.price(spent), "run_spent": budget.price(here)}
    if found.cost:
        rest = max(found.cost - here, 0.0)
        prices |= {"run": budget.price(found.cost), "together": budget.price(spent + rest)}
        prices |= {} if found.witness else {"put_back": budget.price(spent + 2 * rest)}
    gradients, _ = kinds.get((found.account or "", "gradient"), (0, 0.0))
    return replace(found, epsilon={**prices}, delta=budget.delta, gradients=gradients)


def _errors(path: Path) -> list[Said]:
    """The last errors in a client's log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [Said(time=None, text=line) for line in lines if " ERROR " in line][-ERRORS:]


def _names(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _object(path: Path) -> dict[str, Any]:
    """The object in a file; nothing where there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise SottovoceError(f"{path} is damaged: restore it, or repeat what wrote it")
    return values


class Minutely:
    """Says what is waited for: at once where it is new, else once a minute."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said, self._at = "", 0.0

    def say(self, text: str) -> None:
        """Says a line, unless it was just said."""
        now = time.monotonic()
        if text != self._said or now - self._at >= 60.0:
            self._said, self._at = text, now
            self._say(text)
