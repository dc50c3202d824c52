"""The index: the fields that other programs read, means and deviations over seeds, results that add up."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from studies.cells import EXPERIMENTS, SEEDS, open_cells
from studies.grid import run_of, runs_of
from studies.index import add_to_index, build_index, read_index
from studies.merge import BEGIN, END, merge
from studies.summary import read_lines, write_lines

from .conftest import summary_of

FIELDS = {
    *("experiment", "dataset", "method", "preset", "context", "channel", "epsilon", "alpha", "coefficients"),
    *("noise", "accounting", "uses_future_labels", "releases_max", "seeds", "seen_mean", "seen_std"),
    *("future_mean", "future_std", "uplink_mb", "published_seen_mean", "published_future_mean", "command"),
    *("version", "device", "time", "seen_masked_mean", "future_masked_mean"),
}
VALUES = (80.0, 82.0, 84.0, 81.0, 90.0)


def test_a_cell_has_every_field_and_the_sample_deviation_over_seeds() -> None:
    cell = next(c for c in open_cells("main-table", epsilons=[16]) if c.label == "Ours-DG")
    lines = [summary_of(run_of(cell, seed), value) for seed, value in zip(SEEDS, VALUES, strict=True)]
    [entry] = build_index([cell], SEEDS, lines)
    assert set(entry) >= FIELDS
    assert entry["seeds"] == list(SEEDS)
    assert entry["future_mean"] == pytest.approx(statistics.mean(VALUES))
    assert entry["future_std"] == pytest.approx(statistics.stdev(VALUES), abs=1e-4)
    assert entry["seen_masked_mean"] == pytest.approx(statistics.mean(VALUES) + 3)
    assert entry["releases_max"] == 45
    assert entry["uplink_mb"] == 65.552
    assert (entry["published_seen_mean"], entry["published_future_mean"]) == (88.39, 87.56)
    assert (
        entry["command"]
        == "sottovoce reproduce main-table --dataset mnist --epsilon 16 --seeds 41,42,43,44,45"
    )


def test_runs_without_noise_say_so_in_json_that_every_parser_reads() -> None:
    cell = next(c for c in open_cells("geometry") if not c.at)
    [entry] = build_index([cell], (41,), [summary_of(run_of(cell, 41), 50.0)])
    assert entry["noise"] is False
    assert entry["epsilon"] is None
    json.dumps(entry, allow_nan=False)


def test_bytes_come_only_from_runs_that_were_coded() -> None:
    cell = next(c for c in open_cells("codecs") if c.label == "polar")
    lines = [
        summary_of(run_of(cell, 41), 50.0, uplink_bytes=140_000),
        summary_of(run_of(cell, 42), 50.0, uplink_bytes=None, bits_per_coefficient=None, law=True),
    ]
    [entry] = build_index([cell], SEEDS, lines, {"polar": 9.5})
    assert entry["uplink_mb"] == 0.14
    assert entry["coded_seeds"] == [41]
    assert entry["seeds"] == [41, 42]
    assert entry["ms_per_event"] == 9.5
    assert entry["command"].endswith("--seeds 41,42 --law")


def test_an_index_keeps_other_cells_and_replaces_equal_ones(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    cells = [open_cells("codecs")[0], open_cells("main-table")[0]]
    for cell, future in ((cells[0], 40.0), (cells[1], 50.0), (cells[0], 60.0)):
        add_to_index(path, build_index([cell], (41,), [summary_of(run_of(cell, 41), future)]))
    index = read_index(path)
    assert [(entry["experiment"], entry["future_mean"]) for entry in index] == [
        ("main-table", 50.0),
        ("codecs", 60.0),
    ]


def test_merged_results_add_up_and_forget_runs_of_changed_plans(tmp_path: Path) -> None:
    docs = tmp_path / "results.md"
    docs.write_text(f"Before\n{BEGIN}\nold\n{END}\nAfter\n")
    cells = [cell for experiment in EXPERIMENTS for cell in open_cells(experiment)]
    runs = runs_of(cells, SEEDS)
    stale = {**summary_of(runs[0], 1.0), "run": "0123456789abcdef"}
    write_lines(tmp_path / "one.jsonl", [summary_of(run, 50.0) for run in runs[:7]] + [stale])
    write_lines(tmp_path / "two.jsonl", [summary_of(run, 70.0) for run in runs[5:]])
    merge([tmp_path / "one.jsonl"], tmp_path / "results", docs)
    said = merge([tmp_path / "two.jsonl"], tmp_path / "results", docs)
    assert f"{len(runs)} of {len(runs)} runs, {len(cells)} of {len(cells)} cells with all seeds" in said
    index = read_index(tmp_path / "results" / "index.json")
    assert [entry["id"] for entry in index] == [cell.id for cell in cells]
    assert all(len(entry["seeds"]) == 5 for entry in index)
    kept = read_lines([tmp_path / "results" / "runs.jsonl"])
    assert [line["future"] for line in kept[:8]] == [50.0] * 7 + [70.0]
    text = docs.read_text()
    assert text.startswith("Before\n")
    assert text.endswith("\nAfter\n")
    assert "old" not in text
    before = (tmp_path / "results" / "index.json").read_bytes()
    merge([], tmp_path / "results", docs)
    assert (tmp_path / "results" / "index.json").read_bytes() == before
