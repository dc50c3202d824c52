"""Who holds which records: participants with training and held-out records, future clients with a query set.

Participants are split 4:1 into training and held-out records, and their context set (the paper's C_i, m_c
records) lies inside the training records; a future client has a context set and, disjoint from it, a query
set on which its model is judged. Records become float tensors only when a client is looked at, so a round
costs what its own clients hold, whether the federation has 50 clients or 100,000.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import numpy as np
import torch
from torch import Tensor

from sottovoce import catalog
from sottovoce.data.dataset import Dataset, Records
from sottovoce.data.facts import Facts
from sottovoce.data.partitions import partition
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan, PlanError
from sottovoce.seeding import derived_seed

# Holds the 40 participants of the paper on CIFAR-10 (491 MB), so that rounds do not normalize them again.
CACHE_BYTES = 512 * 2**20


@dataclass(frozen=True)
class ClientRecords:
    """What one client holds.

    A participant trains on `train`, is judged on `held_out`, and `context` is a fixed part of `train`.
    A future client has no `train`; `held_out` is its query set. `context` and `held_out` never overlap.
    """

    train: Records
    held_out: Records
    context: Records


Split = Callable[[Records, int, int], ClientRecords]


def split_participant(records: Records, context_records: int, seed: int) -> ClientRecords:
    """Four fifths (rounded down) to train on, the rest held out; the context is the first of the training.

    >>> records = Records(torch.zeros(417, 1), torch.zeros(417).long())
    >>> mine = split_participant(records, 100, seed=0)
    >>> len(mine.train), len(mine.held_out), len(mine.context)
    (333, 84, 100)
    """
    train = training_size(len(records))
    _check_context(context_records, train, "training records of a participant")
    mixed = _shuffled(records, seed)
    return ClientRecords(mixed[:train], mixed[train:], mixed[:context_records])


def split_future(records: Records, context_records: int, seed: int) -> ClientRecords:
    """`context_records` for the one release a future client makes, all others as its query set."""
    _check_context(context_records, len(records), "records of a future client")
    mixed = _shuffled(records, seed)
    return ClientRecords(mixed[:0], mixed[context_records:], mixed[:context_records])


def split_seeds(clients: int, seed: int) -> list[int]:
    """The seeds with which `clients` clients, participants first, split their records."""
    # The stream for splitting must not be the one that divided the records.
    seeds: list[int] = np.random.default_rng([seed, clients]).integers(2**63, size=clients).tolist()
    return seeds


def training_size(records: int) -> int:
    """How many of a participant's records are for training: 4:1, so 333 of 417."""
    return records * 4 // 5


