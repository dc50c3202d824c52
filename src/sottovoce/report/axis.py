"""Where a value lies along an axis, in percent of its length, with round ticks on the way.

Positions are shares of the plot and not pixels, so that a figure fits a phone and a desk alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MOST_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis from `low` to `high`, with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Position in percent, 0 at `low` and 100 at `high`, to a thousandth.

        >>> linear([0, 95]).at(25.0), logarithmic([1, 100]).at(10.0)
        (25.0, 50.0)
        """
        low, high, point = self.low, self.high, value
        if self.log:
            low, high, point = math.log10(low), math.log10(high), math.log10(value)
        return round(100 * (point - low) / (high - low), 3)


def linear(
    values: Iterable[float], *, bounds: tuple[float, float] = (-math.inf, math.inf), zero: bool = False
) -> Axis:
    """A linear axis around the values: ticks at multiples of 1, 2 or 5 · 10ⁿ, ends at ticks.

    >>> linear([3.0, 77.0], bounds=(0, 100)).ticks
    (0.0, 20.0, 40.0, 60.0, 80.0)
    >>> linear([4.0, 4.0], zero=True).ticks
    (0.0, 1.0, 2.0, 3.0, 4.0)
    """
    points = [*values, *([0.0] if zero else [])]
    low, high = min(points), max(points)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size:
        low, high = low - size / 2, high + size / 2 if size else 1.0
    step = _round_step((high - low) / (MOST_TICKS - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_round(n * step) for n in range(first, last + 1))
    ticks = tuple(tick for tick in ticks if bounds[0] <= tick <= bounds[1])
    return Axis(ticks[0], ticks[-1], ticks)


def counting(values: Iterable[float]) -> Axis:
    """An axis of whole numbers, such as rounds, from the first to the last, with whole ticks between.

    >>> counting([1, 45]).ticks, counting([1, 3]).ticks, counting([1]).ticks
    ((10.0, 20.0, 30.0, 40.0), (1.0, 2.0, 3.0), (1.0,))
    """
    points = list(values)
    first, last = min(points), max(points)
    if first == last:
        return Axis(first - 1, last + 1, (float(first),))
    step = max(_round_step((last - first) / (MOST_TICKS - 1)), 1.0)
    ticks = (n * step for n in range(math.ceil(first / step), math.floor(last / step) + 1))
    return Axis(first, last, tuple(ticks))


def _round(tick: float) -> float:
    """Without the last digits, where 3 · 0.1 is 0.30000000000000004."""
    return float(f"{tick:.12g}")


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def logarithmic(values: Iterable[float]) -> Axis:
    """A logarithmic axis around positive values: ticks at powers of ten, or 1, 2, 5 · 10ⁿ when few.

    >>> logarithmic([30, 40_000]).ticks
    (10.0, 100.0, 1000.0, 10000.0, 100000.0)
    >>> logarithmic([0.3, 1.2]).ticks
    (0.2, 0.5, 1.0, 2.0)
    """
    points = list(values)
    low, high = min(points), max(points)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    fine = [_round(m * 10.0**n) for n in range(first, last + 1) for m in (1, 2, 5)]
    inside = _cover(fine, low, high)
    if len(inside) > MOST_TICKS:
        inside = _cover(fine[::3], low, high)
    every = math.ceil((len(inside) - 1) / MOST_TICKS)
    return Axis(inside[0], inside[-1], inside[:: max(every, 1)], log=True)


def _cover(ticks: list[float], low: float, high: float) -> tuple[float, ...]:
    """The ticks from the last one at or below `low` to the first one at or above `high`, at least two."""
    start = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    stop = min(i for i, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return tuple(ticks[start : max(stop, start + 1) + 1])
