"""What `result.json` says about a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from sottovoce.data import Dataset, Facts
from sottovoce.models.metrics import Evaluation
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan
from sottovoce.run.prepare import outline
from sottovoce.run.summary import accuracies, epsilon_add_remove
from sottovoce.run.training import train
from tests.small import small_plan


def test_the_files_of_a_run_say_what_it_did(factorized_run) -> None:
    out, result = factorized_run
    assert json.loads((out / "result.json").read_text()) == result
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == list(range(1, 31))
    assert sum(line["bytes"] for line in rounds) == result["uplink"]["bytes"]
    assert result["uplink"]["releases"] == 90
    assert result["uplink"]["bytes"] >= 90 * 800 * 4
    assert result["seeded"] is True
    assert set(result["accuracy"]["future_per_client"]) == {"future-0", "future-1"}
    assert not (out / "checkpoint.safetensors").exists()
    mean = np.mean(list(result["accuracy"]["seen_per_client"].values()))
    assert mean == pytest.approx(result["accuracy"]["seen"])
    noise = np.mean([line["noise_norm"] for line in rounds])
    # ‖N(0, σ²I₈₀₀)‖ = σ√800, its mean over 90 releases within 2 %: error rate below 1e-10.
    assert noise == pytest.approx(result["sigma"] * np.sqrt(800), rel=0.02)


def test_a_run_without_noise_says_null_where_json_has_no_infinity(tmp_path: Path, records: Dataset) -> None:
    result = train(small_plan(epsilon=float("inf")), tmp_path / "run", dataset=records)
    assert result["epsilon"]["target"] is result["epsilon"]["spent_max"] is None
    text = (tmp_path / "run" / "result.json").read_text()
    assert "Infinity" not in text
    assert "NaN" not in text


def test_means_count_clients_alike_and_are_missing_without_clients() -> None:
    def client(correct: int, wrong: int) -> Evaluation:
        said = torch.tensor([0] * correct + [1] * wrong)
        task, y = open_task(Facts((1,), 2)), torch.zeros(len(said)).long()
        return Evaluation(task, torch.eye(2)[said], y, torch.tensor([True, False]))

    said = accuracies({"a": client(9, 1), "b": client(100, 100)}, {})
    assert said["seen"] == pytest.approx(70.0)
    assert said["seen_masked"] == 100.0
    assert said["seen_per_client"] == {"a": 90.0, "b": 50.0}
    assert said["future"] is said["future_masked"] is None


def test_use_of_future_labels_is_said(tmp_path: Path, records: Dataset) -> None:
    for context, uses in (("labels", True), ("moments", False)):
        result = train(small_plan(context=context, rounds=1), tmp_path / context, dataset=records)
        assert result["uses_future_labels"] is uses


@pytest.mark.parametrize(
    ("preset", "stated", "added"),
    [
        ("best", 4.0, 1.90),
        ("best", 8.0, 3.69),
        ("best", 16.0, 7.07),
        ("central", 4.0, 1.90),
    ],
)
def test_epsilon_for_an_added_record_is_what_dp_accounting_says_of_each_kind_of_release(
    preset: str, stated: float, added: float
) -> None:
    plan = Plan.load(overrides={"preset": preset, "dataset": "mnist", "epsilon": stated})
    blueprint = outline(plan).blueprint
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    clip, size = plan.clip, blueprint.sizes[0] * (40 if preset == "central" else 1)
    bounds = {"gradient": clip / size, "context": 1 / blueprint.plan.context_records, "confusion": 1 / 960}
    for kind, count in blueprint.participant_counts(blueprint.releases_max).items():
        multiplier = blueprint.releases_of(0)[kind].sigma / bounds[kind]
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    found = epsilon_add_remove(blueprint)
    assert found == pytest.approx(added, abs=0.005)
    assert found == pytest.approx(float(accountant.get_epsilon(plan.delta)), rel=1e-3)
