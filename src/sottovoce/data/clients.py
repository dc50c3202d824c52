"""Who holds which records: participants with training and held-out records, future clients with a query set.

Participants are split 4:1 into training and held-out records, and their context set (the paper's C_i, m_c
records) lies inside the training records; a future client has a context set and, disjoint from it, a query
set on which its model is judged. Records become float tensors only when a client is looked at, so a round
costs what its own clients hold, whether the federation has 50 clients or 100,000.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import overload

import numpy as np
import torch
from torch import Tensor

from sottovoce.data.dataset import Dataset, Facts, Records
from sottovoce.data.partitions import partition
from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine.determinism import derived_seed
from sottovoce.plan import Plan, catalog
from sottovoce.plan.checks import PlanError

# A quarter of this machine's memory, so that rounds do not normalize (or unpack) the same clients again.
CACHE_BYTES = max(512 * 2**20, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
NAMED = "clients by name"
"""The scope of a ledger whose accounts are the names of clients."""


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

    Units stay whole: all numbers here count units, and where no unit was agreed on, a record is one. A
    context of 0 takes all of the training.

    >>> records = Records(torch.zeros(417, 1), torch.zeros(417).long())
    >>> mine = split_participant(records, 100, seed=0)
    >>> len(mine.train), len(mine.held_out), len(mine.context)
    (333, 84, 100)
    """
    train = training_size(records.units)
    _check_context(context_records, train, "training records of a participant")
    mixed = records.of_units(records.order(seed))
    rows, context = mixed.rows_of(train), mixed.rows_of(context_records or train)
    return ClientRecords(mixed[:rows], mixed[rows:], mixed[:context])


def split_future(records: Records, context_records: int, seed: int) -> ClientRecords:
    """`context_records` for the one release a future client makes, all others as its query set."""
    _check_context(context_records, records.units, "records of a future client")
    mixed = records.of_units(records.order(seed))
    rows = mixed.rows_of(context_records)
    return ClientRecords(mixed[:0], mixed[rows:], mixed[:rows])


def split_seeds(clients: int, seed: int) -> list[int]:
    """The seeds with which `clients` clients, participants first, split their records."""
    # The stream for splitting must not be the one that divided the records.
    seeds: list[int] = np.random.default_rng([seed, clients]).integers(2**63, size=clients).tolist()
    return seeds