class Clients(Sequence[ClientRecords]):
    """The clients of one role, made when looked at; those looked at last are kept (up to `CACHE_BYTES`)."""

    def __init__(
        self,
        dataset: Dataset,
        index: list[Tensor],
        split: Split,
        context_records: int,
        seeds: list[int],
        turns: Sequence[int] = (),
    ) -> None:
        self._index = index

        def materialize(i: int) -> ClientRecords:
            records = dataset.records(index[i])
            if turns:
                records = turned(records, turns[i], described=dataset.facts.source is not None)
            return split(records, context_records, seeds[i])

        largest = 4 * int(np.prod(dataset.facts.shape)) * max(self.sizes, default=1)
        self._client = lru_cache(maxsize=max(1, CACHE_BYTES // largest))(materialize)

    @property
    def sizes(self) -> list[int]:
        """Number of records of each client, all sets together."""
        return [len(index) for index in self._index]

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, i: int) -> ClientRecords: ...
    @overload
    def __getitem__(self, i: slice) -> list[ClientRecords]: ...
    def __getitem__(self, i: int | slice) -> ClientRecords | list[ClientRecords]:
        if isinstance(i, slice):
            return [self._client(j) for j in range(len(self))[i]]
        return self._client(range(len(self))[i])


@dataclass(frozen=True)
class FederatedDataset:
    """All clients of a run with their records; `participants[i]` is client i of the schedule."""

    participants: Clients
    future: Clients
    facts: Facts


def divide(dataset: Dataset, plan: Plan) -> FederatedDataset:
    """The dataset's records in the hands of the plan's clients, everyone's context set fixed.

    The last `future_clients` of the shuffled partition become the future clients. All sizes are checked
    here, so that nothing fails in the middle of a run.

    >>> from sottovoce.data import load
    >>> clients = divide(load("mnist-small"), Plan.load(overrides={"context_records": 300}))
    >>> mine = clients.participants[0]
    >>> tuple(mine.train.x.shape), len(mine.held_out), len(clients.future[0].held_out)
    ((400, 1, 28, 28), 100, 200)
    """
    index = division(dataset, plan)
    smallest = training_size(min(map(len, index)))
    plan = plan.replace(context_records=plan.context_records or max(1, smallest))
    seen, unseen = index[: plan.participants], index[plan.participants :]
    check_sizes(plan.context_records, min(map(len, seen)), min(map(len, unseen)) if unseen else None)
    seeds, turns, first = split_seeds(len(index), plan.seed), quarter_turns(plan, dataset.facts), len(seen)
    return FederatedDataset(
        Clients(dataset, seen, split_participant, plan.context_records, seeds[:first], turns[:first]),
        Clients(dataset, unseen, split_future, plan.context_records, seeds[first:], turns[first:]),
        dataset.facts,
    )


def quarter_turns(plan: Plan, facts: Facts) -> list[int]:
    """By how many quarters every client sees its pictures turned; nothing where the plan has no such shift.

    Public, decided by the seed: each turn falls to alike many clients, participants first.

    >>> plan = Plan.load(overrides={"shift": "turns", "participants": 4, "future_clients": 4})
    >>> sorted(quarter_turns(plan, Facts((1, 28, 28), 10))[:4])
    [0, 1, 2, 3]
    """
    if plan.shift == "none":
        return []
    shape = (facts.source or facts).shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise PlanError(f"shift={plan.shift} turns square pictures, not records of shape {shape}: set none")
    rng = np.random.default_rng(derived_seed(plan.seed, "turns"))
    roles = (rng.permutation(count) % 4 for count in (plan.participants, plan.future_clients))
    turns: list[int] = np.concatenate(list(roles)).tolist()
    return turns


def turned(records: Records, turn: int, *, described: bool) -> Records:
    """A client's pictures (n, C, H, H) after its turn; `described`, features of all turns (n, 4, k)."""
    x = records.x[:, turn] if described else torch.rot90(records.x, turn, (2, 3))
    return Records(x, records.y)


def division(dataset: Dataset, plan: Plan) -> list[Tensor]:
    """Which records fall to which client of a plan, participants first: index tensors.

    Own records are never dealt by their labels. A record's label would decide who holds the others, so
    replacing it would move more than its own client's releases, and ε would not be true.
    """
    if catalog.PARTITIONS[plan.partition].looks_at_labels and not dataset.public:
        raise PlanError(
            f"partition={plan.partition} deals {dataset.name} out by labels, which no ε covers (it is for "
            "public datasets): say who holds which record with a client column or folders and "
            "partition=client records_per_client=0, or set partition=iid"
        )
    return partition(
        dataset,
        kind=plan.partition,
        clients=plan.participants + plan.future_clients,
        records=plan.records_per_client,
        alpha=plan.alpha,
        seed=plan.seed,
    )


def scope(plan: Plan, dataset: Dataset) -> str:
    """A fingerprint of which records each client holds: budgets add up only where it is equal."""
    divided = (plan.partition, plan.alpha, plan.participants, plan.future_clients, plan.records_per_client)
    return hashlib.sha256(repr((dataset.digest, *divided, plan.seed)).encode()).hexdigest()[:32]


def resolve(plan: Plan, sizes: Sequence[int]) -> Plan:
    """The plan with `gradient_records` settled, for participants of so many records.

    Where it is 0 and they hold alike many, all of them; where they differ it stays 0, each its own.
    """
    available = training_size(min(sizes))
    wanted = plan.gradient_records or (available if len(set(sizes)) == 1 else 0)
    if wanted > available:
        raise PlanError(
            f"gradient_records={wanted}, but the smallest participant has {available} training records: "
            f"set gradient_records to at most {available}, or 0 for all"
        )
    return plan.replace(gradient_records=wanted, context_records=plan.context_records or available)


def check_sizes(context_records: int, participant: int, future: int | None) -> None:
    """Refuses a context that the smallest participant or future client cannot give, by numbers of records."""
    if training_size(participant) < 1:
        raise SottovoceError(
            f"the smallest participant has {participant} record: it needs 2 to train on one and hold one out"
        )
    _check_context(
        context_records, training_size(participant), "training records of the smallest participant"
    )
    if future is not None:
        # One record less than it holds, so that the query set is not empty.
        _check_context(context_records, future - 1, "records that the smallest future client can spare")


def _shuffled(records: Records, seed: int) -> Records:
    return records[torch.from_numpy(np.random.default_rng(seed).permutation(len(records)))]


def _check_context(context_records: int, available: int, what: str) -> None:
    if not 0 <= context_records <= available:
        raise SottovoceError(
            f"context_records={context_records}, but there are {available} {what}: "
            f"set context_records to at most {available}, or give clients more records"
        )
