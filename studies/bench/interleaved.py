"""Contenders of a measurement are measured in alternation, so that other load meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping


def medians(
    contenders: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds by `clock` of each contender; the first round, which warms up, is left out.

    >>> medians({"nothing": lambda: None}, repeats=3, clock=lambda: 2.0)
    {'nothing': 0.0}
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, work in contenders.items():
            start = clock()
            work()
            if repeat:
                times[name].append(clock() - start)
    return {name: statistics.median(spent) for name, spent in times.items()}
