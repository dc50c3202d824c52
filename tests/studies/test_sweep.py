from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from studies.sweep import Job, run_batch, shape

from sottovoce import data
from sottovoce.errors import SottovoceError
from sottovoce.models.tensors import load_tensors
from sottovoce.plan import CHOICES, keys
from sottovoce.run.training import train
from tests.run.test_folder import planned, sites
from tests.run.toy import TABLE, pair, records
from tests.small import small_plan

LINEAR = {"model": "linear", "method": "blend", "coefficients": 7850, "learning_rate": 0.0}
WHOLE = data.load("mnist-small")
FEW = replace(WHOLE, x=WHOLE.x[:960], y=WHOLE.y[:960])
"""Exactly what the small plan's clients hold."""


@pytest.mark.parametrize(
    "changes",
    [
        {"basis": "structured"},
        {"basis": "unstructured"},
        {"method": "full"},
        {"method": "global"},
        {**LINEAR, "method": "mean-regularized", "context": "public"},
        {**LINEAR, "shift": "turns", "features": "scattering", "feature_size": 64, "coefficients": 650},
        {**LINEAR, "context": "labels", "context_share": 0.05, "prior": "context"},
    ],
    ids=lambda changes: "-".join(value for value in changes.values() if isinstance(value, str)),
)
def test_runs_in_a_batch_give_what_they_give_alone(tmp_path, monkeypatch, changes) -> None:
    monkeypatch.setattr(data, "load", lambda name: FEW)
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    plans = [small_plan(seed=seed, epsilon=epsilon, **changes) for seed, epsilon in ((1, 2.0), (2, 8.0))]
    results = {}
    jobs = [Job(plan, tmp_path / f"batch-{i}") for i, plan in enumerate(plans)]
    run_batch(jobs, on_run=lambda job, result: results.update({job.out.name: result}))
    for i, plan in enumerate(plans):
        alone = train(plan, tmp_path / f"alone-{i}")
        together = results[f"batch-{i}"]
        assert together["epsilon"] == alone["epsilon"]
        assert together["sigma"] == alone["sigma"]
        first, _ = load_tensors(tmp_path / f"alone-{i}" / "model.safetensors")
        second, _ = load_tensors(tmp_path / f"batch-{i}" / "model.safetensors")
        for name in first:
            assert torch.allclose(first[name].double(), second[name].double(), atol=1e-5), name


def test_finished_runs_are_left_alone_and_others_resumed(tmp_path) -> None:
    jobs = [Job(small_plan(seed=seed), tmp_path / str(seed)) for seed in (1, 2)]
    done = train(jobs[0].plan, jobs[0].out)

    def stop(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(jobs, on_round=stop)
    seen = {}
    run_batch(jobs, on_run=lambda job, result: seen.update({job.out.name: result}))
    assert seen["1"] == done
    assert seen["2"]["rounds"] == 4


def test_runs_of_different_shapes_are_not_mixed(tmp_path) -> None:
    jobs = [Job(small_plan(clip=clip), tmp_path / str(clip)) for clip in (0.5, 1.0)]
    with pytest.raises(SottovoceError, match="must agree"):
        run_batch(jobs)


def test_networks_of_one_batch_keep_their_own_activation(tmp_path) -> None:
    """H1: the second of two runs was trained with the first one's module."""
    plans = [
        small_plan(model="mlp", mlp_activation=name, coefficients=0, method="global")
        for name in ("tanh", "relu")
    ]
    with pytest.raises(SottovoceError, match=r"must agree in .*mlp_activation"):
        run_batch([Job(plan, tmp_path / plan.mlp_activation) for plan in plans], dataset=FEW)


def test_runs_of_one_batch_keep_their_own_future_clients(tmp_path) -> None:
    """H2: the second result named the future client of the first."""
    folder = sites(tmp_path / "sites", sizes={"aster": 40, "north": 40, "west": 40})
    jobs = [
        Job(planned(folder, future_clients=name, participants=2, seeded=True), tmp_path / name.strip(","))
        for name in ("west,", "aster,")
    ]
    found = {}
    run_batch(jobs, on_run=lambda job, result: found.update({job.out.name: result}))
    for name, result in found.items():
        assert list(result["accuracy"]["future_per_client"]) == [name]


def test_a_folder_is_trained_in_a_batch_as_alone(tmp_path) -> None:
    """H4: a folder whose plan leaves the number of participants to it was a traceback."""
    folder = sites(tmp_path / "sites", sizes={"aster": 40, "north": 40})
    plan, found = planned(folder, seeded=True), []
    run_batch([Job(plan, tmp_path / "batch")], on_run=lambda job, result: found.append(result))
    alone = train(plan, tmp_path / "alone")
    assert [result["epsilon"] for result in found] == [alone["epsilon"]]
    one, other = (load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("batch", "alone"))
    assert all(torch.allclose(one[name].double(), other[name].double(), atol=1e-5) for name in other)


def test_clients_of_unlike_sizes_are_refused_before_anything_is_written(tmp_path) -> None:
    folder = sites(tmp_path / "sites", sizes={"aster": 40, "north": 30})
    with pytest.raises(SottovoceError, match="clients of one size: set gradient_records"):
        run_batch([Job(planned(folder), tmp_path / "batch")])
    assert not (tmp_path / "batch").exists()


@pytest.mark.parametrize("key", TABLE)
def test_two_runs_that_differ_in_one_key_are_of_two_shapes_or_give_in_a_batch_what_they_give_alone(
    key: str, tmp_path: Path
) -> None:
    first, second = pair(key)
    assert getattr(first, key) != getattr(second, key)
    if shape(first) != shape(second):
        return
    toy = records()
    jobs = [Job(plan, tmp_path / f"batch-{i}") for i, plan in enumerate((first, second))]
    found: dict[str, dict[str, Any]] = {}
    run_batch(jobs, on_run=lambda job, result: found.update({job.out.name: result}), dataset=toy)
    for job in jobs:
        alone, together = tmp_path / f"alone-{job.out.name}", found[job.out.name]
        result = train(job.plan, alone, dataset=toy)
        told = ("epsilon", "sigma", "sigma_context", "clients", "participants", "rounds", "seeded")
        assert {name: together[name] for name in told} == {name: result[name] for name in told}
        one, other = (load_tensors(place / "model.safetensors")[0] for place in (alone, job.out))
        for name in one if job.plan.seeded else ():
            assert torch.allclose(one[name].double(), other[name].double(), atol=1e-5), name


def test_the_table_has_every_key_of_a_plan_that_may_have_two_values() -> None:
    single = {name for name, names in CHOICES.items() if len(names) == 1}
    assert set(TABLE) | single == {name for name, _, _ in keys()}
