"""An adversary's coefficients: at them a rounding that nobody sees decides about whole records.

Whoever sends coefficients may send any; clients cut them to a public length. `Hostile` is a recipe for the
parameters of a module, a line for each of them, of a few kinds: a huge direction that all outputs of a layer
have in common, so that what tells them apart, and what a softmax sends back through them, is what rounding
left; signs that alternate and cancel; one input above all others; tiny and denormal layers before them.
Recipes are drawn, changed a little, and climbed (`worst`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor, nn

from sottovoce.models import Model
from sottovoce.models.parameters import trainable

KINDS = ("plain", "common", "alternating", "one", "tiny", "denormal", "zero")
EXPONENTS = (-3, 0, 2, 4, 6, 7, 8, 9, 10, 12, 16, 20, 30)


@dataclass(frozen=True)
class Line:
    """How one parameter is made."""

    kind: str
    exponent: int
    close: float
    """How far apart a layer's outputs are, beside what they have in common."""
    seed: int

    @classmethod
    def drawn(cls, random: Random) -> Line:
        """Any of them."""
        close = random.choice((1.0, 1.0, 0.1, 1e-3, 10.0))
        return cls(random.choice(KINDS), random.choice(EXPONENTS), close, random.getrandbits(31))

    def values(self, shape: torch.Size) -> Tensor:
        """The parameter, float64."""
        generator = torch.Generator().manual_seed(self.seed)
        near = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) < 2:
            return self._bias(near)
        far, inputs = float(f"1e{self.exponent}"), max(1, near[0].numel())
        near = near * self.close
        direction = torch.randn(shape[1:], generator=generator, dtype=torch.float64)
        if self.kind == "common":
            return near + far * direction
        if self.kind == "alternating":  # what records have in common cancels
            signs: Tensor = 1.0 - 2.0 * (torch.arange(inputs) % 2).double()
            return near + far * signs.reshape(shape[1:])
        if self.kind == "one":  # one input stands above all others
            spike = torch.zeros(inputs, dtype=torch.float64)
            spike[self.seed % inputs] = far
            return near + spike.view(shape[1:])
        return near * (self._scale / math.sqrt(inputs))

    def _bias(self, near: Tensor) -> Tensor:
        if self.kind in ("common", "alternating"):
            return torch.full_like(
                near, float(f"1e{self.exponent}") * (1.0 if self.kind == "common" else -1.0)
            )
        return near * self._scale

    @property
    def _scale(self) -> float:
        return {"tiny": 1e-6, "denormal": 1e-40, "zero": 0.0}.get(self.kind, 1.0)


@dataclass(frozen=True)
class Hostile:
    """Parameters of a module, one line for each."""

    lines: tuple[Line, ...]

    @classmethod
    def drawn(cls, module: nn.Module, random: Random) -> Hostile:
        """A recipe of any kinds, with common directions more often than not in the last two weights."""
        lines = [Line.drawn(random) for _ in trainable(module)]
        weights = [i for i, parameter in enumerate(trainable(module)) if parameter.ndim > 1]
        for place in weights[-2:]:
            if random.random() < 0.7:
                lines[place] = replace(lines[place], kind="common", exponent=random.choice((6, 7, 8, 9)))
        for place, line in enumerate(lines):
            if place not in weights and random.random() < 0.7:
                lines[place] = replace(line, kind="zero")
            elif place in weights[:-2] and random.random() < 0.6:
                lines[place] = replace(line, kind="plain")
        return cls(tuple(lines))

    def changed(self, random: Random) -> Hostile:
        """One line of it made anew, or made a little otherwise."""
        lines, place = list(self.lines), random.randrange(len(self.lines))
        fresh = Line.drawn(random)
        what = random.choice(("all", "kind", "exponent", "close", "seed"))
        lines[place] = fresh if what == "all" else replace(lines[place], **{what: getattr(fresh, what)})
        return Hostile(tuple(lines))

    def theta(self, module: nn.Module) -> Tensor:
        """The parameters as one float32 vector, each of them finite."""
        parts = [
            line.values(p.shape).flatten() for line, p in zip(self.lines, trainable(module), strict=True)
        ]
        return torch.cat(parts).float().nan_to_num()

    def coefficients(self, model: Model) -> Tensor:
        """The coefficients (k,) that come nearest to them, float32."""
        moved = self.theta(model.module).double() - model.reference.double().cpu()
        return model.basis.coordinates(moved).float().nan_to_num()


def worst(
    module: nn.Module, ratio: Callable[[Hostile], float], random: Random, *, draws: int, steps: int
) -> tuple[float, Hostile]:
    """The largest ratio, and its recipe, of so many drawn ones and of steps uphill from the best of them."""
    drawn = [Hostile.drawn(module, random) for _ in range(draws)]
    best, at = max(((ratio(recipe), recipe) for recipe in drawn), key=lambda pair: pair[0])
    for _ in range(steps):
        recipe = at.changed(random)
        height = ratio(recipe)
        if height >= best:
            best, at = height, recipe
    return best, at