def training_size(records: int) -> int:
    """Returns how many of a participant's records are for training: 4:1, so 333 of 417."""
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
        self.sizes = [dataset.units(rows) for rows in index]
        """Number of records (of units, where several belong together) of each client, all sets together."""

        def materialize(i: int) -> ClientRecords:
            records = dataset.records(index[i])
            if turns:
                # Where records are described, x holds the features of all turns, (n, 4, k).
                described = dataset.facts.source is not None
                x = records.x[:, turns[i]] if described else torch.rot90(records.x, turns[i], (2, 3))
                records = replace(records, x=x)
            return split(records, context_records, seeds[i])

        largest = 4 * int(np.prod(dataset.facts.shape)) * max(map(len, index), default=1)
        self._client = lru_cache(maxsize=max(1, CACHE_BYTES // largest))(materialize)

    def __len__(self) -> int:
        return len(self.sizes)

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
    names: tuple[str, ...]
    """What the participants are called, in ledger, log and result."""
    future_names: tuple[str, ...]


def divide(dataset: Dataset, plan: Plan, index: list[Tensor] | None = None) -> FederatedDataset:
    """The dataset's records in the hands of the plan's clients, everyone's context set fixed.

    The plan is complete (`run.prepare`). The last `future_clients` of the shuffled partition
    become the future clients, or those that the plan names. All sizes are checked here, so that nothing fails
    in the middle of a run. `index` is the division where it is known (`division`).

    >>> from sottovoce.data import load
    >>> clients = divide(load("mnist-small"), Plan.load(overrides={"context_records": 300}))
    >>> mine = clients.participants[0]
    >>> tuple(mine.train.x.shape), len(mine.held_out), len(clients.future[0].held_out)
    ((400, 1, 28, 28), 100, 200)
    """
    dataset = identified(dataset, plan)
    index, names = index or division(dataset, plan), client_names(dataset, plan)
    first, seeds = plan.participants, split_seeds(len(index), plan.seed)
    turns, wanted = quarter_turns(plan, dataset.facts), plan.context_records
    seen = Clients(dataset, index[:first], split_participant, wanted, seeds[:first], turns[:first])
    context = plan.context_records or (training_size(min(seen.sizes)) if plan.releases_context else 0)
    unseen = Clients(dataset, index[first:], split_future, context, seeds[first:], turns[first:])
    least = min(range(first), key=lambda i: seen.sizes[i])
    check_sizes(context, seen.sizes[least], min(unseen.sizes, default=None), names[least])
    return FederatedDataset(seen, unseen, dataset.facts, tuple(names[:first]), tuple(names[first:]))


def client_names(dataset: Dataset, plan: Plan) -> list[str]:
    """Returns the names of a plan's clients, in the order of `division`: what their records call them.

    Clients that a partition invents are participant-0, participant-1, … and future-0, future-1, …
    """
    if plan.partition == "client" and dataset.clients:
        return [dataset.clients[owner] for owner in _owners(dataset, plan)]
    return [
        *(f"participant-{i}" for i in range(plan.participants)),
        *(f"future-{i}" for i in range(plan.future_clients)),
    ]


def _owners(dataset: Dataset, plan: Plan) -> list[int]:
    """Returns which named clients a plan has: participants, then future ones, each ordered by name.

    Future clients are those whom the plan names, else chosen by its seed; so are participants, if not all.
    """
    names = list(dataset.clients)
    named = [name for name in plan.future_names.split(",") if name]
    for name in named:
        if name not in names:
            raise PlanError(f"no client is called '{name}' in {dataset.name}: {nearest(name, names)}")
    wanted = plan.participants + plan.future_clients
    if len(names) < wanted:
        raise PlanError(
            f"{dataset.name} has {len(names)} clients, {wanted} were asked for: "
            "lower participants or future_clients"
        )
    future = [names.index(name) for name in named]
    order = [int(i) for i in np.random.default_rng(plan.seed).permutation(len(names)) if i not in future]
    participants = order[: plan.participants]
    return sorted(participants) + (future or sorted(order[plan.participants : wanted]))


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


def division(dataset: Dataset, plan: Plan) -> list[Tensor]:
    """Returns which records fall to which client of a plan, participants first: index tensors.

    Own records are never dealt by their labels. A record's label would decide who holds the others, so
    replacing it would move more than its own client's releases, and ε would not be true. Records that belong
    to units are not dealt either: a unit of two clients has two accounts, and one record more moves sizes.
    """
    if catalog.PARTITIONS[plan.partition].looks_at_labels and not dataset.public:
        raise PlanError(
            f"partition={plan.partition} deals {dataset.name} out by labels, which no ε covers (it is for "
            "public datasets): say who holds which record with a client column or folders and "
            "partition=client records_per_client=0, or set partition=iid"
        )
    if dataset.unit is not None and plan.partition != "client":
        raise PlanError(
            f"partition={plan.partition} deals out the records of {dataset.name}, and would split units that "
            "one ε protects: set partition=client records_per_client=0, with one file for each client"
        )
    if plan.partition == "client" and dataset.clients and dataset.client is not None:
        if plan.records_per_client:
            raise PlanError("partition=client gives each client the records it has: set records_per_client=0")
        return [torch.nonzero(dataset.client == owner)[:, 0] for owner in _owners(dataset, plan)]
    if plan.future_names:
        raise PlanError(f"{dataset.name} has no names of clients: say how many with future_clients=NUMBER")
    return partition(
        dataset,
        kind=plan.partition,
        clients=plan.participants + plan.future_clients,
        records=plan.records_per_client,
        alpha=plan.alpha,
        classes=plan.classes_per_client,
        seed=plan.seed,
    )


def identified(dataset: Dataset, plan: Plan) -> Dataset:
    """The dataset with what each unit is, where clients have files of their own: one may be sorted anew.

    Where records are dealt, a record is one place of the dataset, and so is its neighbour.
    """
    return dataset.identified() if plan.partition == "client" and not dataset.public else dataset


def scope(plan: Plan, dataset: Dataset) -> str:
    """Returns whose ledger it is: budgets add up only where it is equal.

    Clients that have names are known by them, whatever their records are by now; for those that a partition
    invents it is a fingerprint of which records each of them holds.
    """
    if plan.partition == "client" and dataset.clients:
        return NAMED
    divided = [value for name, value in plan.digested().items() if name in plan.shaping("division")]
    return hashlib.sha256(repr((dataset.digest, *divided)).encode()).hexdigest()[:32]


def delta_doubt(delta: float, records: int) -> list[str]:
    """Returns what to say about a δ that is allowed for a smallest client of so many records, and large."""
    if delta * records <= 0.1 * (1 + 1e-9):
        return []
    return [
        f"δ = {delta:g} is above a tenth of one over the records of the smallest client, {records:,}: "
        f"somebody's record may be given away whole with a chance of {100 * min(1.0, delta * records):.0f} %"
    ]


def check_sizes(context_records: int, participant: int, future: int | None, name: str = "") -> None:
    """Refuses a context that the smallest participant or future client cannot give, by numbers of records.

    `name` is what the smallest participant is called.
    """
    if training_size(participant) < 1:
        raise SottovoceError(
            f"the smallest participant{name and f', {name},'} has {participant} record: it needs 2 to train "
            "on one and hold one out"
        )
    _check_context(
        context_records, training_size(participant), "training records of the smallest participant"
    )
    if future is not None:
        # One record less than it holds, so that the query set is not empty.
        _check_context(context_records, future - 1, "records that the smallest future client can spare")


def _check_context(context_records: int, available: int, what: str) -> None:
    if not 0 <= context_records <= available:
        raise SottovoceError(
            f"context_records={context_records}, but there are {available} {what}: "
            f"set context_records to at most {available}, or give clients more records"
        )
