"""What is released once: a statistic of a client's records, and the phase in which it leaves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.plan.catalog import Kind


class Statistic(ABC):
    """A bounded per-record map and the sensitivity of its mean."""

    size: int
    """Length of the context vector."""
    spread: float
    """Largest distance between the vectors of any two records (a missing one counts as zero): charged."""
    radius: float = 1.0
    """Largest norm of a record's vector, and so of a mean of them."""

    @property
    def neutral(self) -> Tensor:
        """The public vector u₀ that stands in for a context where none is released: float32 (size,)."""
        return torch.full((self.size,), 1.0 / math.sqrt(self.size))

    @abstractmethod
    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        """One float64 vector per record, (m, size); `mean` leaves out records that are not finite."""

    def sensitivity(self, records: int) -> float:
        """Most that replacing one of `records` records moves the mean, in Euclidean norm."""
        return self.spread / records

    def calibrated_sensitivity(self, records: int) -> float:
        """The same as the paper bounds it, never less: σ follows from it."""
        return self.sensitivity(records)

    def mean(
        self,
        x: Tensor,
        y: Tensor,
        records: int,
        logits: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> Tensor:
        """The statistic of exactly `records` records, float64 (size,).

        Where several records are of one `unit` (m,), vectors are averaged within each unit first, and
        `records` counts units: a unit moves the mean no further than a record would.
        """
        found = len(x) if unit is None else len(torch.unique(unit))
        if found != records:
            raise SottovoceError(
                f"the context needs exactly {records} records, not {found}: set context_records"
            )
        vectors = self.per_record(x, y, logits)
        flat = x.reshape(len(x), -1)
        usable = flat >= 0 if x.dtype == torch.int64 else torch.isfinite(flat)  # as `Records.usable`
        finite = torch.isfinite(vectors).all(dim=1) & usable.all(dim=1)
        vectors = torch.where(finite[:, None], vectors, 0.0)
        if unit is not None:
            vectors = unit_means(vectors, unit, finite)
        return vectors.sum(dim=0) / records


def unit_means(vectors: Tensor, unit: Tensor, usable: Tensor) -> Tensor:
    """The mean vector of each unit, over those of its records (m,) that are usable; zero if none is.

    >>> vectors, unit = torch.tensor([[2.0], [4.0], [9.0], [0.0]]), torch.tensor([7, 7, 8, 8])
    >>> unit_means(vectors, unit, torch.tensor([True, True, True, False])).tolist()
    [[3.0], [9.0]]
    """
    places, dense = torch.unique(unit, return_inverse=True)
    dense = dense.to(vectors.device)
    counts = torch.zeros(len(places), dtype=vectors.dtype, device=vectors.device)
    counts.index_add_(0, dense, usable.to(vectors))
    sums = vectors.new_zeros(len(places), vectors.shape[1]).index_add_(0, dense, vectors)
    return sums / counts.clamp_min(1.0)[:, None]


ONCE: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "gradient")
"""What a client releases once in a run."""


@dataclass(frozen=True)
class Phase:
    """Releases of one kind that clients make at one time: all of a role once, or those called to a round."""

    kind: Kind
    by: Literal["participants", "called", "future"]
    after: int
    """Rounds that are made before it."""
    model: Literal["none", "shared", "own"]
    """What the release is made with: records alone, the coefficients of a client of whom nothing is known, as
    they are when the phase begins, or the client's own ones."""
    share: float = 0.0
    """Its part of a participant's μ²; 0: it is paid as the gradients are."""
