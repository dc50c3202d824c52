"""What a federation's server or client is doing, by the files of its directory: read without disturbing it.

A server holds the lock of its store, and `sottovoce federate` another one; both end with their process.
So a federation without a result waits or runs while one of them is held, and has failed otherwise. What
is told of it the server has written itself (`federation.status.progress`).

A client's node notes each message that it has answered or refused in `contact.json`; ε is read from its
ledger as it stands. All of it is the owner's own and stays on this machine.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.federation.site.directory import Enrolment
from sottovoce.machine.files import FileError, write_atomically
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.ledger_file import LedgerError
from sottovoce.run.directory import RunDirectory
from sottovoce.run.status import EXIT_CODES, RECENT, Status, is_locked, read_status, unreadable
from sottovoce.training.accounts import Account

FILE = "status.json"
SUPERVISOR = "federate.json"
"""What `sottovoce federate` waits for, while it holds the lock beside it."""
FORMAT = 1
NAMED = 20
"""Clients that are named in a list of those who are waited for."""
CONTACT = "contact.json"
ERRORS = 10
TAIL_BYTES = 65_536


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


def is_federation(directory: Path) -> bool:
    """Returns whether a directory is a server's."""
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
    told = _noted(path / FILE)
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
    why = "nobody works on it, and it has no result: start it again"
    return replace(about, state="failed", why=why, phase=None, seconds_left=None)


def _noted(path: Path) -> dict[str, Any]:
    """Returns what one end has noted of itself; nothing where it has not yet."""
    noted = read_object(path)
    if noted and noted.get("format") != FORMAT:
        raise SottovoceError(f"{path} was written by another version: look with that one")
    return noted


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
        found = None
    if not isinstance(found, dict):
        raise SottovoceError(f"{path} is damaged: it is written again while the server runs")
    return found


def note_contact(
    directory: Path, account: Account, plan: Plan, what: str, asked: Mapping[str, Any], refused: str = ""
) -> None:
    """Notes that a message of the server came and what became of it; a client without a directory has none.

    A note that cannot be written is no reason not to answer.
    """
    if not directory.is_dir():
        return
    before: dict[str, Any] = {}
    with suppress(SottovoceError, OSError):
        before = read_object(directory / CONTACT)
    run, number = str(asked.get("run", "")), int(asked.get("round", 0) or 0)
    noted = {
        "format": FORMAT,
        "time": time.time(),
        "what": what,
        "run": run,
        "round": max(number, int(before.get("round", 0)) if before.get("run") == run else 0),
        "rounds": plan.rounds,
        "noise": plan.noise,
        "client": account.client,
        "ledger": str(account.path.absolute()),
        "account": account.name,
        "refused": refused,
        "answers": int(before.get("answers", 0)) + (not refused),
        "refusals": int(before.get("refusals", 0)) + bool(refused),
    }
    with suppress(FileError):
        write_atomically(directory / CONTACT, json.dumps(noted).encode())


@dataclass(frozen=True)
class NodeStatus:
    """The state of a client of a federation, and what its records have spent."""

    directory: str
    state: str
    why: str
    client: str | None = None
    run: str | None = None
    noise: str | None = None
    round: int = 0
    """The last round that it was asked for."""
    rounds: int | None = None
    gradients: int = 0
    """Rounds in which it has released."""
    epsilon: dict[str, float] = field(default_factory=dict)
    """`budget`; `spent` in all runs, `run_spent` in this one; `run` and `together` when this one is over."""
    delta: float | None = None
    seconds_since_contact: float | None = None
    answers: int = 0
    refusals: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]

    @property
    def headroom(self) -> str:
        """What is spent, and what this run will spend, in a line."""
        if not self.epsilon:
            return "the ledger cannot be read"
        said = f"ε {self.epsilon['spent']:.3g} of {self.epsilon['budget']:g} spent"
        if "run" in self.epsilon:
            spends = "has spent" if self.state == "finished" else "will spend"
            said += f"; this run {spends} {self.epsilon['run']:.3g}"
            said += f", together {self.epsilon['together']:.3g}" if self.state != "finished" else ""
        return said


def is_node(directory: Path) -> bool:
    """Returns whether a directory is that of a federation's client."""
    return any((directory / name).exists() for name in (CONTACT, "client.log")) or any(
        directory.glob("enrolment-*.json")
    )


def read_node(path: Path) -> NodeStatus:
    """The status of a client, by the files of its directory and its ledger."""
    try:
        return _node(path)
    except Exception as error:
        return NodeStatus(str(path), "unknown", unreadable(path, error))


def _node(path: Path) -> NodeStatus:
    busy, noted = is_locked(path / "lock"), _noted(path / CONTACT)
    errors = _errors(path / "client.log")
    if not noted:
        why = "no message of a server has come yet" if not errors else errors[-1]
        return NodeStatus(str(path), "waiting", why, errors=errors)
    run = str(noted["run"])
    enrolment = Enrolment.read(path, run) if run else None
    cost = 0.0 if enrolment is None else enrolment.cost
    spent, delta, gradients = _ledger(Path(noted["ledger"]), str(noted["account"]), run, cost)
    since = max(0.0, time.time() - float(noted["time"]))
    if busy:
        state, why = "running", "it answers a request"
    elif noted["refused"]:
        state, why = "failed", f"it refused: {noted['refused']}"
    elif noted["what"] == "model":
        state, why = "finished", "it has its model"
    else:
        state, why = "waiting", "for the server's next request"
    return NodeStatus(
        str(path),
        state,
        why,
        client=str(noted["client"]),
        run=run or None,
        noise=str(noted["noise"]),
        round=int(noted["round"]),
        rounds=int(noted["rounds"]),
        gradients=gradients,
        epsilon=spent,
        delta=delta,
        seconds_since_contact=since,
        answers=int(noted["answers"]),
        refusals=int(noted["refusals"]),
        errors=errors,
    )


def _ledger(path: Path, client: str, run: str, cost: float) -> tuple[dict[str, float], float | None, int]:
    """ε by what it is about, δ, and the rounds released; nothing where the ledger cannot be read."""
    try:
        with Ledger.peek(path) as ledger:
            budget, spent = ledger.allowed, ledger.spent(client)
            here = ledger.past.total_in(run, client).spent
            gradients, _ = ledger.by_kind(run).get((client, "gradient"), (0, 0.0))
    except LedgerError:
        return {}, None, 0
    found = {"budget": budget.epsilon, "spent": budget.price(spent), "run_spent": budget.price(here)}
    if cost:
        found |= {"run": budget.price(cost), "together": budget.price(spent - here + max(cost, here))}
    return found, budget.delta, gradients


def _errors(path: Path) -> list[str]:
    """The last errors in the client's log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if " ERROR " in line][-ERRORS:]


def look(path: str | Path) -> Status | NodeStatus:
    """Returns the status of a directory: of a run, of a federation's server, or of one of its clients."""
    folder = Path(path)
    try:
        if is_federation(folder):
            return read_federation(folder)
        if is_node(folder):
            return read_node(folder)
    except OSError as error:
        return Status(str(path), "unknown", unreadable(path, error))
    return read_status(folder)
