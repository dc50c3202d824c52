"""Cells carry the paper's settings and numbers; what the paper says about its numbers holds for ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from studies.cells import EXPERIMENTS, Cell, open_cells, open_differences

from sottovoce.errors import SottovoceError


def published(experiment: str, label: str, dataset: str, measure: str = "future_mean") -> list[float]:
    return [
        cell.published[measure]
        for cell in open_cells(experiment, datasets=[dataset])
        if cell.label == label and measure in cell.published
    ]


def gains(experiment: str, over: str, dataset: str) -> list[float]:
    ours, theirs = published(experiment, "Ours-DG", dataset), published(experiment, over, dataset)
    return [round(a - b, 2) for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize(
    ("experiment", "over", "dataset", "least", "most"),
    [
        ("main-table", "Full-DG", "cifar10", 2.15, 4.08),
        ("main-table", "DeepLin-DG", "cifar10", 1.07, 3.91),
        ("main-table", "DeepLin-DG", "mnist", 1.66, 2.80),
        ("heterogeneity", "Full-DG", "mnist", 2.08, 2.98),
        ("heterogeneity", "Full-DG", "cifar10", 1.47, 5.41),
    ],
)
def test_published_gains_are_those_of_the_papers_text(
    experiment: str, over: str, dataset: str, least: float, most: float
) -> None:
    found = gains(experiment, over, dataset)
    assert len(found) == 4
    assert (min(found), max(found)) == (least, most)


def test_the_same_published_figure_is_the_same_in_all_tables() -> None:
    main = published("main-table", "Ours-DG", "cifar10")[2]
    assert published("heterogeneity", "Ours-DG", "cifar10")[1] == main
    assert published("codecs", "DG FP32", "cifar10") == [main]
    assert published("dimension", "Ours-DG", "cifar10") == [main]
    assert published("geometry", "Factorized+ctx", "cifar10") == [main]
    assert published("codecs", "LRSUQ (b = 4)", "cifar10") == [
        published("main-table", "Ours-LRSUQ", "cifar10")[2]
    ]


def test_every_cell_is_a_valid_seeded_plan_with_a_name_of_its_own() -> None:
    cells = [cell for experiment in EXPERIMENTS for cell in open_cells(experiment)]
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        plan = cell.plan(41)
        assert plan.seeded
        assert plan.rounds == {"best": 40, "central": 100, "shared": 100}.get(plan.preset, 500)
        assert plan.participants == 40


def test_the_tables_hold_what_the_paper_ran() -> None:
    main = open_cells("main-table")
    assert {cell.plan(41).epsilon for cell in main} == {4.0, 8.0, 16.0, 32.0}
    paper = [cell.plan(41) for cell in main if cell.label == "Ours-DG"]
    assert {(p.dataset, p.learning_rate) for p in paper} == {("mnist", 0.1), ("cifar10", 0.2)}
    assert {(p.accounting, p.context, p.gradient_records, p.basis) for p in paper} == {
        ("rdp", "moments", 333, "unstructured")
    }
    assert [cell.plan(41).alpha for cell in open_cells("heterogeneity", datasets=["mnist"])][:4] == [
        0.8,
        0.5,
        0.2,
        0.1,
    ]
    assert [cell.plan(41).coefficients for cell in open_cells("dimension")] == [2**i for i in range(10, 17)]
    silent = [c for c in open_cells("geometry") if not math.isfinite(c.settings["epsilon"])]
    assert len(silent) == 12


def test_rows_beside_a_published_one_show_its_accuracies() -> None:
    tuned = [cell for cell in open_cells("main-table", datasets=["mnist"]) if cell.label == "Ours, tuned"]
    assert [cell.published["future_mean"] for cell in tuned] == published("main-table", "Ours-DG", "mnist")


def test_other_budgets_and_datasets_have_no_published_values() -> None:
    for cell in open_cells("main-table", epsilons=[2.0]) + open_cells("heterogeneity", epsilons=[8.0]):
        assert cell.published == {}
    assert all(cell.published == {} for cell in open_cells("codecs", datasets=["fashion-mnist"]))


def test_a_quick_cell_is_another_cell_with_fewer_rounds() -> None:
    full, quick = open_cells("main-table"), open_cells("main-table", quick=True)
    assert {cell.id for cell in full}.isdisjoint(cell.id for cell in quick)
    plans = [cell.plan(41) for cell in quick]
    assert {plan.rounds for plan in plans} == {80}
    assert {plan.context_round for plan in plans if plan.context == "predictions"} == {40}


def test_differences_name_cells_that_exist(tables: Path) -> None:
    ids = {cell.id for experiment in EXPERIMENTS for cell in open_cells(experiment)}
    for experiment in EXPERIMENTS:
        for difference in open_differences(experiment):
            assert {difference.of, difference.minus} <= ids
    [difference] = open_differences("tiny", tables)
    assert difference.value({}) is None
    assert difference.value({difference.of: 40.0, difference.minus: 42.5}) == -2.5


def test_silence_of_the_paper_is_no_number(tables: Path) -> None:
    cells = {cell.at: cell for cell in open_cells("tiny", folder=tables) if cell.label == "Ours"}
    assert cells[8.0].published == {
        "seen_mean": 50.0,
        "seen_std": 1.0,
        "future_mean": 40.0,
        "future_std": 2.0,
    }
    assert "seen_std" not in cells[16.0].published
    assert cells[16.0].published["uplink_mb"] == 0.008


def test_an_unknown_experiment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SottovoceError, match="main-table"):
        open_cells("main-tabel")


def test_cells_are_told_apart_by_budget_where_another_key_runs_across() -> None:
    cells: list[Cell] = open_cells("dimension", epsilons=[8.0, 16.0])
    assert len({cell.id for cell in cells}) == 14


def test_a_row_may_have_fewer_datasets_and_columns_than_its_table() -> None:
    turned = [cell for cell in open_cells("frontier") if cell.label == "Turned: one shared model"]
    assert [(cell.dataset, cell.at, cell.plan(41).shift) for cell in turned] == [
        ("cifar10", 4.0, "turns"),
        ("cifar10", 16.0, "turns"),
    ]
    assert not [cell for cell in open_cells("frontier", datasets=["mnist"]) if "Turned" in cell.label]
