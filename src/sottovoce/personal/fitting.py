"""Fits of one site's own records, without noise, drawn towards a known model: the inside of `finishing`.

A fit minimizes, over the parameters θ of a model,

    Σ_i w_i loss(θ; record i) + λ/(2m) · ‖θ − τ θ₀‖²        (the last bias is hardly drawn: 0.01 λ)

for many (τ, folds) at once and a path of λ, from strong to weak. A linear model is fitted in the space
that its inputs span, where the center τ θ₀ only shifts the outputs and every problem is small; any other
module is fitted as it is. What comes out is made of records and is private to their owner.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from sottovoce.data import Records
from sottovoce.models.parameters import logits, places
from sottovoce.models.tasks import Task

BIAS_STRENGTH = 0.01
"""How far the last bias is drawn, against all other parameters: shares of classes are a site's own."""
ITERATIONS = 100
ROUGH, FINE = 1e-2, 1e-3
"""How small a gradient must be against the first, to choose a fit and to keep one."""
MEMORY = 8
"""Pairs of steps and gradients behind the curvature of L-BFGS."""


class Choice(NamedTuple):
    """A fit among those that are tried: a proximal term of `strength` λ holds it near `share` τ of the
    published model."""

    share: float
    strength: float
    """∞: nothing is fitted."""


AS_PUBLISHED = Choice(1.0, math.inf)


