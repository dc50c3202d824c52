"""Centring: inputs measured from their mean, so that a clip bound is spent on how records differ.

A gradient of a linear model is δ ⊗ x, and what all records have in common is in every one of them: where
columns lie at one end of their bounds it is most of what a clip bound allows. So each participant releases,
once and before the first round, the mean of its inputs, bounded. From decoded releases alone the server makes
one centre c, and in rounds a client trains the model at inputs x − c: whatever c is, each record's gradient
is cut to the clip bound as ever. A published model is of inputs as they are: W(x − c) + b = Wx + (b − Wc).
Only a linear model that starts at weights of 0 can be trained so.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sottovoce.data import Facts, Records
from sottovoce.data.tables.schema import random_records
from sottovoce.errors import SottovoceError
from sottovoce.models.parameters import flat_parameters, logits
from sottovoce.release.once import Statistic
from sottovoce.release.once.calibration import LastLayer


class Inputs(Statistic):
    """A record's inputs, cut to the norm `longest`."""

    def __init__(self, inputs: int, longest: float) -> None:
        self.size = inputs
        self.spread, self.radius = 2 * longest, longest

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        return cut(x.double().flatten(1), self.radius)


def cut(vectors: Tensor, longest: float) -> Tensor:
    """Vectors (…, size), those longer than `longest` shortened to it.

    >>> cut(torch.tensor([0.0, 2.6], dtype=torch.float64), 1.3).tolist()
    [0.0, 1.3]
    """
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-30)
    shortened: Tensor = vectors * (longest / lengths).clamp_max(1.0)
    return shortened


def centre(released: Tensor, sigmas: Tensor, records: Tensor, longest: float) -> Tensor:
    """The centre (size,) from decoded releases (n, size) with their σ (n,) and numbers of records (n,).

    It keeps of their mean what noise alone does not explain (James and Stein); who has 0 records has released
    nothing.

    >>> two = torch.tensor([[0.6, 0.0], [0.8, 0.0]])
    >>> [round(float(x), 6) for x in centre(two, torch.tensor([0.0, 0.0]), torch.tensor([3, 1]), 1.3)]
    [0.65, 0.0]
    >>> centre(two, torch.tensor([2.0, 2.0]), torch.tensor([3, 1]), 1.3).tolist()
    [0.0, 0.0]
    """
    share = records.double() / records.sum()
    mean = share @ released.double()
    noise = released.shape[1] * (share * sigmas.double()).square().sum()
    kept = (1.0 - noise / mean.square().sum().clamp_min(1e-30)).clamp_min(0.0)
    return cut(kept * mean, longest).float()


def measured_from(records: Records, at: Tensor, longest: float) -> Records:
    """Records whose inputs are measured from a centre: one that is too long to be one is shortened."""
    there = cut(at, longest).to(records.x).view(records.x.shape[1:])
    return replace(records, x=records.x - there, copied=False)


def told_apart(sent: Tensor, size: int, records: Records, longest: float) -> tuple[Tensor, Records]:
    """Coefficients (size,) of those that a server sends, and the records that they are for: measured from the
    centre behind them, where there is one."""
    return sent[:size], records if len(sent) == size else measured_from(records, sent[size:], longest)


def as_published(theta: Tensor, layer: LastLayer, at: Tensor) -> Tensor:
    """Parameters (n, d) for inputs as they are, of those for inputs measured from a centre."""
    weight = theta[:, layer.weight].view(len(theta), layer.outputs, len(at))
    return layer.folded(theta, 1.0, -(weight @ at.to(theta)))


def check_linear(module: nn.Module, layer: LastLayer, facts: Facts) -> None:
    """Refuses a model that cannot be published as one of inputs as they are, or whose weights do not start
    at 0: they were made for inputs as they are."""
    reference = flat_parameters(module)
    generator = torch.Generator().manual_seed(0)
    x = random_records(facts, 4, generator).to(reference)
    at = torch.randn(x[0].numel(), generator=generator).to(reference)
    weight = reference[layer.weight]
    if len(weight) == layer.outputs * len(at) and not weight.any():
        theta = reference + torch.randn(reference.shape, generator=generator).to(reference)
        with torch.no_grad():
            told = logits(module, as_published(theta[None], layer, at)[0], x)
            trained = logits(module, theta, x - at.view(x[0].shape))
        if torch.allclose(told, trained, rtol=1e-4, atol=1e-4):
            return
    raise SottovoceError(
        "centring is of the inputs of a linear model that starts at weights of 0: set model=linear, or "
        "centring=0"
    )
