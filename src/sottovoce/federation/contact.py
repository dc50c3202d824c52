"""What a client of a federation is doing, for its owner: `contact.json` in its directory, and its ledger.

The node notes each message that it has answered or refused. ε is read from the ledger as it stands. All of it
is the owner's own and stays on this machine; nothing is written by whoever looks.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.account import Account
from sottovoce.errors import SottovoceError
from sottovoce.federation.client_directory import Enrolment
from sottovoce.federation.status import is_federation, read_federation, read_object
from sottovoce.files import FileError, write_atomically
from sottovoce.plan import Plan
from sottovoce.privacy.accounting import Budget
from sottovoce.privacy.ledger import ACCOUNTING, DELTA, EPSILON
from sottovoce.run.status import EXIT_CODES, Status, is_locked, read_status, reading, unreadable

FILE = "contact.json"
FORMAT = 1
ERRORS = 10
TAIL_BYTES = 65_536


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
        before = read_object(directory / FILE)
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
        write_atomically(directory / FILE, json.dumps(noted).encode())


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

    def fields(self, *, history: bool = False) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def is_node(directory: Path) -> bool:
    """Whether a directory is that of a federation's client."""
    return any((directory / name).exists() for name in (FILE, "client.log")) or any(
        directory.glob("enrolment-*.json")
    )


def read_node(path: Path) -> NodeStatus:
    """The status of a client, by the files of its directory and its ledger."""
    try:
        return _node(path)
    except Exception as error:
        return NodeStatus(str(path), "unknown", unreadable(path, error))


def _node(path: Path) -> NodeStatus:
    busy, noted = is_locked(path / "lock"), read_object(path / FILE)
    errors = _errors(path / "client.log")
    if not noted:
        why = "no message of a server has come yet" if not errors else errors[-1]
        return NodeStatus(str(path), "waiting", why, errors=errors)
    if noted.get("format") != FORMAT:
        raise SottovoceError(f"{path / FILE} was written by another version: look with that one")
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
        with reading(path) as file:
            rows = file.execute(
                "SELECT epsilon, delta, accounting FROM budget"
                " WHERE id >= (SELECT coalesce(max(id), 0) FROM budget WHERE raised)"
            ).fetchall()
            query = "SELECT TOTAL(spent), TOTAL(spent * (run = ?)) FROM spending WHERE client = ?"
            [(spent, here)] = file.execute(query, [run, client]).fetchall()
            query = "SELECT COUNT(*) FROM release WHERE client = ? AND run = ? AND kind = 'gradient'"
            [(gradients,)] = file.execute(query, [client, run]).fetchall()
    except sqlite3.Error:
        return {}, None, 0
    budget = min(
        (Budget(*row) for row in rows),
        key=lambda each: each.mu_squared,
        default=Budget(EPSILON, DELTA, ACCOUNTING),
    )
    found = {"budget": budget.epsilon, "spent": budget.price(spent), "run_spent": budget.price(here)}
    if cost:
        found |= {"run": budget.price(cost), "together": budget.price(spent - here + max(cost, here))}
    return found, budget.delta, int(gradients)


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
    """What is going on in a directory: of a run, of a federation's server, or of one of its clients."""
    folder = Path(path)
    try:
        if is_federation(folder):
            return read_federation(folder)
        if is_node(folder):
            return read_node(folder)
    except OSError as error:
        return Status(str(path), "unknown", unreadable(path, error))
    return read_status(folder)
