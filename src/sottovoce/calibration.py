"""Calibration: probabilities that mean what they say, from one small release of each participant.

Noise and clipping leave a model too sure of itself, or of the wrong class. After training each participant
releases the mean of the first and second derivatives of its records' losses in one slope and one shift for
each output, with outputs s·z + t at a public slope s₀ and t = 0. From decoded releases alone the server takes
one Newton step, damped by the noise that it knows: one slope and shift for everybody, newcomers included; and
where models have no own parts, for each participant a shift of its own, as far as participants differ by more
than their noise. Slope and
shift are multiplied into a model's last layer, so that nothing but parameters has to travel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.context import Statistic
from sottovoce.data import Facts
from sottovoce.data.description import random_records
from sottovoce.errors import SottovoceError
from sottovoce.models import flat_parameters, logits, places
from sottovoce.subspace import Basis
from sottovoce.tasks import Task

SLOPE = 0.6
"""s₀: the loss is convex in the slope and flat where a model is too sure, so that a step from below does not
pass the minimum."""
EXPECTED, SLOPE_SPREAD, SHIFT_SPREAD = 0.9, 0.3, 0.2
"""What slopes and shifts are taken to be where noise hides them: mean, and standard deviations."""
REACH = 3.0
"""Outputs count in the derivative of the slope up to this norm. They do not depend on the target, so that a
calibrated model stays as it is whatever the bound."""
CURVATURE_SPREAD, FACTOR = 0.05, 4.0
"""How far second derivatives may lie from those of typical outputs: as a deviation, and as a factor."""
TYPICAL = 2.0
"""The spread of outputs that are typical before any is seen."""
SLOPES, MOST_SHIFT = (0.25, 4.0), 3.0
ERRORS, MOST_SPREAD = 3.0, 1.0
"""Participants differ by what is beyond so many standard errors of noise, by this variance at most."""
_LONGER = math.sqrt(2.0) * REACH


class Derivatives(Statistic):
    """First and second derivatives of a record's loss in slope and shifts, bounded.

    With g the gradient of the loss in the outputs s₀z, H its Hessian, and u = s₀z/(√2·REACH), cut to norm
    1/√2, a record gives (u·g, g) and the symmetric matrix [u, I]ᵀ H [u, I], as a vector of the same norm.

    Classes: ‖g‖ ≤ √2 and −log K/(√2·REACH) ≤ u·g ≤ 1, for Σ p_k z_k − z_y ≥ −entropy of p; ‖H‖_F ≤ ½, for
    ‖H‖_F² = Σp² − 2Σp³ + (Σp²)² ≤ Σp² − Σp³ ≤ ¼; so the matrix is at most ¾, and two of them, none of which
    has a negative eigenvalue, are at most √2·¾ apart. Labels, with g and H times √K: ‖g‖ ≤ 1 and ‖H‖_F ≤ ¼.
    """

    def __init__(self, task: Task) -> None:
        if task.name == "number":
            raise SottovoceError(
                "calibration is about probabilities, and a number has none: set calibration=0"
            )
        self.outputs = outputs = task.facts.classes
        self.size = outputs + 1 + (outputs + 1) * (outputs + 2) // 2
        self._classes = task.name == "classes"
        apart, along, longest = 4.0, 2.0, 1.5
        if self._classes:
            apart, along, longest = 8.0, (1.0 + math.log(outputs) / _LONGER) ** 2, 3.0
        self.spread = math.sqrt(apart + along + 2 * 0.75**2)
        self.radius = math.sqrt(longest + 0.75**2)

    @property
    def centred(self) -> Tensor:
        """The projection (outputs, outputs) on shifts that change anything: classes have one too many."""
        eye = torch.eye(self.outputs, dtype=torch.float64)
        return eye - 1.0 / self.outputs if self._classes else eye

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        if logits is None:
            raise SottovoceError("a calibration needs its client's model: give its coefficients")
        z = SLOPE * logits.double()
        if not self._classes:
            p, scale = torch.sigmoid(z), self.outputs**-0.5
            gradient = scale * (p - y.double().clamp(0.0, 1.0))
            hessian = torch.diag_embed(scale * p * (1 - p))
        else:
            p = torch.softmax(z, dim=1)
            z = z - z.mean(dim=1, keepdim=True)
            gradient = p - F.one_hot(y, self.outputs)
            hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        u = z / _LONGER
        u = u * (0.5**0.5 / u.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        frame = torch.cat([u[:, :, None], torch.eye(self.outputs).to(u).expand(len(u), -1, -1)], dim=2)
        first = (gradient[:, None, :] @ frame)[:, 0]
        return torch.cat([first, self._packed(frame.mT @ hessian @ frame)], dim=1)

    def unpacked(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """First derivatives (n, outputs + 1) and second ones (n, outputs + 1, outputs + 1)."""
        side = self.outputs + 1
        matrix = vectors.new_zeros(len(vectors), side, side)
        row, column = torch.triu_indices(side, side)
        matrix[:, row, column] = vectors[:, side:] / self._weights(row, column)
        matrix = matrix + matrix.triu(1).mT
        return vectors[:, :side], matrix

    def _packed(self, matrices: Tensor) -> Tensor:
        row, column = torch.triu_indices(self.outputs + 1, self.outputs + 1)
        return matrices[:, row, column] * self._weights(row, column).to(matrices)

    @staticmethod
    def _weights(row: Tensor, column: Tensor) -> Tensor:
        return torch.where(row == column, 1.0, math.sqrt(2.0)).double()

    def typical(self) -> Tensor:
        """Second derivatives that outputs of a typical spread would have: public."""
        generator = torch.Generator().manual_seed(0)
        z = TYPICAL * torch.randn(1000, self.outputs, generator=generator)
        y = torch.zeros(1000).long() if self._classes else torch.zeros(1000, self.outputs)
        return self.unpacked(self.per_record(z, y, z))[1].mean(dim=0)


@dataclass(frozen=True)
class Scaling:
    """What outputs become: slope · z + shift; `shift` (outputs,) is for newcomers, `shifts` (n, outputs) are
    the participants' own."""

    slope: float
    shift: Tensor
    shifts: Tensor

    @classmethod
    def of(
        cls, statistic: Derivatives, released: Tensor, sigmas: Tensor, records: Tensor, *, own: bool = True
    ) -> Scaling:
        """From decoded releases (n, size) with their σ (n,), which count by their numbers of records (n,).

        A participant with 0 records has released nothing, and gets the shift of everybody; so do all where
        their models have `own` parts already.
        """
        released, sigmas, records = released.double().cpu(), sigmas.double().cpu(), records.double().cpu()
        share = records / records.sum()
        first, second = statistic.unpacked(released)
        noise = float((share * sigmas).square().sum())
        mean, curvature = share @ first, torch.einsum("n,nij->ij", share, second)
        jacobian = _plausible(curvature, statistic.typical(), noise)
        jacobian[:, 0] *= _LONGER
        side = statistic.outputs + 1
        prior = torch.zeros(side, side, dtype=torch.float64)
        prior[0, 0] = (SLOPE_SPREAD / SLOPE) ** 2
        prior[1:, 1:] = SHIFT_SPREAD**2 * statistic.centred
        expected = torch.zeros(side, dtype=torch.float64)
        expected[0] = EXPECTED / SLOPE - 1.0
        gain = prior @ jacobian.T
        covariance = jacobian @ gain + (noise + 1e-6) * torch.eye(side, dtype=torch.float64)
        found = expected - gain @ torch.linalg.solve(covariance, mean + jacobian @ expected)
        least, most = SLOPES
        slope = min(max(SLOPE * (1.0 + float(found[0])), least), most)
        shift = found[1:].clamp(-MOST_SHIFT, MOST_SHIFT)
        differing = torch.zeros(len(records), statistic.outputs, dtype=torch.float64)
        if own:
            differing = _own_shifts(statistic, first[:, 1:] - mean[1:], jacobian[1:, 1:], sigmas, records)
        return cls(slope, shift, (shift + differing).clamp(-MOST_SHIFT, MOST_SHIFT))


