"""A grid in parallel processes: every run is made, finished ones are reused, broken ones do not stop it."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
from studies.cells import open_cells
from studies.execution import Outcome, Resources, pending, run_grid
from studies.grid import CellRun, run_of, runs_of
from studies.index import build_index
from studies.replay import recorded_gains
from studies.summary import collect, united

from sottovoce.run.directory import RunDirectory

pytestmark = pytest.mark.slow
"""Each run starts processes of its own, which take seconds to begin."""

Grid = tuple[Path, list[CellRun], Outcome, list[int]]


@pytest.fixture(scope="module")
def grid(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """All rows at ε = 8 with one seed, by as many processes as would let a replay overtake its source."""
    runs = runs_of(open_cells("tiny", epsilons=[8.0], folder=tables), (41,))
    root = tmp_path_factory.mktemp("grid")
    rounds: list[int] = []
    return root, runs, run_grid(root, runs, Resources(jobs=3), on_rounds=rounds.append), rounds


def test_every_run_leaves_its_directory_and_its_summary(grid: Grid) -> None:
    root, runs, outcome, rounds = grid
    assert outcome == Outcome(4, [], out_of_time=False)
    assert sum(rounds) == 16
    assert len(collect(root, runs)) == 4
    for run in runs:
        result = RunDirectory(root / run.name).result()
        assert result["seeded"]
        assert result["seed"] == 41


def test_summaries_repeat_the_numbers_of_result_json(grid: Grid) -> None:
    root, runs, _, _ = grid
    for run, line in zip(runs, collect(root, runs), strict=True):
        result = RunDirectory(root / run.name).result()
        lines = RunDirectory(root / run.name).rounds()
        assert line["future"] == result["accuracy"]["future"]
        assert line["seen_masked"] == result["accuracy"]["seen_masked"]
        assert line["uplink_bytes"] == result["uplink"]["bytes"]
        assert line["gain"] == [lines[0]["gain"]]
        assert line["effective_gain"] == [lines[0]["effective_gain"]]
        assert line["noise_norm"] == pytest.approx(sum(each["noise_norm"] for each in lines) / 4)


def test_a_replay_repeats_the_gains_of_its_source(grid: Grid) -> None:
    root, runs, _, _ = grid
    [replay] = [run for run in runs if run.source is not None]
    assert replay.source is not None
    gains = [line["gain"] for line in RunDirectory(root / replay.source.name).rounds()]
    lines = RunDirectory(root / replay.name).rounds()
    assert recorded_gains(RunDirectory(root / replay.source.name).rounds_file, 4) == gains
    # A step of a direct run has the gain 1 up to how alike its two releases are, which are nearly all noise.
    assert [line["effective_gain"] for line in lines] == pytest.approx(gains, rel=0.25)


def test_finished_runs_are_not_made_again_and_known_ones_need_not_be_here(grid: Grid, tmp_path: Path) -> None:
    root, runs, _, _ = grid
    assert pending(root, runs) == []
    known = frozenset(run.digest for run in runs)
    assert pending(tmp_path, runs, known) == []
    [replay] = [run for run in runs if run.source is not None]
    left = pending(tmp_path, runs, known - {replay.digest})
    assert left == [replay.source, replay]


def test_a_batch_gives_the_results_of_single_runs(grid: Grid, tmp_path: Path) -> None:
    root, runs, _, _ = grid
    pair = [run for run in runs if run.plan.method == "factorized"]
    outcome = run_grid(tmp_path, pair, Resources(jobs=1, batch=4))
    assert outcome.finished == len(pair) == 3
    for alone, together in zip(collect(root, pair), collect(tmp_path, pair), strict=True):
        assert together["noise_norm"] == pytest.approx(alone["noise_norm"], rel=1e-5)
        assert together["signal_norm"] == pytest.approx(alone["signal_norm"], rel=1e-3)


def test_one_impossible_run_does_not_stop_the_others(tables: Path, tmp_path: Path) -> None:
    [cell] = [c for c in open_cells("tiny", epsilons=[8.0], folder=tables) if c.label == "Ours"]
    good = run_of(cell, 41)
    broken = CellRun(cell, good.plan.replace(gradient_records=5000))
    outcome = run_grid(tmp_path, [broken, good], Resources(jobs=1))
    assert outcome.finished == 1
    [problem] = outcome.problems
    assert "gradient_records=5000" in problem
    assert pending(tmp_path, [broken, good]) == [broken]


def test_when_time_is_over_nothing_is_half_counted(tables: Path, tmp_path: Path) -> None:
    runs = runs_of(open_cells("tiny", epsilons=[8.0], folder=tables), (41,))
    outcome = run_grid(tmp_path, runs, Resources(jobs=1, minutes=0))
    assert outcome == Outcome(0, [], out_of_time=True)
    assert pending(tmp_path, runs) == runs


@pytest.mark.parametrize("resume", [True, False])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(grid: Grid, tmp_path: Path, resume: bool) -> None:
    root, runs, _, _ = grid
    run = runs[0]

    def interrupt(rounds: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(tmp_path, [run], Resources(jobs=1), on_rounds=interrupt)
    assert RunDirectory(tmp_path / run.name).plan_file.exists()
    assert pending(tmp_path, [run]) == [run]
    assert run_grid(tmp_path, [run], Resources(jobs=1), resume=resume).finished == 1
    [again], [first] = collect(tmp_path, [run]), collect(root, [run])
    assert again["future"] == first["future"]
    assert again["uplink_bytes"] == first["uplink_bytes"]


def test_a_run_whose_process_is_killed_is_finished_by_another(grid: Grid, tmp_path: Path) -> None:
    root, runs, _, _ = grid
    killed: list[int] = []

    def kill(rounds: int) -> None:
        if not killed:
            [worker] = multiprocessing.active_children()
            worker.kill()
            killed.append(rounds)

    replay = [run for run in runs if run.source is not None]
    sources = [run.source for run in replay if run.source is not None]
    both = [*sources, *replay]
    outcome = run_grid(tmp_path, both, Resources(jobs=1), on_rounds=kill)
    assert outcome == Outcome(2, [], out_of_time=False)
    for again, first in zip(collect(tmp_path, both), collect(root, both), strict=True):
        assert again["future"] == first["future"]


def test_a_folder_of_runs_may_move_before_a_replay_continues(grid: Grid, tmp_path: Path) -> None:
    root, runs, _, _ = grid
    [replay] = [run for run in runs if run.source is not None]
    shutil.copytree(root, tmp_path / "moved")
    directory = RunDirectory(tmp_path / "moved" / replay.name)
    directory.result_file.unlink()
    (directory.path / "summary.json").unlink()
    assert run_grid(tmp_path / "moved", [replay], Resources(jobs=1), resume=True).finished == 1


def test_the_decoded_law_counts_no_bytes_and_gives_way_to_the_real_code(tables: Path, tmp_path: Path) -> None:
    [cell] = [c for c in open_cells("tiny", epsilons=[8.0], folder=tables) if c.label == "Ours"]
    run = run_of(cell, 41)
    coded = CellRun(cell, run.plan.replace(channel="polar"))
    assert run_grid(tmp_path, [run, coded], Resources(jobs=1, law=True)).finished == 2
    native, law = collect(tmp_path, [run, coded])
    assert not native["law"]
    assert native["uplink_bytes"] > 0
    assert law["law"]
    assert law["uplink_bytes"] is None
    real = {**law, "law": False, "uplink_bytes": 7}
    for order in ([law, real], [real, law]):
        assert united(json.loads(json.dumps(order)))[law["run"]]["uplink_bytes"] == 7


def test_the_index_of_a_grid_states_ours_and_theirs(grid: Grid, tables: Path) -> None:
    root, runs, _, _ = grid
    cells = open_cells("tiny", folder=tables)
    index = build_index(cells, (41,), collect(root, runs))
    assert [(entry["label"], entry["epsilon"]) for entry in index] == [
        ("Ours", 8.0),
        ("Factorized", 8.0),
        ("Replay", 8.0),
        ("Labels", 8.0),
    ]
    assert [entry["published_future_mean"] for entry in index] == [40.0, None, None, 40.0]
    assert [entry["uses_future_labels"] for entry in index] == [False, False, False, True]
    assert index[0]["future_mean"] == pytest.approx(collect(root, runs)[0]["future"], abs=1e-4)
    assert index[0]["future_std"] is None
