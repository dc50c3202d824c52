"""A grid makes every run once, in an order in which nothing waits for what comes later."""

from __future__ import annotations

from pathlib import Path

from studies.cells import EXPERIMENTS, open_cells
from studies.grid import batches_of, run_of, runs_of


def test_cells_that_ask_for_the_same_plan_share_one_run() -> None:
    def ours(experiment: str, label: str, **where: object) -> str:
        found = [
            cell
            for cell in open_cells(experiment, datasets=["cifar10"])
            if cell.label == label
            and all(getattr(cell.plan(41), key) == value for key, value in where.items())
        ]
        return run_of(found[0], 41).name

    main = ours("main-table", "Ours-DG", epsilon=16.0)
    assert ours("heterogeneity", "Ours-DG", alpha=0.5) == main
    assert ours("geometry", "Factorized+ctx", epsilon=16.0) == main
    assert ours("codecs", "DG FP32") == main
    assert ours("dimension", "Ours-DG", coefficients=16384) == main


def test_runs_come_once_and_in_the_order_of_importance() -> None:
    cells = [cell for experiment in EXPERIMENTS for cell in open_cells(experiment)]
    runs = runs_of(cells, (41, 42))
    assert len({run.name for run in runs}) == len(runs)
    assert {run.name for run in runs} == {run_of(cell, seed).name for cell in cells for seed in (41, 42)}
    places = [EXPERIMENTS.index(run.cell.experiment) for run in runs]
    assert places == sorted(places)


def test_a_replay_comes_after_its_source_even_when_asked_for_alone() -> None:
    replays = [cell for cell in open_cells("geometry") if cell.label == "Replay"]
    runs = runs_of(replays, (41, 42))
    place = {run.name: i for i, run in enumerate(runs)}
    sources = [(run, run.source) for run in runs if run.source is not None]
    assert len(sources) == 8
    for run, source in sources:
        assert place[source.name] < place[run.name]
        assert (run.method, run.plan.method) == ("replay", "direct")
        assert run.digest != run.plan.digest()
        assert (source.plan.seed, source.plan.epsilon) == (run.plan.seed, run.plan.epsilon)


def test_batches_hold_every_run_once_in_one_shape_and_one_experiment() -> None:
    from studies.sweep import shape

    runs = runs_of([*open_cells("main-table"), *open_cells("dimension")], (41, 42, 43, 44, 45))
    batches = batches_of(runs, 16)
    assert sorted(run.name for batch in batches for run in batch) == sorted(run.name for run in runs)
    for batch in batches:
        assert len(batch) <= 16
        assert len({(run.cell.experiment, shape(run.plan)) for run in batch}) == 1
    assert max(map(len, batches)) == 16
    assert [batch[0].cell.experiment for batch in batches[-6:]] == ["dimension"] * 6


def test_the_decoded_law_of_each_code_has_noise_of_its_own() -> None:
    cells = [cell for cell in open_cells("codecs") if cell.label != "DG+Q12"]
    laws = [run_of(cell, 41).law() for cell in cells]
    assert {plan.channel for plan in laws} == {"direct"}
    assert len({plan.digest() for plan in laws}) == len(laws)
    assert laws[0] == run_of(cells[0], 41).plan


def test_the_name_of_a_run_does_not_depend_on_the_folder(tables: Path) -> None:
    cells = open_cells("tiny", folder=tables)
    for run in runs_of(cells, (41,)):
        assert "/" not in run.name
