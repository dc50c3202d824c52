"""`status.json`: what a run, a federation's server or one of its clients is doing, and what it has spent.

Whoever works writes a `Status` into the directory that it works in, open to its owner alone: a simulation
when it begins and when it ends, a server as it goes, a client with each message. Commands, the live page and
metrics read it with `report.look`, which adds what changes meanwhile.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from sottovoce.machine.files import write_atomically
from sottovoce.plan import Plan
from sottovoce.plan.catalog import PLACES
from sottovoce.report.result import Known

FILE = "status.json"
FORMAT = 2
EXIT_CODES = {"finished": 0, "failed": 1, "unknown": 2, "running": 3, "waiting": 4}
"""What `sottovoce status` ends with, by state."""
Role = Literal["run", "server", "client"]


class Line(TypedDict):
    """A closed round: totals of its bytes, none about a single client."""

    round: int
    seconds: float
    bytes_up: int | None
    bytes_down: int | None
    seen: float | None
    future: float | None


class Member(TypedDict):
    """A client, as a server knows it."""

    name: str
    enrolled: bool
    connected: bool
    late: bool


class Waited(TypedDict):
    """A client that is waited for."""

    name: str
    why: str


class Said(TypedDict):
    """A warning or an error, and when it last came."""

    time: float | None
    text: str


Standing = Literal["enrolled", "connected", "late"]


@dataclass(frozen=True)
class Status:
    """The state of a run or of a client, why it is said to be in it, and how far it is.

    What is not known is None.
    """

    directory: str
    state: str
    why: str
    role: Role = "run"
    """Whose directory it is: of a simulation, of a federation's server, or of one of its clients."""
    phase: str | None = None
    """preparing, rounds, finishing or finished; or one of a federation's phases"""
    phases: list[str] = field(default_factory=list)
    """All phases of a federation, in order."""
    method: str | None = None
    dataset: str | None = None
    noise: str | None = None
    """The place of the noise."""
    seeded: bool = False
    """Whether it is a simulation whose noise protects nobody."""
    participants: int | None = None
    rounds: int | None = None
    delta: float | None = None
    accounting: str = "exact"
    engine: str | None = None
    """What carries the messages of a federation."""
    run: str | None = None
    client: str | None = None
    ledger: str | None = None
    """Where ε is read."""
    account: str | None = None
    """What the client is called in its ledger."""
    cost: float = 0.0
    """Σ (Δ/σ)² of the whole run, as the client's owner was told."""
    witness: str | None = None
    """The folder outside of a client's machine that knows how far it was."""
    round: int = 0
    """Rounds that are closed; of a client, the last one that it was asked for."""
    gradients: int = 0
    """Rounds in which the client has released."""
    epsilon: dict[str, float | None] = field(default_factory=dict)
    """`target`, and what the client that spent most has spent in this run: `spent`, and by kind. Of a client
    `budget`; `spent` in all runs, `run_spent` in this one; `run` and `together` when this one is over, and
    `put_back` if the machine is put back as a whole now and nobody notices."""
    history: list[Line] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    """Of all rounds."""
    seconds_left: float | None = None
    accuracy: dict[str, float | None] = field(default_factory=dict)
    """`seen` and `future`, in percent, after `round`."""
    since: float | None = None
    """When something was last closed, or the last message of the server came."""
    clients: list[Member] = field(default_factory=list)
    waiting: list[Waited] = field(default_factory=list)
    answers: int = 0
    refusals: int = 0
    """Messages that a server, or a client, has refused."""
    errors: list[Said] = field(default_factory=list)
    """The last warnings and errors of a server, or errors of a client."""

    @classmethod
    def of(cls, plan: Plan, role: Role, state: str, why: str, **more: Any) -> Self:
        """With what is told of a plan; ε has the kinds that it was spent on."""
        shared = {key.name for key in fields(Plan)} & {each.name for each in fields(cls)} - {"epsilon"}
        about = {name: getattr(plan, name) for name in shared}
        target: dict[str, Any] = {"epsilon": {"target": plan.epsilon if plan.private else None}}
        return cls("", state, why, role=role, **about, **(target | more))

    @property
    def noise_words(self) -> str:
        """The place of the noise, in words."""
        return PLACES[self.noise].phrase if self.noise in PLACES else f"noise at the {self.noise}"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]

    @property
    def seconds_since(self) -> float | None:
        """How long ago something last happened."""
        return None if self.since is None else max(0.0, time.time() - self.since)

    @property
    def headroom(self) -> str:
        """What a client's records have spent, and what this run will spend, in a line."""
        if not self.epsilon:
            return "the ledger cannot be read"
        said = f"ε {self.epsilon['spent']:.3g} of {self.epsilon['budget']:g} spent"
        if "run" in self.epsilon:
            spends = "has spent" if self.state == "finished" else "will spend"
            said += f"; this run {spends} {self.epsilon['run']:.3g}"
            said += f", together {self.epsilon['together']:.3g}" if self.state != "finished" else ""
        return said

    @property
    def restores(self) -> str:
        """What becomes of a client's machine that is put back as a whole, in a line."""
        if self.witness is not None:
            return f"a machine put back as a whole is noticed by the witness {self.witness}"
        said = "without a witness outside, a machine put back as a whole is not noticed"
        if "put_back" in self.epsilon and self.state != "finished":
            said += f": the rest of this run may be spent twice, together ε {self.epsilon['put_back']:.3g}"
        return said

    def counted(self, what: Standing) -> int:
        """Clients of a federation that are `enrolled`, `connected` or `late`."""
        return sum(client[what] for client in self.clients)

    def write(self, folder: Path) -> None:
        """Replaces the status of a directory; where that lies and how it is called is no part of it."""
        values = {**asdict(self), "format": FORMAT}
        del values["directory"]
        write_atomically(folder / FILE, json.dumps(values).encode())


def epsilon_of(result: Known) -> dict[str, float | None]:
    """What a finished run promised and spent; without noise it promised nothing."""
    target, spent = result["epsilon"]["target"], result["epsilon"]["spent_max"]
    return {"target": target} if target is None else {"target": target, "spent": spent}
