"""What repeated splits say is as sure as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sottovoce.data import Facts
from sottovoce.models.tasks import open_task
from sottovoce.run.splits import STATISTICS, Scored, Split, _interval, _reach, gain_of


def test_the_interval_of_a_mean_over_sites_is_that_of_the_mean_of_each_split() -> None:
    """Where splits differ by more than sites for themselves do: they share a model."""
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(7, 5)) + 9 * np.arange(5)
    low, high = _interval(1.0, gains.tolist(), [0.1] * 7, STATISTICS["mean"]) or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(_reach(gains.mean(axis=0).tolist(), 0.0))
    assert (high + low) / 2 == pytest.approx(1.0)


def gains_of(gains: Any, records: int) -> dict[str, Any]:
    """What is told of gains (sites, splits) of sites with so many held-out records each."""
    task = open_task(Facts((1,), 2))
    splits = [
        Split(
            home_alone={str(site): Scored(0.0, 1.0, 1.0, records) for site in range(len(gains))},
            finished={
                str(site): Scored(float(gain), 1.0, 1.0, records) for site, gain in enumerate(of_split)
            },
        )
        for of_split in np.transpose(gains)
    ]
    return gain_of(splits, task)


@pytest.mark.parametrize(("sites", "splits"), [(4, 2), (139, 3), (139, 5)])
def test_splits_that_agree_by_chance_make_no_summary_certain(sites: int, splits: int) -> None:
    """A rehearsal once said: median +0.0 points (+0.0 to +0.0)."""
    told = gains_of(np.zeros((sites, splits)), records=10)
    for name in STATISTICS:
        low, high = told[f"{name}_interval"]
        assert low < -1.0 / sites**0.5 < 0.0 < 1.0 / sites**0.5 < high
    assert told["sites_undecided"] == sites


def test_a_site_by_itself_is_as_sure_as_its_summary() -> None:
    told = gains_of(np.array([[3.0, 5.0, 4.0]]), records=20)
    site = told["per_client"]["0"]
    low, high = told["median_interval"]
    assert [low, high] == pytest.approx([site["low"], site["high"]], abs=0.5)  # a thousand draws


def test_the_worst_tenth_reaches_no_further_up_than_the_median() -> None:
    for seed in range(20):
        gains = np.random.default_rng(seed).normal(0, 10, (139, 3)).round(-1)
        told = gains_of(gains, records=10)
        (_, worst), (_, median) = told["worst_decile_interval"], told["median_interval"]
        assert told["worst_decile"] <= worst <= median


def test_an_interval_of_a_median_holds_what_it_should_nineteen_times_in_twenty() -> None:
    """Sites that gain nothing: of 200 rehearsals, each with its own records, few claim anything else.

    Splits that do not overlap are surer than we say, and one in a thousand claims; at 2 % more than 20 of 200
    would come less than once in a million times.
    """
    rng, claims = np.random.default_rng(0), 0
    for _ in range(200):
        low, high = gains_of(rng.normal(0, 3, (30, 3)), records=30)["median_interval"]
        claims += not low <= 0 <= high
    assert claims <= 20
