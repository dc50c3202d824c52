"""A grid on a cluster leaves what processes here would have left, also when machines are lost.

Most tests work with a toy that calls itself ray and does in this process what the cluster is asked for; the
last one is a real cluster of two nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from studies.cells import open_cells
from studies.execution import Outcome, Resources, pending, run_grid
from studies.grid import CellRun, runs_of
from studies.summary import collect

from sottovoce.errors import SottovoceError
from sottovoce.models.tensors import load_tensors
from sottovoce.run.directory import RunDirectory
from studies import cluster

TIMES = ("seconds", "time", "device")
NORMS = ("signal_norm", "noise_norm")
"""What a release that is sent again from the ledger does not say a second time."""


class Lost(Exception):
    """What a cluster raises for a worker that is gone."""


class ToyRay(ModuleType):
    """The part of ray that a grid uses, in one process; `lose` worker words from these numbers on."""

    exceptions = SimpleNamespace(RayError=Lost)

    def __init__(self, gpus: int = 0, lose: tuple[int, ...] = ()) -> None:
        super().__init__("ray")
        self.asked: dict[str, Any] = {}
        self.started: list[Any] = []
        self.open = False
        self._gpus = gpus
        self._lose = list(lose)

    def init(self, **given: Any) -> None:
        self.open, self.asked = True, given

    def shutdown(self) -> None:
        self.open = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, "GPU": float(self._gpus)} if self._gpus else {"CPU": 2.0}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}] * 2

    def put(self, value: Any) -> Any:
        return value

    def get(self, value: Any) -> Any:
        return value

    def remote(self, function: Callable[..., Iterator[Any]]) -> Any:
        def options(**given: Any) -> Any:
            self.asked |= given
            return SimpleNamespace(remote=start)

        def start(*arguments: Any) -> Iterator[Any]:
            self.started.append(arguments)
            words = function(*arguments)
            return self._cut(words, self._lose.pop(0)) if self._lose else words

        return SimpleNamespace(options=options)

    def wait(self, words: list[Any], timeout: float | None) -> tuple[list[Any], list[Any]]:
        return words[:1], words[1:]

    @staticmethod
    def _cut(words: Iterator[Any], after: int) -> Iterator[Any]:
        for _ in range(after):
            yield next(words)
        raise Lost("the node died\nwith details")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ToyRay]:
    def make(**given: Any) -> ToyRay:
        ray = ToyRay(**given)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return make


@pytest.fixture(scope="module")
def runs(tables: Path) -> list[CellRun]:
    """Ours, Factorized, the Replay of Factorized, and Labels."""
    return runs_of(open_cells("tiny", epsilons=[8.0], folder=tables), (41,))


@pytest.fixture(scope="module")
def here(runs: list[CellRun], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same grid by one process of this machine."""
    root = tmp_path_factory.mktemp("here")
    assert run_grid(root, runs, Resources(jobs=1)).finished == len(runs)
    return root


def check_same(one: Path, other: Path, runs: list[CellRun], *, but: tuple[str, ...] = TIMES) -> None:
    for ours, theirs in zip(collect(one, runs), collect(other, runs), strict=True):
        assert {k: v for k, v in ours.items() if k not in but} == {
            k: v for k, v in theirs.items() if k not in but
        }
    for run in runs:
        files = [{path.name for path in (root / run.name).iterdir()} for root in (one, other)]
        assert files[0] == files[1]
        ours, theirs = (load_tensors(RunDirectory(root / run.name).model_file)[0] for root in (one, other))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_cluster_leaves_the_runs_that_processes_here_leave(
    toy: Callable[..., ToyRay], here: Path, runs: list[CellRun], tmp_path: Path
) -> None:
    ray = toy()
    rounds: list[int] = []
    outcome = run_grid(tmp_path, runs, Resources(cluster="auto"), on_rounds=rounds.append)
    assert outcome == Outcome(4, [], out_of_time=False)
    assert sum(rounds) == 16
    check_same(here, tmp_path, runs)
    assert pending(tmp_path, runs) == []
    assert not ray.open
    assert {path.name for path in tmp_path.iterdir()} == {run.name for run in runs}