def _plausible(curvature: Tensor, typical: Tensor, noise: float) -> Tensor:
    """Released second derivatives, drawn to typical ones by their noise and kept within a factor of them."""
    kept = CURVATURE_SPREAD**2 / (CURVATURE_SPREAD**2 + noise)
    mixed = kept * curvature + (1.0 - kept) * typical
    values, vectors = torch.linalg.eigh(typical + 1e-6 * torch.eye(len(typical), dtype=torch.float64))
    root = vectors * values.clamp_min(1e-9).sqrt()
    inverse = (vectors / values.clamp_min(1e-9).sqrt()).T
    ratios, directions = torch.linalg.eigh(inverse @ mixed @ inverse.T)
    side = root @ directions
    plausible: Tensor = (side * ratios.clamp(1.0 / FACTOR, FACTOR)) @ side.T
    return plausible


def _own_shifts(
    statistic: Derivatives, differences: Tensor, hessian: Tensor, sigmas: Tensor, records: Tensor
) -> Tensor:
    """What each participant's shift (n, outputs) differs by, as far as noise alone does not explain it."""
    inverse = torch.linalg.pinv(statistic.centred @ hessian @ statistic.centred)
    steps = -differences @ inverse.T
    freedom = float(statistic.centred.trace())
    noise = sigmas.square() * float(inverse.square().sum()) / freedom
    noise = noise + float(inverse.trace()) / freedom / records.clamp_min(1.0)  # which records there are
    sure = torch.where(records > 0, 1.0 / (noise + 0.3).square(), 0.0)
    found = steps.square().sum(dim=1) / freedom - noise
    by_chance = ERRORS * math.sqrt(2.0 / freedom) * (sure * noise).norm()  # if nobody differs
    spread = min(MOST_SPREAD, max(0.0, float(((sure * found).sum() - by_chance) / sure.sum())))
    kept = torch.where(records > 0, spread / (spread + noise + 1e-9), 0.0)
    shifts: Tensor = kept[:, None] * steps
    return shifts