@dataclass(frozen=True)
class Spanned:
    """Inputs (m, d) of a linear layer in the coordinates of their own span, with a constant for the bias."""

    coordinates: Tensor
    """(m, r + 1), the last column is one."""
    directions: Tensor
    """(r, d), orthonormal rows: a weight of the layer is `coefficients[:-1].T @ directions`."""
    squares: Tensor
    """(r + 1,), mean squares of the columns: how curved the loss is along each."""

    @classmethod
    def of(cls, x: Tensor) -> Spanned:
        flat = x.flatten(1)
        m, d = flat.shape
        gram = flat.T @ flat if d <= m else flat @ flat.T
        values, vectors = torch.linalg.eigh(gram.double())
        kept = values > values[-1].clamp_min(1e-30) * 1e-9
        roots = values[kept].sqrt()
        if d <= m:
            directions = vectors[:, kept].T.to(flat.dtype)
            coordinates = flat @ directions.T
        else:
            left = vectors[:, kept]
            coordinates = (left * roots).to(flat.dtype)
            directions = ((left / roots).T.to(flat.dtype)) @ flat
        ones = flat.new_ones(m, 1)
        squares = torch.cat([values[kept] / m, values.new_ones(1)]).to(flat.dtype)
        return cls(torch.cat([coordinates, ones], dim=1), directions, squares)

    def layer(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (outputs, d) and bias (outputs,) that a layer gains with coefficients (r + 1, outputs)."""
        return coefficients[:-1].T @ self.directions, coefficients[-1]


def _lbfgs(
    f: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, scale: Tensor, tolerance: float
) -> Tensor:
    """Minimizers of many convex problems (problems, …) side by side, from `start`, each with its own steps.

    `scale` approximates the inverse of the curvature's diagonal.
    """
    x = start.clone()
    value, gradient = f(x)
    goal = tolerance * (gradient * scale * gradient).flatten(1).sum(dim=1).sqrt().clamp_min(1e-12)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    active = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for _ in range(ITERATIONS):
        size = (gradient * scale * gradient).flatten(1).sum(dim=1).sqrt()
        active &= size > goal
        if not bool(active.any()):
            break
        direction = -_apply(pairs, gradient, scale)
        slope = _dot(direction, gradient)
        downhill = slope < 0
        direction = torch.where(_wide(downhill, x), direction, -scale * gradient)
        slope = torch.where(downhill, slope, _dot(direction, gradient))
        step = active.to(x.dtype)
        for _ in range(12):
            trial = x + _wide(step, x) * direction
            there, steep = f(trial)
            poor = active & (step > 0) & ~(there <= value + 1e-4 * step * slope + 1e-7 * value.abs())
            if not bool(poor.any()):
                break
            step = torch.where(poor, step / 2, step)
        else:
            active &= ~poor  # rounding hides any further gain
            trial = torch.where(_wide(poor, x), x, trial)
            there, steep = f(trial)
        moved, turned = trial - x, steep - gradient
        curved = _dot(moved, turned)
        usable = curved > 1e-12
        inverse = torch.where(usable, 1.0 / curved.clamp_min(1e-30), 0.0)
        pairs = [*pairs[1 - MEMORY :], (moved, turned, inverse)]
        x, value, gradient = trial, there, steep
    return x


def _apply(pairs: list[tuple[Tensor, Tensor, Tensor]], gradient: Tensor, scale: Tensor) -> Tensor:
    """The inverse curvature of the last steps, times a gradient (the two loops of L-BFGS)."""
    q, along = gradient, []
    for moved, turned, inverse in reversed(pairs):
        a = inverse * _dot(moved, q)
        q = q - _wide(a, q) * turned
        along.append(a)
    q = scale * q
    for (moved, turned, inverse), a in zip(pairs, reversed(along), strict=True):
        q = q + _wide(a - inverse * _dot(turned, q), q) * moved
    return q


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(dim=1)


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))


@dataclass(frozen=True, eq=False)
class Family(ABC):
    """The fits of one model to one site's records, all of them usable."""

    module: nn.Module
    published: Tensor
    records: Records
    task: Task

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs of the model at θ."""
        with torch.no_grad():
            return logits(self.module, theta, x)

    def on(self, records: Records) -> Self:
        """The same fits, as far as they were chosen, to other records."""
        return replace(self, records=records)

    @abstractmethod
    def out_of_fold(self, folds: Tensor, progress: Callable[[float], None]) -> dict[Choice, Tensor]:
        """For each fit that is tried, what records (m, outputs) get from fits to the other folds (m,)."""

    @abstractmethod
    def fit(self, choice: Choice) -> Tensor:
        """θ (d,) of the fit to all records."""


@dataclass(frozen=True, eq=False)
class LinearFamily(Family):
    """Fits of one linear layer: every share of the published model and a whole path of strengths together."""

    SHARES = (0.0, 0.3, 0.6, 1.0)
    STRENGTHS = tuple(3.0**e for e in range(5, -7, -1))
    LEAST = 5.0
    """λ m is at least so much: a handful of records can always be told apart, and then fits run away."""
    CURVATURE = 0.25
    """Of a cross-entropy in an output, at its most; a scale for steps, not a bound."""

    @cached_property
    def _spanned(self) -> Spanned:
        return Spanned.of(self.records.x)

    def out_of_fold(self, folds: Tensor, progress: Callable[[float], None]) -> dict[Choice, Tensor]:
        count = int(folds.max()) + 1
        kept = torch.stack([folds != fold for fold in range(count)]).float()
        weights = (kept / kept.sum(dim=1, keepdim=True)).repeat(len(self.SHARES), 1)
        offsets = self._centers(self.SHARES).repeat_interleave(count, dim=0)
        mine = torch.arange(len(folds))
        found: dict[Choice, Tensor] = {AS_PUBLISHED: self._centers((1.0,))[0]}
        strengths = [strength for strength in self.STRENGTHS if strength * len(folds) >= self.LEAST]
        best, since = [math.inf] * len(self.SHARES), [0] * len(self.SHARES)
        for done, (strength, fitted) in enumerate(
            zip(strengths, self._path(offsets, weights, strengths, ROUGH), strict=True), start=1
        ):
            outputs = (offsets + self._spanned.coordinates @ fitted).reshape(-1, count, *offsets.shape[1:])
            for place, (share, each) in enumerate(zip(self.SHARES, outputs, strict=True)):
                found[Choice(share, strength)] = each[folds, mine]
                loss = float(self.task.losses(each[folds, mine], self.records.y).mean())
                since[place] = 0 if loss < best[place] else since[place] + 1
                best[place] = min(best[place], loss)
            progress(done / len(strengths))
            if min(since) == 2:  # less strength only fits more noise, from every center
                break
        return found

    def fit(self, choice: Choice) -> Tensor:
        if math.isinf(choice.strength):
            return choice.share * self.published
        m = len(self.records)
        offsets, weights = self._centers((choice.share,)), self.records.x.new_full((1, m), 1.0 / m)
        path = [*[one for one in self.STRENGTHS if one > choice.strength][-1:], choice.strength]
        *_, fitted = self._path(offsets, weights, path, FINE)
        weight, bias = self._spanned.layer(fitted[0])
        return choice.share * self.published + torch.cat([weight.flatten(), bias])

    def _centers(self, shares: Sequence[float]) -> Tensor:
        """Returns what records get from shares of the published layer, (shares, m, outputs)."""
        published = self.outputs(self.published, self.records.x)
        return torch.stack([share * published for share in shares])

    def _path(
        self, offsets: Tensor, weights: Tensor, strengths: Sequence[float], tolerance: float
    ) -> Iterator[Tensor]:
        """Coefficients (problems, r + 1, outputs) at each strength λ, decreasing as given.

        `offsets` (problems, m, outputs) are the outputs of each problem's center, `weights` (problems, m)
        what each record counts there (0: it is left out).
        """
        z, y = self._spanned.coordinates, self.records.y
        problems, _, outputs = offsets.shape
        curvature = 1.0 if self.task.name == "number" else self.CURVATURE
        penalty = z.new_ones(z.shape[1])
        penalty[-1] = BIAS_STRENGTH
        d = z.new_zeros(problems, z.shape[1], outputs)
        for strength in (each / len(y) for each in strengths):
            scale = 1.0 / (curvature * self._spanned.squares + strength * penalty)

            def value_and_gradient(at: Tensor, strength: float = strength) -> tuple[Tensor, Tensor]:
                with torch.enable_grad():
                    out = (offsets + z @ at).requires_grad_()
                    each = self.task.losses(out.flatten(0, 1), y.repeat(problems, *(1,) * (y.dim() - 1)))
                    value = (each.reshape(problems, -1) * weights).sum(dim=1)
                    (slope,) = torch.autograd.grad(value.sum(), out)
                drawn = penalty[:, None] * at
                total = value.detach() + 0.5 * strength * (drawn * at).sum(dim=(1, 2))
                return total, z.T @ slope + strength * drawn

            d = _lbfgs(value_and_gradient, d, scale[:, None], tolerance)
            yield d


@dataclass(frozen=True, eq=False)
class ModuleFamily(Family):
    """Fits of any module by L-BFGS, stopped when records of the fold that is left out get worse.

    A model that bends has no scale to shrink along: a fit starts from the published parameters, or, alone,
    from the module's own beginning, and is drawn back to where it starts.
    """

    STRENGTHS = (10.0, 1.0, 0.1)
    SPELLS, SPELL = 8, 15
    """How often a fit is looked at, and the steps in between."""

    fresh: Tensor
    spells: dict[Choice, list[int]] = field(default_factory=dict)
    """After how many of them the fits to other folds were best."""

    def out_of_fold(self, folds: Tensor, progress: Callable[[float], None]) -> dict[Choice, Tensor]:
        count, done = int(folds.max()) + 1, 0
        choices = [Choice(share, strength) for share in (0.0, 1.0) for strength in self.STRENGTHS]
        published = self.outputs(self.published, self.records.x)
        found = {AS_PUBLISHED: published, **{choice: torch.empty_like(published) for choice in choices}}
        for choice in choices:
            for fold in range(count):
                out = folds == fold
                theta, spells = self._fitted(choice, self.records[~out], self.records[out], self.SPELLS)
                self.spells.setdefault(choice, []).append(spells)
                found[choice][out] = self.outputs(theta, self.records.x[out])
                done += 1
                progress(done / (len(choices) * count))
        return found

    def fit(self, choice: Choice) -> Tensor:
        if math.isinf(choice.strength):
            return self.published
        spells = sorted(self.spells[choice])[len(self.spells[choice]) // 2]
        return self._fitted(choice, self.records, None, spells)[0]

    def _fitted(
        self, choice: Choice, records: Records, judge: Records | None, spells: int
    ) -> tuple[Tensor, int]:
        """θ, and after how many spells: the best for `judge`, if there is one."""
        center = self.fresh if choice.share == 0 else self.published
        drawn = center.new_ones(len(center))
        last = list(places(self.module).items())[-1]
        if last[0].endswith("bias"):
            drawn[last[1].span] = BIAS_STRENGTH
        theta = center.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([theta], max_iter=self.SPELL, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.task.losses(logits(self.module, theta, records.x), records.y).mean()
            loss = loss + choice.strength / (2 * len(records)) * (drawn * (theta - center).square()).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        kept, best, at = center, math.inf, 0
        for spell in range(1, spells + 1):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
            now = theta.detach().clone()
            if not bool(now.isfinite().all()):
                break
            if judge is None:
                kept, at = now, spell
                continue
            loss = float(self.task.losses(self.outputs(now, judge.x), judge.y).mean())
            if loss >= best:
                break
            kept, best, at = now, loss, spell
        return kept, at


def open_family(module: nn.Module, published: Tensor, records: Records, task: Task, fresh: Tensor) -> Family:
    """The fits of a module; `fresh` are its parameters θ before any training."""
    layers = [m for m in module.modules() if not isinstance(m, nn.Sequential | nn.Flatten | nn.Identity)]
    if len(layers) == 1 and isinstance(layers[0], nn.Linear) and layers[0].bias is not None:
        return LinearFamily(module, published, records, task)
    return ModuleFamily(module, published, records, task, fresh)