def test_the_code_of_this_machine_goes_along_and_each_worker_gets_its_share(
    toy: Callable[..., ToyRay], tmp_path: Path
) -> None:
    ray = toy(gpus=2)
    cluster.Cluster(tmp_path, "head:6379", "cuda", 5, law=True)
    assert ray.asked["address"] == "head:6379"
    package, studies = ray.asked["runtime_env"]["py_modules"]
    assert (Path(package) / "run" / "session.py").exists()
    assert (Path(studies) / "work.py").exists()
    assert (ray.asked["num_cpus"], ray.asked["num_gpus"]) == (1, pytest.approx(1 / 3))
    cluster.Cluster(tmp_path, "auto", "cpu", 1, law=True)
    assert (ray.asked["num_cpus"], ray.asked["num_gpus"]) == (1, 0)


def test_a_run_whose_machine_is_lost_continues_elsewhere_from_what_came_back(
    toy: Callable[..., ToyRay],
    here: Path,
    runs: list[CellRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "BRING_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "SAY_SECONDS", 0.0)
    ray = toy(lose=(2,))
    first = runs[:1]
    assert run_grid(tmp_path, first, Resources(cluster="auto")) == Outcome(1, [], out_of_time=False)
    (_, _, nothing, _), (_, _, sent, _) = ray.started
    assert nothing == {}
    assert b'"round": 2' in sent[first[0].name]["rounds.jsonl"]
    check_same(here, tmp_path, first, but=TIMES + NORMS)


def test_a_batch_is_given_up_when_three_workers_were_lost_over_it(
    toy: Callable[..., ToyRay], runs: list[CellRun], tmp_path: Path
) -> None:
    ray = toy(lose=(0, 0, 0))
    outcome = run_grid(tmp_path, runs[:1], Resources(cluster="auto"))
    assert outcome.finished == 0
    assert outcome.problems == [f"{runs[0].name}: a worker of the cluster was lost: the node died"]
    assert len(ray.started) == 3


def test_what_is_impossible_is_one_problem_and_not_tried_again(
    toy: Callable[..., ToyRay], runs: list[CellRun], tmp_path: Path
) -> None:
    ray = toy()
    cell, plan = runs[0].cell, runs[0].plan
    unknown = CellRun(cell, plan.replace(dataset="no-such-data"))
    broken = CellRun(cell, plan.replace(gradient_records=5000))
    outcome = run_grid(tmp_path, [unknown, broken], Resources(cluster="auto"))
    assert outcome.finished == 0
    assert "no-such-data" in outcome.problems[0]
    assert "gradient_records=5000" in outcome.problems[1]
    assert len(ray.started) == 1


def test_a_cluster_that_is_not_there_is_one_line(
    toy: Callable[..., ToyRay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = toy()
    with pytest.raises(SottovoceError, match="no machine of the cluster has a GPU"):
        cluster.Cluster(tmp_path, "auto", "cuda", 0, law=False)
    assert not ray.open

    def refuse(**given: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nPlease …")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(SottovoceError, match=r"no Ray cluster at auto .*ray start --head"):
        cluster.Cluster(tmp_path, "auto", "cpu", 0, law=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SottovoceError, match=r"pip install 'sottovoce\[cluster\]'"):
        cluster.Cluster(tmp_path, "auto", "cpu", 0, law=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_nodes_leave_the_same_runs_also_when_one_of_them_is_lost(
    here: Path, runs: list[CellRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pytest.importorskip("ray", reason="install sottovoce[cluster]")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = nodes.add_node(num_cpus=1)
    try:
        resources = Resources(cluster=nodes.address)
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        assert run_grid(whole, runs, resources) == Outcome(4, [], out_of_time=False)
        check_same(here, whole, runs)
        long = [CellRun(run.cell, run.plan.replace(rounds=200)) for run in runs[:2]]
        lost: list[int] = []

        def lose(rounds: int) -> None:
            if not lost:
                nodes.remove_node(other, allow_graceful=False)
            lost.append(rounds)

        assert run_grid(cut, long, resources, on_rounds=lose) == Outcome(2, [], out_of_time=False)
        assert len(collect(cut, long)) == 2
    finally:
        nodes.shutdown()
