"""Dry first: what a client does with its records before it says yes to a federation, and charges nothing for.

Its file is read, usable records are counted, and with them one context, one clipped gradient and one
confusion are computed at the public reference and thrown away. Whatever fails is told to the client's owner
alone; the server hears a fixed "not ready".
"""

from __future__ import annotations

import torch
from torch import Tensor

from sottovoce.blueprint import Blueprint
from sottovoce.data import ClientRecords, DataError, description
from sottovoce.federation.keys import EnrolmentError

UNUSABLE = 0.05
"""Share of records that may be unusable where no `records.toml` says so."""


class NotReady(EnrolmentError):
    """All that a server hears of a client whose records or model cannot be used as agreed."""

    def __init__(self) -> None:
        super().__init__("this client is not ready: its own log says why")


def rehearse(blueprint: Blueprint, participant: int, records: ClientRecords) -> None:
    """Computes one release of every kind, as the first rounds would, and lets go of it."""
    agreed = description.of(blueprint.facts.source or blueprint.facts)
    if agreed is None:  # with one, reading the file has checked it
        check_usable(torch.cat([records.train.x, records.held_out.x]))
    releases, reference = blueprint.releases_of(participant), torch.zeros(blueprint.coefficients)
    train = records.train[: blueprint.sizes[participant]]
    for kind, release in releases.items():
        model = reference if kind != "context" or blueprint.plan.context_traits.uses_model else None
        statistic = release.statistic(records.context if kind == "context" else train, model)
        if statistic.shape != (release.size,) or not bool(torch.isfinite(statistic).all()):
            raise DataError(f"the {kind} of these records is not {release.size} finite numbers: check them")


def check_usable(x: Tensor) -> None:
    """Refuses records of which too many are not finite: they would be charged and contribute nothing."""
    unusable = int((~torch.isfinite(x.flatten(1)).all(dim=1)).sum())
    if unusable > UNUSABLE * len(x):
        raise DataError(
            f"{unusable} of {len(x)} records hold something that is not finite: correct them, or agree on "
            "records.toml, which says what stands for a missing value"
        )
