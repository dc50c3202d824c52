from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from studies.sweep import Job, run_batch

from sottovoce import data
from sottovoce.errors import SottovoceError
from sottovoce.modelfile import load_tensors
from sottovoce.run.training import train
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
    plans = [
        small_plan(seed=seed, epsilon=epsilon, **changes) for seed, epsilon in ((1, 2.0), (1, 8.0), (2, 8.0))
    ]
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
    jobs = [Job(small_plan(rounds=rounds), tmp_path / str(rounds)) for rounds in (3, 4)]
    with pytest.raises(SottovoceError, match="must agree"):
        run_batch(jobs)
