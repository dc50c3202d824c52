"""Lines are drawn through the recorded values, and the bytes so far end at the result's total."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.report.chart import logarithmic
from sottovoce.report.run import write_report
from sottovoce.report.table import data_size

from .example import example_result, example_rounds, write_example
from .test_run import Outline


def elements_of(page: Outline, title: str) -> list[tuple[str, dict[str, str | None]]]:
    """The elements from the plot with this title to the next plot."""
    starts = [i for i, (_, attributes) in enumerate(page.elements) if "data-stops" in attributes]
    start = next(i for i in starts if page.elements[i][1]["aria-label"] == title)
    return page.elements[start : min((i for i in starts if i > start), default=None)]


def test_bytes_so_far_end_at_the_total_of_the_result(tmp_path: Path) -> None:
    uplink = example_result()["uplink"]
    plot = elements_of(Outline(write_report(write_example(tmp_path))), "Bytes so far")
    position, words = json.loads(plot[0][1]["data-stops"] or "")[-1]
    assert position == 100
    assert words == f"round 100: FP32 {data_size(uplink['fp32_bytes'])}, Sent {data_size(uplink['bytes'])}"


def test_a_run_that_averages_says_why_its_curve_does_not_end_at_its_result(tmp_path: Path) -> None:
    run = write_example(tmp_path)
    assert "average over the last rounds" not in Outline(write_report(run)).text
    (run / "plan.toml").write_text("averaging = 0.3\n")
    assert "average over the last rounds" in Outline(write_report(run)).text


def test_lines_pass_through_the_recorded_values(tmp_path: Path) -> None:
    plot = elements_of(Outline(write_report(write_example(tmp_path))), "Noise against signal")
    lines = [attributes["points"] or "" for name, attributes in plot if name == "polyline"]
    rounds = example_rounds()
    norms = [[line[key] for line in rounds] for key in ("signal_norm", "noise_norm")]
    scale = logarithmic([norm for series in norms for norm in series])
    for line, series in zip(lines, norms, strict=True):
        heights = [100 - float(point.split(",")[1]) for point in line.split()]
        shares = [height / 100 for height in heights]
        drawn = [scale.low * (scale.high / scale.low) ** share for share in shares]
        assert drawn == pytest.approx(series, rel=1e-3)