@dataclass(frozen=True)
class LastLayer:
    """Where the weights and biases of a model's outputs lie in θ, all of which adapt."""

    weight: slice
    bias: slice
    outputs: int

    @classmethod
    def of(cls, module: nn.Module, basis: Basis, facts: Facts) -> LastLayer:
        """Refuses a model whose last two parameters do not decide slope and shift of its outputs."""
        spans = list(places(module).values())[-2:]
        if basis.kind == "identity" and len(spans) == 2 and spans[1].shape == (facts.classes,):
            found = cls(spans[0].span, spans[1].span, facts.classes)
            generator = torch.Generator().manual_seed(0)
            theta = flat_parameters(module)
            theta = theta + 0.1 * torch.randn(theta.shape, generator=generator).to(theta)
            x = random_records(facts, 4, generator).to(theta.device)
            shift = torch.arange(facts.classes).to(theta)
            with torch.no_grad():
                scaled = logits(module, found.folded(theta[None], 0.5, shift[None])[0], x)
                if torch.allclose(scaled, 0.5 * logits(module, theta, x) + shift, rtol=1e-4, atol=1e-5):
                    return found
        raise SottovoceError(
            "calibration scales and shifts a model's last layer, and this model has no linear one that "
            "adapts as a whole: end it with one and set coefficients=0, or set calibration=0"
        )

    def folded(self, theta: Tensor, slope: float, shifts: Tensor) -> Tensor:
        """Parameters (n, d) whose outputs are slope · z + shift, for shifts (n, outputs)."""
        theta = theta.clone()
        theta[:, self.weight] *= slope
        theta[:, self.bias] = slope * theta[:, self.bias] + shifts.to(theta)
        return theta
