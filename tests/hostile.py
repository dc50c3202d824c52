"""How an adversary's coefficients are used in tests: the plain attack, and what place and company move there.

Recipes are those of `sottovoce.audit.hostile`; exponents go up to what float32 holds, and no bound on what a
server may send is assumed. `moved` is what all of it is for: how far a statistic of the same records moves,
in parts of its charge, when they stand in another order or are taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import torch
from torch import Tensor, nn

from sottovoce.audit.hostile import EXPONENTS, Hostile, Line
from sottovoce.models.parameters import trainable

__all__ = ["EXPONENTS", "Hostile", "Line", "moved", "orders", "ties"]

Statistic = Callable[[Tensor], Tensor]
"""From numbers of records (m,), in an order, to their statistic with a denominator that stays."""


def ties(module: nn.Module, seed: int, exponent: int = 8) -> Tensor:
    """The plain attack: ordinary layers, and a last one whose outputs have a huge direction in common."""
    parameters = trainable(module)
    last = max(place for place, p in enumerate(parameters) if p.ndim > 1)
    lines = [Line("zero" if p.ndim < 2 else "plain", 0, 1.0, seed + i) for i, p in enumerate(parameters)]
    lines[last] = Line("common", exponent, 1.0, seed)
    return Hostile(tuple(lines)).theta(module)


def orders(records: int, random: Random) -> Iterator[Tensor]:
    """Numbers of records in other orders: moved by one place, reversed, shuffled."""
    places = torch.arange(records)
    yield places.roll(1)
    yield places.flip(0)
    yield torch.tensor(random.sample(range(records), records))


def moved(statistic: Statistic, records: int, charge: float, random: Random, apart: int = 1) -> float:
    """How far, in parts of what is charged, place and company move a statistic that adds records up.

    So many records stay together, `apart`, where a statistic of others is taken apart.
    """
    whole = statistic(torch.arange(records))
    found = [statistic(order) - whole for order in orders(records, random)]
    for cut in {1, records // (2 * apart), random.randrange(records // apart + 1)}:
        part = torch.arange(records).split((min(apart * cut, records), max(0, records - apart * cut)))
        found.append(sum(statistic(one) for one in part if len(one)) - whole)
    return max(float(difference.norm()) / charge for difference in found)
