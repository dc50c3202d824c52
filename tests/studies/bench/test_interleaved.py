"""Measurements in turn."""

from __future__ import annotations

from studies.bench.interleaved import medians


def test_contenders_alternate_and_the_warm_up_does_not_count() -> None:
    now, order, costs = [0.0], [], {"a": iter([90, 1, 2, 30]), "b": iter([90, 4, 4, 4])}

    def work(name: str):
        def run() -> None:
            order.append(name)
            now[0] += next(costs[name])

        return run

    found = medians({name: work(name) for name in costs}, repeats=3, clock=lambda: now[0])
    assert order == ["a", "b"] * 4
    assert found == {"a": 2, "b": 4}
