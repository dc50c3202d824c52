"""Figures of joining are means over sites and seeds, and every row is of the same records."""

from __future__ import annotations

import json

import pytest
from studies.home import RESULTS, ROWS, at_hospitals, summed_up, table


def test_a_summary_is_about_means_over_sites_and_seeds() -> None:
    def site(accuracy: float) -> dict[str, tuple[float, float]]:
        return {row: (accuracy + i, 1.0 - 0.1 * i) for i, row in enumerate(ROWS)}

    runs = [
        {"part": "pictures", "setting": "a", "seed": seed, "sites": [site(50.0), site(60.0 + seed)]}
        for seed in (1, 3)
    ]
    [line] = summed_up(runs)
    assert line["seeds"] == [1, 3]
    assert line["accuracy"]["constant"] == pytest.approx(56.0)
    assert line["gain"] == pytest.approx(2.0)
    assert "| CIFAR-10, a | 56.0 (1.000) |" in table([line])


@pytest.mark.slow
def test_hospitals_gain_by_joining_against_what_they_have_at_home() -> None:
    [line] = summed_up([at_hospitals(8.0, 210)])
    assert line["accuracy"]["finished"] > line["accuracy"]["alone"] > line["accuracy"]["constant"] + 20
    assert line["log_loss"]["finished"] < line["log_loss"]["published"]


def test_the_page_shows_what_was_measured() -> None:
    page = (RESULTS.parents[1] / "docs/why-join.md").read_text(encoding="utf-8")
    assert table(json.loads(RESULTS.read_text(encoding="utf-8"))) in page
