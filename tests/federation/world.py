"""A small federation on one machine: a seeded plan, its client files, both ends in this process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from sottovoce.channel.wire import Stream
from sottovoce.data import Dataset
from sottovoce.federation import Agreement, agree, write_client_files
from sottovoce.federation.keys import Parties, SiteKey
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import public_key, seal, unseal
from sottovoce.federation.server import Coordinator, Fields, Options
from sottovoce.federation.store import Store
from sottovoce.federation.sums import HelperNode
from sottovoce.machine import rollback
from sottovoce.models.tensors import load_tensors
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope
from sottovoce.privacy.terms import Terms
from sottovoce.run.simulation import Round, Simulation
from sottovoce.run.training import train
from sottovoce.training.client import Asked
from tests.small import federated_plan

SHARED = {
    "preset": "shared",
    "channel": "integers",
    "model": "linear",
    "basis": "structured",
    "coefficients": 64,
    "records_per_client": 20,
    "context_records": 10,
    "context": "labels",
    "features": "none",
    "participants": 6,
    "clients_per_round": 6,
    "threshold": 4,
    "colluding": 1,
    "helpers": 3,
    "rounds": 3,
    "future_clients": 0,
    "learning_rate": 0.3,
}
"""Six sites share the noise, three helpers mask it."""
QUICK = {"model": "linear", "coefficients": 64, "records_per_client": 20, "context_records": 10, "rounds": 2}
"""What makes a world of a few tenths of a second."""


class World:
    """Client files and directories in one folder, and a coordinator that can be killed and started again."""

    def __init__(
        self, folder: Path, *, options: Options | None = None, dataset: Dataset | None = None, **changes: Any
    ) -> None:
        self.folder = folder
        plan = federated_plan(**{"model": "linear", **changes})
        parties = Parties.dealt(folder / "clients", plan) if plan.place.shared else None
        self.agreement = agree(plan, dataset, parties)
        self.files = write_client_files(self.agreement, folder / "clients", dataset)
        self._options = options
        self.start()

    def start(self) -> None:
        self.store = Store.open(self.folder / "server.sqlite", self.agreement, timeout=0.0)
        self.coordinator = Coordinator(self.agreement, self.store, self._options)

    def kill(self) -> None:
        """The server's memory is gone; what it wrote stays."""
        self.store.close()

    def node(self, index: int, agreement: Agreement | None = None, directory: str | None = None) -> Node:
        folder = self.folder / "clients"
        return Node(
            folder / (directory or f"client-{index}"),
            folder / f"client-{index}.npz",
            agreement or self.agreement,
            wish=index,
            terms=Terms(ledger=folder / f"client-{index}" / "ledger.sqlite"),
            simulated=True,
            key=self.key(f"client-{index}") if self.agreement.parties else None,
        )

    def key(self, name: str) -> SiteKey:
        return SiteKey.read(self.folder / "clients" / f"{name}.key")

    def helper(self, number: int, agreement: Agreement | None = None) -> HelperNode:
        name = f"helper-{number}"
        return HelperNode(self.folder / "clients" / name, agreement or self.agreement, self.key(name))

    def enrol(self, index: int) -> int:
        return self.coordinator.roster.enrol(
            self.node(index).enrol(self.coordinator.roster.offer()), str(index)
        )

    def enrol_all(self) -> None:
        for index in range(self.agreement.plan.participants):
            self.enrol(index)
        for number in range(len(self.agreement.parties.helpers if self.agreement.parties else ())):
            answer = self.helper(number).enrol(self.coordinator.roster.offer())
            self.coordinator.roster.enrol(answer, f"helper {number}")

    def answer(self, participant: int) -> Fields:
        """What the member answers to the request that is open for it."""
        kind = self.coordinator.missing()[participant]
        request = self.coordinator.request(participant, kind)
        if kind == "masks":
            return self.helper(participant - self.agreement.plan.participants).masks(request)
        node = self.node(participant)
        return node.keep_model(request) if kind == "model" else node.release(request)

    def codeword(self, participant: int, answer: Fields) -> bytes:
        """The channel's message under the seal of an answer; while the server has the key."""
        stream, private, agreed = self._seal(participant, answer)
        return unseal(answer["release"], stream, private=private, agreed=agreed)

    def sealed(self, participant: int, answer: Fields, codeword: bytes, bucket: int = 0) -> Fields:
        """The answer of a client that seals something else, as well as any."""
        stream, private, agreed = self._seal(participant, answer)
        body = seal(codeword, stream, to=public_key(private), agreed=agreed, bucket=bucket)
        return {**answer, "release": body}

    def _seal(self, participant: int, answer: Fields) -> tuple[Stream, bytes, bytes]:
        key = self.store.seal_key(participant, answer["kind"])
        assert key is not None
        stream = (self.store.run, f"participant-{participant}", answer["kind"], answer["round"])
        return stream, key, self.coordinator.roster.agreed(participant)

    def step(self) -> Fields | None:
        """Everybody that is asked answers."""
        for participant in list(self.coordinator.missing()):
            if participant in self.coordinator.missing():  # still
                self.coordinator.accept(participant, self.answer(participant))
        return self.coordinator.advance()

    def finish(self) -> None:
        while not self.coordinator.done:
            self.step()

    def deliver_models(self) -> None:
        """Everybody who trained and is there gets their model."""
        while not self.coordinator.closed:
            self.step()

    def model(self, index: int) -> Path:
        """Where a client keeps its own."""
        return self.folder / "clients" / f"client-{index}" / "personal.safetensors"


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    shared = one.keys() & other.keys()
    return bool(shared) and all(one[name].equal(other[name]) for name in shared)


def ledger(world: World, index: int) -> Ledger:
    clients = world.folder / "clients"
    return Ledger.open(clients / f"client-{index}" / "ledger.sqlite", scope=client_scope(f"client-{index}"))


def charged(world: World, index: int) -> list[tuple[str, int]]:
    with ledger(world, index) as book:
        return sorted((entry.charge.kind, entry.charge.round) for entry in book.charges(OWN_RECORDS))


def roll_back(patch: pytest.MonkeyPatch, backup: Path, mine: Path) -> None:
    """Puts a directory back as a disk or virtual machine is that is put back as a whole.

    Files are then exactly as old as they say, and locks are those that they were: nothing shows.
    """
    patch.setattr(rollback, "_PROMPT", 10**18)
    for path in mine.iterdir():
        if not path.name.endswith("lock"):
            path.unlink()
    shutil.copytree(backup, mine, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*lock"))


def everyone_paid(world: World) -> bool:
    """Each member was charged exactly for what the server received, once."""
    indices = range(world.agreement.plan.participants)
    return all(charged(world, index) == sorted(world.store.received(index)) for index in indices)


def replayed(plan: Plan, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Tensor]:
    """The simulator's generator if the sums of its rounds are of the same clients as in these lines."""

    def summed(self: Simulation, opened: Round, asked: Sequence[Asked]) -> dict[str, float | None]:
        made = dict(zip(opened.participants, self._sent(asked), strict=True))
        came = [int(name.rpartition("-")[2]) for name in lines[opened.number - 1]["clients"]]
        assert self.blueprint.sharing is not None
        total = self.blueprint.sharing.added(made[one] for one in came)
        self.server.receive_update(self.server.share_out(total, came) if came else self.server.nothing())
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_sum_shares", summed)
        train(plan, folder)
    return load_tensors(folder / "model.safetensors")[0]
