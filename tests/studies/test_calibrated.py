"""What the calibration gives: the page shows the committed figures, of runs that a study can make again."""

from __future__ import annotations

import json
from pathlib import Path

from studies.calibrated import EPSILONS, RESULTS, ROWS, SOME, table

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_shows_the_committed_figures() -> None:
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = table(figures).splitlines()[2:]
    assert lines
    page = PAGE.read_text(encoding="utf-8")
    for line in lines:
        assert line in page, line


def test_every_calibrated_model_stays_below_the_constant_of_its_site() -> None:
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {one["table"] for one in figures} == set(SOME)
    assert {one["epsilon"] for one in figures} == set(EPSILONS)
    for one in figures:
        assert set(ROWS) <= set(one)
        assert one["calibrated"] < one["constant"], one
