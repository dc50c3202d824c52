"""Place decides nothing: the same records in another order make the same releases.

What a record contributes is to be a function of that record and of what is public. A product of matrices,
though, rounds a row by where it lies, and at coefficients that a server chose such a rounding can decide
about a whole gradient. So an adversary (`hostile`) looks for the coefficients at which order alone moves a
client's statistics furthest, in parts of what is charged for one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import torch
from torch import Tensor

from sottovoce.audit.hostile import Hostile, worst
from sottovoce.audit.pair import busiest
from sottovoce.audit.sensitivity import Leaving, What
from sottovoce.data import ClientRecords, FederatedDataset, Records
from sottovoce.release.blueprint import Blueprint
from sottovoce.training.client import Client

TOLERANCE = 1e-6
"""By which part of its charge order may move a release: sums in float64 are rounded, too."""
DRAWS, STEPS = 16, 16
"""Recipes that are drawn, and steps uphill from the worst of them."""
MOST_CLIENTS = 64
Order = Callable[[int], Tensor]
"""From how many units there are to their places, int64, in another order."""


def climbed(blueprint: Blueprint, federation: FederatedDataset, random: Random) -> Tensor:
    """The coefficients (k,) at which order was found to move most of the busiest participant's releases."""
    who, model = busiest(blueprint), blueprint.model
    name, held = federation.names[who], federation.participants[who]

    def ratio(recipe: Hostile) -> float:
        each = moved(blueprint, name, held, who, [recipe.coefficients(model)], [_rolled])
        return max(each.values(), default=0.0)

    _, recipe = worst(model.module, ratio, random, draws=DRAWS, steps=STEPS)
    return recipe.coefficients(model)


def by_order(
    blueprint: Blueprint, federation: FederatedDataset, at: Sequence[Tensor], random: Random
) -> tuple[dict[tuple[str, str], float], list[str]]:
    """How far order alone moves a release, at most, by kind and place of its noise; and what is wrong.

    Looked at are up to `MOST_CLIENTS` participants and future clients: each has another number of records.
    """
    largest, faults = dict[tuple[str, str], float](), list[str]()
    orders = [_rolled, _reversed, lambda units: torch.tensor(random.sample(range(units), units))]
    everybody = [(name, i) for i, name in enumerate(federation.names)]
    some = random.sample(everybody, min(len(everybody), MOST_CLIENTS))
    clients = [(name, federation.participants[i], i) for name, i in some]
    future = list(enumerate(federation.future_names))[:MOST_CLIENTS]
    for name, held, who in [*clients, *((name, federation.future[i], None) for i, name in future)]:
        for what, far in moved(blueprint, name, held, who, at, orders).items():
            key = what.kind, what.place
            largest[key] = max(largest.get(key, 0.0), far)
            if not far <= TOLERANCE:
                faults.append(
                    f"{what.kind} of {name} moves by {far:.3g} of what is charged when its records stand in "
                    "another order, at coefficients that a server may send"
                )
    return largest, list(dict.fromkeys(faults))


def moved(
    blueprint: Blueprint,
    name: str,
    held: ClientRecords,
    participant: int | None,
    at: Sequence[Tensor],
    orders: Iterable[Order],
) -> dict[What, float]:
    """How far these orders of its units move each of a client's releases, in parts of what is charged."""
    client = Client(name, held, blueprint, None, run="audit", secret=b"", participant=participant)
    if len(held.train):  # as many as a round takes: what is left is not drawn from again
        held = replace(held, train=client.training_records(1))
    before, found = _left(blueprint, name, held, participant, at), dict[What, float]()
    for order in orders:
        train, context = (_in_order(records, order) for records in (held.train, held.context))
        after = _left(blueprint, name, replace(held, train=train, context=context), participant, at)
        for what, vector in before.items():
            found[what] = max(found.get(what, 0.0), float(np.linalg.norm(after[what] - vector)))
    return found


def _left(
    blueprint: Blueprint, name: str, held: ClientRecords, participant: int | None, at: Sequence[Tensor]
) -> dict[What, np.ndarray]:
    leaving = Leaving({}, {}, {})
    leaving.add(blueprint, name, held, participant, at)
    return leaving.statistics


def _in_order(records: Records, order: Order) -> Records:
    return records.of_units(order(records.units)) if len(records) else records


def _rolled(units: int) -> Tensor:
    return torch.arange(units).roll(1)


def _reversed(units: int) -> Tensor:
    return torch.arange(units).flip(0)
