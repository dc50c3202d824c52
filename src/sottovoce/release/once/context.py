"""Contexts: the bounded statistic of its records that a client releases once (Eqs. 1 and 2).

Each statistic maps every record to a vector of bounded norm and averages over a fixed denominator m;
it states the replace-one sensitivity of that average itself. A record whose vector is not finite
contributes zero, and the denominator stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.models.tiles import WHOLE, by_tiles, tile_of
from sottovoce.plan.catalog import entry
from sottovoce.release.once import Statistic


class Moments(Statistic):
    """The paper's φ: tanh of first and second moments over groups of input coordinates; ‖φ‖₂ ≤ 1.

    `groups` assigns each input coordinate (flattened) to one of s groups; no labels are needed.

    Two records are less than √2 apart, and no smaller bound holds. For a group with mean m and mean square
    q ≥ m², the point (tanh m, tanh q) lies within 1 of (0, 1): tanh² m + (1 − tanh q)² ≤ 1, since
    1 − tanh q ≤ 1 − tanh m² = 2/(e^{2m²} + 1) ≤ 1/cosh m = √(1 − tanh² m). The middle step is
    2 cosh m ≤ 2z ≤ z⁴ + 1 with z = e^{m²/2} ≥ 1, as cosh m ≤ z and z⁴ + 1 − 2z ≥ (z − 1)². So two records
    differ by at most 2 in the point of each of the s groups, and by √(4s)/√(2s) = √2 in φ; a missing one,
    the point (0, 0), included. Records of constants c and −c come as near to √2 as one likes. The paper
    bounds the distance by 2‖φ‖ ≤ 2, for which noise is still calibrated, so that σ is the paper's.

    >>> statistic = Moments(torch.tensor([0, 0, 1]))
    >>> statistic.size, round(statistic.sensitivity(100), 6), statistic.calibrated_sensitivity(100)
    (4, 0.014142, 0.02)
    """

    spread = math.sqrt(2.0)

    def __init__(self, groups: Tensor) -> None:
        count = int(groups.max()) + 1
        sizes = torch.bincount(groups, minlength=count)
        if bool((sizes == 0).any()):
            raise SottovoceError("every group of input coordinates needs a member: number them 0, 1, 2, …")
        self.size = 2 * count
        self._average = torch.zeros(len(groups), count + -count % WHOLE, dtype=torch.float64)
        self._average[torch.arange(len(groups)), groups] = 1.0 / sizes[groups].double()

    def calibrated_sensitivity(self, records: int) -> float:
        return 2.0 / records

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        size = tile_of(self, "moments", lambda tile: [self._vectors(tile)], x)
        return by_tiles(self._vectors, x, size)

    def _vectors(self, tile: Tensor) -> Tensor:
        flat = tile.flatten(1).double()
        average, count = self._average.to(flat.device), self.size // 2
        means = [(values @ average)[:, :count] for values in (flat, flat.square())]
        return torch.tanh(torch.cat(means, dim=1)) / math.sqrt(self.size)


class ClassShares(Statistic):
    """A mean of class probabilities: its vectors lie in the simplex, whose corners are √2 apart."""

    spread = math.sqrt(2.0)

    def __init__(self, classes: int) -> None:
        self.size = classes

    @property
    def neutral(self) -> Tensor:
        return torch.full((self.size,), 1.0 / self.size)


class LabelHistogram(ClassShares):
    """Shares of the classes among the records, for clients that have labels."""

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        return torch.nn.functional.one_hot(y, self.size).double()


class MeanPrediction(ClassShares):
    """Mean class probabilities under a private model: an estimate of the label histogram without labels.

    The model must be a function of charged releases only; then its predictions on a record depend on
    that record's client through the release that is charged here, and through nothing else.
    """

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        if logits is None:
            raise SottovoceError("context=predictions needs the model of its release round")
        hot = torch.nn.functional.one_hot(logits.argmax(dim=1), self.size).double()
        return torch.where(torch.isfinite(logits).all(dim=1, keepdim=True), hot, 0.0)


class MeanProbability(ClassShares):
    """Mean class probabilities under the shared model, for future clients without labels."""

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        return _probabilities(logits)


class Confusion(Statistic):
    """How classes are taken for one another: the mean of e_y ⊗ p(x), for labels y and probabilities p.

    Vectors of different labels are orthogonal and of norm at most 1, those of one label differ by two points
    of the simplex: no two are more than √2 apart.
    """

    spread = math.sqrt(2.0)

    def __init__(self, classes: int) -> None:
        self.size = classes**2
        self._classes = classes

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        hot = torch.nn.functional.one_hot(y, self._classes).double()
        return (hot[:, :, None] * _probabilities(logits)[:, None, :]).flatten(1)


def _probabilities(logits: Tensor | None) -> Tensor:
    if logits is None:
        raise SottovoceError("class probabilities need the shared model: give its coefficients")
    probabilities = torch.softmax(logits.double(), dim=1)
    return torch.where(torch.isfinite(logits).all(dim=1, keepdim=True), probabilities, torch.nan)


def _moments(shape: tuple[int, ...], classes: int, groups: int) -> Statistic:
    return Moments(block_groups(shape, groups))


STATISTICS: dict[str, Callable[[tuple[int, ...], int, int], Statistic]] = {
    "moments": _moments,
    "standardized": _moments,
    "public": _moments,
    "labels": lambda shape, classes, groups: LabelHistogram(classes),
    "predictions": lambda shape, classes, groups: MeanPrediction(classes),
    "shares": lambda shape, classes, groups: LabelHistogram(classes),
}
"""What opens each context of the catalog, from the shape of a record, the classes and the groups.

`standardized` is `moments`, rescaled later by the server; a `public` context has the shape of the moments, so
that controls differ from the method in one thing.
"""


def open_statistic(name: str, shape: tuple[int, ...], classes: int, groups: int = 1) -> Statistic:
    """The statistic of a plan's `context`."""
    return entry("context", name, STATISTICS)(shape, classes, groups)


def block_groups(shape: tuple[int, ...], blocks: int = 1) -> Tensor:
    """Groups of an image's coordinates: its channels, each cut into blocks × blocks tiles.

    Records of another shape have one group per leading index, or one in all for a vector.

    >>> block_groups((1, 2, 2), 2).tolist()
    [0, 1, 2, 3]
    """
    if len(shape) != 3:
        if blocks != 1:
            raise SottovoceError(
                f"context_groups={blocks} cuts images into tiles; records of shape {shape} take 1"
            )
        channels = shape[0] if len(shape) > 1 else 1
        return torch.arange(channels).repeat_interleave(math.prod(shape) // channels)
    channels, height, width = shape
    if blocks > min(height, width):
        raise SottovoceError(f"context_groups={blocks} is more than the image has rows or columns: lower it")
    rows = torch.arange(height) * blocks // height
    columns = torch.arange(width) * blocks // width
    tiles = rows[:, None] * blocks + columns[None, :]
    return (torch.arange(channels)[:, None, None] * blocks**2 + tiles[None]).reshape(-1)
