"""Axes contain every value that is plotted on them, with few round ticks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.report.chart import counting, linear, logarithmic

reals = st.lists(st.floats(-1e9, 1e9).map(lambda v: round(v, 6)), min_size=1, max_size=20)
percents = st.lists(st.integers(0, 10**6).map(lambda n: n / 10**4), min_size=1, max_size=20)
positives = st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=20)


@settings(derandomize=True, max_examples=300)
@given(reals, st.booleans())
def test_a_linear_axis_contains_its_values_and_has_few_ticks(values: list[float], zero: bool) -> None:
    scale = linear(values, zero=zero)
    assert all(-0.001 <= scale.at(value) <= 100.001 for value in values)
    assert 2 <= len(scale.ticks) <= 8
    assert list(scale.ticks) == sorted(set(scale.ticks))


@settings(derandomize=True, max_examples=300)
@given(percents)
def test_an_axis_of_percents_stays_between_0_and_100(values: list[float]) -> None:
    scale = linear(values, bounds=(0, 100))
    assert scale.low >= 0
    assert scale.high <= 100
    assert all(-0.001 <= scale.at(value) <= 100.001 for value in values)


@settings(derandomize=True, max_examples=300)
@given(positives)
def test_a_logarithmic_axis_contains_its_values_and_has_few_ticks(values: list[float]) -> None:
    scale = logarithmic(values)
    assert all(-0.001 <= scale.at(value) <= 100.001 for value in values)
    assert 2 <= len(scale.ticks) <= 8


@settings(derandomize=True, max_examples=300)
@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_an_axis_of_rounds_has_few_whole_ticks_between_the_first_and_the_last(rounds: list[int]) -> None:
    scale = counting(rounds)
    assert 1 <= len(scale.ticks) <= 8
    assert all(tick == int(tick) and min(rounds) <= tick <= max(rounds) for tick in scale.ticks)
    assert all(0 <= scale.at(value) <= 100 for value in rounds)
