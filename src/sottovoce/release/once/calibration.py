"""Calibration: probabilities that mean what they say, from one small release of each participant.

Noise and clipping leave a model too sure of itself, not sure enough, or sure of the wrong class. After
training each participant releases the mean of its records' first derivatives of the loss in one slope and one
shift for each output, with outputs s·z at a few public slopes s: where the derivative in the slope passes
zero, the model is as sure as it should be. From decoded releases alone the server finds one slope and shift
for everybody, newcomers included; and where models have no own parts, for each participant a shift of its
own, as far as participants differ by more than their noise. Slope and shift are multiplied into a model's
last layer, so that nothing but parameters has to travel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.data import Facts
from sottovoce.data.tables.schema import random_records
from sottovoce.errors import SottovoceError
from sottovoce.models.bases import Basis
from sottovoce.models.parameters import flat_parameters, logits, places
from sottovoce.models.tasks import Task, open_task
from sottovoce.plan.recipes import Calibrating
from sottovoce.release.once import Statistic


class Derivatives(Statistic):
    """First derivatives of a record's loss in slope and shifts, at a few slopes, bounded.

    With g the gradient of the loss in the outputs s·z, and u = z/(√2·reach), cut to norm 1/√2, a record gives
    (u·g, shifted·g) for each slope s.

    Classes: ‖g‖ ≤ √2 and −w/(√2·reach·s) ≤ u·g ≤ 1 with w eʷ = (K − 1)/e. For with d_k = s(z_y − z_k) and
    q_k = exp(−d_k), s(z_y − Σ p_k z_k) is −Σ q_k log q_k/(1 + Σ q_k) over k ≠ y; for a given Σ q_k it is
    largest where all q_k are the same, and there d(K − 1)/(eᵈ + K − 1) is at most w. Labels, with g times
    1/√K: ‖g‖ ≤ 1, and |u·g| ≤ 1/√2.
    """

    def __init__(self, task: Task, recipe: Calibrating) -> None:
        check_probabilities(task)
        self.recipe = recipe
        self.inputs = math.prod(task.facts.shape)
        self.outputs = outputs = task.facts.classes
        slopes = recipe.slopes
        self.size = len(slopes) * (outputs + 1)
        self.classes = task.name == "classes"
        apart, longest = 4.0 * recipe.shifted**2, 0.5 + recipe.shifted**2
        along, self._longer = [2.0] * len(slopes), math.sqrt(2.0) * recipe.reach
        if self.classes:
            apart, longest = 8.0 * recipe.shifted**2, 1.0 + 2.0 * recipe.shifted**2
            along = [(1.0 + _lowest(outputs) / (self._longer * slope)) ** 2 for slope in slopes]
        self.spread = math.sqrt(sum(along) + len(slopes) * apart)
        self.radius = math.sqrt(len(slopes) * longest)

    @property
    def centred(self) -> Tensor:
        """The projection (outputs, outputs) on shifts that change anything: classes have one too many."""
        eye = torch.eye(self.outputs, dtype=torch.float64)
        return eye - 1.0 / self.outputs if self.classes else eye

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        if logits is None:
            raise SottovoceError("a calibration needs its client's model: give its coefficients")
        z = logits.double()
        right = F.one_hot(y, self.outputs).double() if self.classes else y.double().clamp(0.0, 1.0)
        slopes = self.recipe.slopes
        return torch.cat([self._part(z, self.probabilities(s * z) - right) for s in slopes], dim=1)

    def _part(self, z: Tensor, gradient: Tensor) -> Tensor:
        gradient = gradient if self.classes else gradient * self.outputs**-0.5
        return torch.cat([self.along(z, gradient), self.recipe.shifted * gradient], dim=1)

    def along(self, z: Tensor, gradient: Tensor) -> Tensor:
        """u·g, (m, 1), of outputs z and gradients g (m, outputs)."""
        u = (z - z.mean(dim=1, keepdim=True) if self.classes else z) / self._longer
        u = u * (0.5**0.5 / u.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        product: Tensor = (u * gradient).sum(dim=1, keepdim=True)
        return product

    def probabilities(self, z: Tensor) -> Tensor:
        """Returns what outputs say, (m, outputs)."""
        return torch.softmax(z, dim=1) if self.classes else torch.sigmoid(z)


def check_probabilities(task: Task) -> None:
    """Refuses a task whose outputs say nothing of how likely anything is."""
    if task.name == "number":
        raise SottovoceError("calibration is about probabilities, and a number has none: set calibration=0")


def _lowest(outputs: int) -> float:
    """w with w eʷ = (outputs − 1)/e, by Newton's method from above.

    >>> round(_lowest(2), 6)
    0.278465
    """
    found = math.log(outputs)
    for _ in range(50):
        found -= (found - (outputs - 1) / math.exp(1.0 + found)) / (1.0 + found)
    return found


@lru_cache(maxsize=8)
def _typical(outputs: int, classes: bool, recipe: Calibrating) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what models of typical outputs release: public.

    For a grid of right slopes and of spreads of outputs: the logarithms of both, (points,) and (points,); the
    derivatives in the slope at each of the recipe's, (points, points, slopes), and in last place the second
    derivative in a shift at the right slope.
    """
    task = open_task(Facts((1,), outputs, task="classes" if classes else "labels"))
    statistic, points = Derivatives(task, recipe), recipe.points
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(recipe.draws, outputs, generator=generator, dtype=torch.float64)
    least, most = map(math.log, recipe.range)
    right = torch.linspace(least, most, points, dtype=torch.float64)
    middle, deviation = math.log(recipe.typical[0]), recipe.typical[1]
    spreads = middle + 2.5 * deviation * torch.linspace(-1, 1, points, dtype=torch.float64)
    found = torch.zeros(points, points, len(recipe.slopes) + 1, dtype=torch.float64)
    scale = 1.0 if classes else outputs**-0.5
    for column, spread in enumerate(spreads.exp()):
        z = spread * drawn
        told = [statistic.probabilities(slope * z) for slope in recipe.slopes]
        for row, slope in enumerate(right.exp()):
            true = statistic.probabilities(slope * z)
            along = [float(statistic.along(z, scale * (p - true)).mean()) for p in told]
            curvature = float((true * (1.0 - true)).sum(dim=1).mean()) * scale
            found[row, column] = torch.tensor([*along, curvature / float(statistic.centred.trace())])
    return right, spreads, found


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
        one model is for all (not `own`).
        """
        recipe, slopes = statistic.recipe, statistic.recipe.slopes
        sigmas, records = sigmas.double().cpu(), records.double().cpu()
        share = records / records.sum()
        parts = released.double().cpu().view(len(released), len(slopes), -1)
        mean, noise = torch.einsum("n,nsj->sj", share, parts), float((share * sigmas).square().sum())
        slope, curvature = _likely(statistic, mean[:, 0], noise)
        if slope > 1.0:
            slope **= 1.0 / (1.0 + recipe.optimism * statistic.inputs / float(records.sum()))
        at, most = _between(slope, slopes), recipe.most_shift
        gradients = (at @ parts[:, :, 1:]) / recipe.shifted @ statistic.centred
        gradient, blur = share @ gradients, at.norm() / recipe.shifted
        kept = recipe.spreads[1] ** 2 * curvature
        shift = -kept / (kept * curvature + float(blur) ** 2 * noise + 1e-9) * gradient
        shift = shift.clamp(-most, most)
        differing = torch.zeros(len(records), statistic.outputs, dtype=torch.float64)
        if own:
            differing = _own_shifts(statistic, gradients - gradient, curvature, blur * sigmas, records)
        return cls(slope, shift, (shift + differing).clamp(-most, most))


def _likely(statistic: Derivatives, along: Tensor, noise: float) -> tuple[float, float]:
    """The slope, and the second derivative in shifts there, from derivatives in the slope (slopes,).

    Slopes are weighed by how likely these derivatives are for models of typical outputs. Of all likely ones
    the harmonic mean is taken: a model that is too sure costs more than one that is not sure enough.
    """
    recipe = statistic.recipe
    right, spreads, typical = _typical(statistic.outputs, statistic.classes, recipe)
    apart = (along - typical[:, :, :-1]).square().sum(dim=2) / (noise + recipe.misfit**2)
    before = (right / recipe.spreads[0]).square()[:, None]
    before = before + ((spreads - math.log(recipe.typical[0])) / recipe.typical[1]).square()
    weight = torch.softmax(-0.5 * (apart + before).flatten(), dim=0).view_as(apart)
    slope = 1.0 / float((weight.sum(dim=1) / right.exp()).sum())
    return slope, max(1e-3, float((weight * typical[:, :, -1]).sum()))


def _between(slope: float, slopes: tuple[float, ...]) -> Tensor:
    """Returns how much each of `slopes` counts for what is between them (slopes,)."""
    known = torch.tensor(slopes, dtype=torch.float64).log()
    place = min(max(math.log(slope), float(known[0])), float(known[-1]))
    before = min(int((known <= place).sum()), len(known) - 1) - 1
    weight = torch.zeros(len(known), dtype=torch.float64)
    weight[before + 1] = (place - known[before]) / (known[before + 1] - known[before])
    weight[before] = 1.0 - weight[before + 1]
    return weight


def _own_shifts(
    statistic: Derivatives, differences: Tensor, curvature: float, sigmas: Tensor, records: Tensor
) -> Tensor:
    """Returns by how much each shift (n, outputs) differs, as far as noise alone does not explain it."""
    recipe = statistic.recipe
    steps, freedom = -differences / curvature, float(statistic.centred.trace())
    noise = (sigmas / curvature).square()
    noise = noise + 1.0 / curvature / records.clamp_min(1.0)  # which records there are
    sure = torch.where(records > 0, 1.0 / (noise + recipe.least_spread).square(), 0.0)
    found = steps.square().sum(dim=1) / freedom - noise
    by_chance = recipe.errors * math.sqrt(2.0 / freedom) * (sure * noise).norm()  # if nobody differs
    spread = min(recipe.most_spread, max(0.0, float(((sure * found).sum() - by_chance) / sure.sum())))
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
            "calibration, centring and bias_scale are about a last layer, and this model has no linear one "
            "that adapts as a whole: end it with one and set coefficients=0, or set calibration=0, "
            "centring=0 and bias_scale=1"
        )

    def folded(self, theta: Tensor, slope: float, shifts: Tensor) -> Tensor:
        """Parameters (n, d) whose outputs are slope · z + shift, for shifts (n, outputs)."""
        theta = theta.clone()
        theta[:, self.weight] *= slope
        theta[:, self.bias] = slope * theta[:, self.bias] + shifts.to(theta)
        return theta
