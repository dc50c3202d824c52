"""Leaving one set out: the others choose, and the set that was left out is judged."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.six_sets import DEFAULT, GRID, RESULTS, table


def test_the_default_is_a_point_of_the_grid() -> None:
    assert DEFAULT in GRID


def test_a_set_has_no_say_in_the_point_at_which_it_is_judged() -> None:
    chosen, favourite = GRID.index((2.8, 0.5)), GRID.index((1.4, 1.0))
    flat = [50.0] * len(GRID)
    common, odd = list(flat), list(flat)
    common[chosen] = 60.0
    odd[favourite] = 99.0
    lines = table({"a": common, "b": common, "odd": odd}).splitlines()
    assert lines[-1] == "| odd | 2.8, 0.5 | 50.0 | 50.0 | 99.0 | 49.0 |"
    assert "| 1.4, 1 | 50.0 |" in lines[2]


def test_the_documented_table_is_the_measured_one() -> None:
    page = Path(__file__).parents[2] / "docs" / "benchmarks.md"
    assert table(json.loads(RESULTS.read_text(encoding="utf-8"))) in page.read_text(encoding="utf-8")
