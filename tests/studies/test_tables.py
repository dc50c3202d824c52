"""The tables of the docs say what the index says, and the index what the runs say."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies.cells import EXPERIMENTS, SEEDS, open_cells, read_table
from studies.grid import run_of
from studies.index import build_index, read_index
from studies.merge import BEGIN, END, milliseconds_per_event, write_tables
from studies.summary import read_lines
from studies.tables import differences, markdown, markdown_table, measured, signed

from sottovoce.errors import SottovoceError
from sottovoce.report.table import UNKNOWN
from tests.report.test_table import TABLE

from .conftest import summary_of

ROOT = Path(__file__).parents[2]


def test_the_docs_show_the_index_in_the_repository() -> None:
    index = read_index(ROOT / "results" / "index.json")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    shown = page.split(BEGIN, 1)[1].split(END, 1)[0]
    assert shown == f"\n\n{markdown(index)}\n"


def test_the_index_in_the_repository_follows_from_its_runs() -> None:
    lines = read_lines([ROOT / "results" / "runs.jsonl"])
    cells = [cell for experiment in EXPERIMENTS for cell in open_cells(experiment)]
    events = milliseconds_per_event(ROOT / "results" / "events.json")
    assert build_index(cells, SEEDS, lines, events) == read_index(ROOT / "results" / "index.json")


def test_each_figure_stands_beside_the_published_one_and_the_difference() -> None:
    cells = open_cells("main-table", datasets=["mnist"], epsilons=[16.0])
    index = build_index(
        cells, SEEDS, [summary_of(run_of(cell, s), 80.0 + s - 43) for cell in cells for s in SEEDS]
    )
    text = markdown(index)
    assert "| Ours-DG | – | 80.0 ± 1.6 (87.6 ± 2.0, −7.6) |" in text
    assert "| Ours, tuned, label context | used | 80.0 ± 1.6 (87.6 ± 2.0, −7.6) |" in text
    assert "MNIST, participants" in text
    assert "| Ours-DG | 82.0 |" in text


def test_missing_seeds_are_said() -> None:
    cells = open_cells("main-table", datasets=["mnist"], epsilons=[16.0])[:1]
    text = markdown(build_index(cells, SEEDS, [summary_of(run_of(cells[0], s), 40.0) for s in (41, 42)]))
    assert "2 seeds" in text


def test_differences_between_controls_stand_beside_the_published_ones() -> None:
    future = {"Direct": 80.0, "Factorized": 81.5, "Radial": 81.0, "Factorized+ctx": 85.0}
    cells = [c for c in open_cells("geometry", datasets=["mnist"]) if c.label in future]
    index = build_index(cells, (41,), [summary_of(run_of(c, 41), future[c.label]) for c in cells])
    rows = {label: (ours, theirs) for label, _, ours, theirs in differences("geometry", index)}
    assert rows["Factorized − Direct"] == ("+1.50", "+1.19")
    assert rows["|Radial − Factorized|"] == ("+0.50", "+0.43")
    assert rows["Factorized+ctx − Factorized"] == ("+3.50", "+4.33")
    assert "Replay − Direct" not in rows
    assert "| Factorized+ctx − Factorized | MNIST | +3.50 | +4.33 |" in markdown(index)


def test_codecs_and_dimension_show_bytes_beside_the_published_ones() -> None:
    cells = [*open_cells("codecs"), *open_cells("dimension")]
    lines = [summary_of(run_of(cell, 41), 48.0) for cell in cells]
    text = markdown(build_index(cells, (41,), lines, {"lrsuq": 7.25}))
    assert "| 32.008 (12.01) | 65.552 (24.59) | 1.00× | 7.25 (13.97) | 1 |" in text
    assert "65.55 (131.09) | 1.93 (2.7) |" in text


def test_levers_are_added_one_after_the_other_with_what_each_is_worth() -> None:
    future = {"One shared model": 60.0, "Shared + prior (best)": 70.5, "Shared + own part + prior": 69.0}
    cells = [c for c in open_cells("frontier", datasets=["cifar10"], epsilons=[4.0]) if c.label in future]
    text = markdown(build_index(cells, (41,), [summary_of(run_of(c, 41), future[c.label]) for c in cells]))
    assert "| + class prior | 70.5, 1 seed | +10.5 | 71.5, 1 seed | +10.5 |" in text
    assert "| + own part | 69.0, 1 seed | −1.5 |" in text
    assert "| gradients, class shares, confusion | 2.00 |" in text


def test_every_lever_is_a_row_of_the_frontier() -> None:
    levers = read_table("frontier")["levers"]
    there = {
        cell.label
        for cell in open_cells("frontier", datasets=[levers["dataset"]], epsilons=[levers["epsilon"]])
    }
    assert {label for _, label in levers["rows"]} <= there


def test_a_prior_never_costs_more_than_a_point() -> None:
    """Over the seeds of the committed results: future clients without labels, and participants."""
    index = [e for e in read_index(ROOT / "results" / "index.json") if e["experiment"] == "frontier"]
    by_cell = {(e["dataset"], e["label"], e["epsilon"]): e for e in index}
    pairs = {
        "Shared + prior (best)": "One shared model",
        "Shared + own part + prior": "Shared + own part",
        "Noise at the server: shared + prior (central)": "Noise at the server: one shared model",
        "α = 0.1: shared + prior": "α = 0.1: one shared model",
        "α = 100: shared + prior": "α = 100: one shared model",
        "Turned: shared + prior": "Turned: one shared model",
        "Turned: shared + own part + prior": "Turned: shared + own part",
    }
    compared = 0
    for (dataset, label, epsilon), entry in by_cell.items():
        without = by_cell.get((dataset, pairs.get(label, ""), epsilon))
        if without is not None:
            compared += 1
            for role in ("future_mean", "seen_mean"):
                assert entry[role] >= without[role] - 1.0, (dataset, label, epsilon, role)
    assert compared >= 30


def test_a_page_without_marks_is_refused_untouched(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("my own page")
    with pytest.raises(SottovoceError, match="no place for tables"):
        write_tables(page, [])
    assert page.read_text() == "my own page"


def test_markdown_puts_in_brackets_what_stands_beside() -> None:
    lines = markdown_table(TABLE).splitlines()
    assert lines[:2] == ["Accuracy:", ""]
    assert lines[4] == "| [b]\\|<i> | 83.6 ± 7.1 (87.6, −4.0) |"


def test_what_is_not_known_is_a_dash() -> None:
    assert {measured(None), signed(None, 1)} == {UNKNOWN}
