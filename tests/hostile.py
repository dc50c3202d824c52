"""An adversary's coefficients: at them a rounding that nobody sees decides about whole records.

Whoever sends coefficients may send any finite ones. `Hostile` is a recipe for parameters, a line for each of
a module's, of a few kinds: a huge direction that all outputs of a layer have in common, so that what tells
them apart, and what a softmax sends back through them, is what rounding left; signs that alternate and
cancel; tiny and denormal layers before them; biases that bring sums back to where an activation bends.
Recipes are drawn, changed a little, and climbed (`worst`). `moved` is what all of it is for: how far a
statistic of the same records moves, in parts of its charge, when they stand in another order or are taken
apart.

No bound on what a server may send is assumed: exponents go up to what float32 holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor, nn

from sottovoce.models.parameters import trainable

KINDS = ("plain", "common", "alternating", "one", "tiny", "denormal", "zero")
EXPONENTS = (-3, 0, 2, 4, 6, 7, 8, 9, 10, 12, 16, 20, 30)

Statistic = Callable[[Tensor], Tensor]
"""From numbers of records (m,), in an order, to their statistic with a denominator that stays."""


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
        close = random.choice((1.0, 1.0, 0.1, 1e-3, 10.0))
        return cls(random.choice(KINDS), random.choice(EXPONENTS), close, random.getrandbits(31))

    def values(self, shape: torch.Size) -> Tensor:
        """The parameter, float64."""
        generator = torch.Generator().manual_seed(self.seed)
        near = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) < 2:
            return self._bias(near)
        far, inputs = 10.0**self.exponent, max(1, near[0].numel())
        near = near * self.close
        direction = torch.randn(shape[1:], generator=generator, dtype=torch.float64)
        if self.kind == "common":
            return near + far * direction
        if self.kind == "alternating":  # what records have in common cancels
            signs = 1.0 - 2.0 * (torch.arange(inputs) % 2).view(shape[1:])
            return near + far * signs
        if self.kind == "one":  # one input stands above all others
            spike = torch.zeros(inputs, dtype=torch.float64)
            spike[self.seed % inputs] = far
            return near + spike.view(shape[1:])
        return near * self._scale / inputs**0.5

    def _bias(self, near: Tensor) -> Tensor:
        if self.kind in ("common", "alternating"):
            return torch.full_like(near, (1.0 if self.kind == "common" else -1.0) * 10.0**self.exponent)
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


def worst(
    module: nn.Module, ratio: Callable[[Tensor], float], random: Random, *, draws: int, steps: int
) -> tuple[float, Hostile]:
    """The largest ratio, and its recipe, of so many drawn ones and of steps uphill from the best of them."""
    drawn: Sequence[Hostile] = [Hostile.drawn(module, random) for _ in range(draws)]
    found = [(ratio(recipe.theta(module)), recipe) for recipe in drawn]
    best, at = max(found, key=lambda pair: pair[0])
    for _ in range(steps):
        recipe = at.changed(random)
        height = ratio(recipe.theta(module))
        if height >= best:
            best, at = height, recipe
    return best, at
