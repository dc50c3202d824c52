"""Company decides nothing: a record's features are the same beside other records, and at another time.

A feature map sees records before anything is clipped. One that rounds by place, or that remembers what it
saw, carries a record into the features of others, and no Δ knows of it. A map of one's own sees one record at
a time and is tried on made-up ones when it is opened, but may remember later. So an audit tries it on
the given ones, by the way that a run describes them: all digits have to be the same.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from sottovoce.data import Dataset
from sottovoce.models.features.cache import described
from sottovoce.plan import Plan

TRIED, ALONE = 64, 4
"""Records that come together, and how many of them come alone."""


def by_company(plan: Plan, dataset: Dataset, random: Random) -> list[str]:
    """What is wrong with the plan's feature map on a dataset of records as they are stored."""
    if plan.features == "none" or dataset.facts.source is not None:
        return []
    rows = torch.tensor(random.sample(range(len(dataset)), min(len(dataset), TRIED)))
    x, y = dataset.x[rows], dataset.y[rows]

    def features(places: Tensor) -> Tensor:
        some = Dataset("some", x[places], y[places], dataset.facts)
        return described(some, plan, cache=False, local=plan.features).x

    every = torch.arange(len(rows))
    whole = features(every)
    alone = [every[i : i + 1] for i in range(min(ALONE, len(rows)))]
    for order in (every, every.flip(0), every.roll(1), every[: len(rows) // 2], *alone):
        found, before = features(order), whole[order]
        other = (found != before) & ~(found.isnan() & before.isnan())
        if other.any():
            return [
                f"features={plan.features} describes the same record differently beside other records (in "
                f"{100 * float(other.double().mean()):.3g} % of the numbers): what one releases depends on "
                "others, which no ε covers"
            ]
    return []
