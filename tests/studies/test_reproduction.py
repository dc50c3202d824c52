"""A reproduction shows ours beside the published values, and each difference in words and color."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from studies.figures import bars
from studies.reproduction import write_reproduction

from sottovoce.errors import SottovoceError
from sottovoce.report.chart import linear, svg
from tests.report.test_chart import SPACE, texts
from tests.report.test_run import Outline


def cell(**changes: Any) -> dict[str, Any]:
    entry = {
        "experiment": "main-table",
        "label": "Ours-DG",
        "beside": None,
        "dataset": "mnist",
        "method": "factorized",
        "preset": "paper",
        "context": "moments",
        "channel": "direct",
        "epsilon": 16.0,
        "alpha": 0.5,
        "coefficients": 16384,
        "noise": True,
        "accounting": "rdp",
        "uses_future_labels": False,
        "releases_max": 43,
        "seeds": [41, 42, 43, 44, 45],
        "seen_mean": 85.2,
        "seen_std": 6.9,
        "future_mean": 83.61,
        "future_std": 7.1,
        "uplink_mb": 65.552,
        "published_seen_mean": 88.39,
        "published_future_mean": 87.56,
        "command": "sottovoce reproduce main-table",
        "version": "0.1.0",
        "device": "cpu",
        "time": "2026-11-15T10:00:00+00:00",
        "coded_seeds": [],
        "bits_per_coefficient": None,
        "ms_per_event": None,
        "published_uplink_mb": None,
        "published_bits_per_coefficient": None,
        "published_ms_per_event": None,
        "gain": [],
        "effective_gain": [],
    } | changes
    at = "/".join(str(entry[key]) for key in ("epsilon", "alpha", "coefficients", "noise"))
    return {"id": f"{entry['experiment']}/{entry['dataset']}/{entry['label']}/{at}"} | entry


def example_index() -> list[dict[str, Any]]:
    """The main table of two methods over ε, and one cell of each other experiment."""
    published = {4.0: 65.2, 8.0: 80.1, 16.0: 87.6, 32.0: 91.0}
    paper = [
        cell(epsilon=e, published_future_mean=p, future_mean=m)
        for (e, p), m in zip(published.items(), (37.9, 75.5, 83.6, 89.4), strict=True)
    ]
    tuned = [
        cell(
            epsilon=e,
            published_future_mean=p,
            future_mean=m,
            label="Ours, tuned",
            preset="tuned",
            context="labels",
            uses_future_labels=True,
        )
        for (e, p), m in zip(published.items(), (85.6, 91.3, 93.7, 95.1), strict=True)
    ]
    return [
        *paper,
        *tuned,
        cell(
            experiment="codecs",
            dataset="cifar10",
            channel="polar",
            published_future_mean=None,
            uplink_mb=0.142,
        ),
        *(
            cell(experiment="geometry", method="direct", context="public", noise=noise)
            for noise in (True, False)
        ),
    ]


def test_each_cell_shows_ours_the_published_value_and_the_difference(tmp_path: Path) -> None:
    page = Outline(write_reproduction([cell()], tmp_path / "reproduction.html"))
    assert "87.6, −4.0" in page.text
    (colored,) = [a for tag, a in page.elements if tag == "td" and a.get("style") == "--share:0.395"]
    assert colored["class"] == "worse"
    (value,) = [a["value"] for tag, a in page.elements if tag == "data" and a["value"] == "83.61"]
    assert value is not None


def test_better_cells_say_so_and_rows_say_when_future_labels_were_used(tmp_path: Path) -> None:
    page = Outline(write_reproduction(example_index(), tmp_path / "reproduction.html"))
    assert "91.0, +4.1" in page.text
    assert "tuned · labels" in page.text
    assert "labels of future clients\nε = 4" in page.text
    assert "used" in page.text
    assert "without noise" in page.text


def test_a_cell_without_a_field_is_named(tmp_path: Path) -> None:
    broken = cell()
    del broken["uses_future_labels"]
    with pytest.raises(SottovoceError, match=r"cell 1: uses_future_labels"):
        write_reproduction([cell(), broken], tmp_path / "reproduction.html")
    assert not (tmp_path / "reproduction.html").exists()


def shapes(index: list[dict[str, Any]], path: Path) -> dict[str, list[str]]:
    """Classes of the lines and bars of a reproduction's figures."""
    page = Outline(write_reproduction(index, path))
    return {
        tag: [a["class"] or "" for name, a in page.elements if name == tag and "class" in a]
        for tag in ("polyline", "rect")
    }


def test_a_table_over_budgets_is_drawn_published_ours_and_past_the_paper(tmp_path: Path) -> None:
    index = [entry for entry in example_index() if entry["experiment"] == "main-table"]
    for entry in index:
        tuned = entry["preset"] == "tuned"
        entry |= {"beside": "Ours-DG" if tuned else None}
    lines = shapes(index, tmp_path / "page.html")["polyline"]
    assert lines == ["line gray", "line gray", "line dashed", "line orange"]


def test_geometry_is_drawn_as_bars_with_the_effective_gain_beside(tmp_path: Path) -> None:
    gains = {"gain": [1.0, 2.0, 3.0], "effective_gain": [1.5, 2.5, 3.5]}
    index = [
        cell(experiment="geometry", label="Radial", noise=noise, epsilon=16.0 if noise else None, **gains)
        for noise in (True, False)
    ]
    found = shapes(index, tmp_path / "page.html")
    assert found == {"polyline": ["line gray"], "rect": ["bar orange", "bar blue"]}


def test_two_results_for_one_cell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="two cells main-table"):
        write_reproduction([cell(), cell(future_mean=90.0)], tmp_path / "reproduction.html")


def test_rows_with_equal_settings_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    rows = [cell(label="Ours-DG"), cell(label="Ours-DG, another h", future_mean=84.0)]
    page = Outline(write_reproduction(rows, tmp_path / "reproduction.html"))
    assert "Ours-DG, another h" in page.text


def test_bars_are_as_long_as_their_values_and_labelled_with_them() -> None:
    chart = bars("", "", {"a": {"g": 10.0}, "b & c": {"g": 40.0}}, {"g": "blue"}, x=linear([0, 40]), show=str)
    picture = svg("t", "n", [chart])
    drawn = [r for r in ElementTree.fromstring(picture).iter(f"{SPACE}rect") if r.get("class") != "paper"]
    first, second = (float(rect.get("width", "0").removesuffix("%")) for rect in drawn)
    assert second == pytest.approx(4 * first, rel=1e-2)
    assert {"a: 10.0", "b & c: 40.0"} <= set(texts(picture))
