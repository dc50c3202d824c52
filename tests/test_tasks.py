"""Tasks: losses are each record's own, decisions and metrics say what they should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sottovoce.data import Facts
from sottovoce.data.description import Description
from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_mean
from sottovoce.gradients.vmap import clipped_sum
from sottovoce.subspace import Identity
from sottovoce.tasks import TASKS, mean_metrics, open_task
from tests.data.hospitals import folder

AGE = """
task = "number"
[target]
column = "age"
low = 0
high = 120
[columns.height]
kind = "number"
low = 0
high = 250
"""
FACTS = {
    "classes": Facts((4,), 3),
    "labels": Facts((4,), 3, task="labels"),
    "number": Facts((4,), 1, task="number"),
}


def _records(task: str, count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = 3 * torch.randn(count, 4, generator=generator)
    return x, open_task(FACTS[task]).random_targets(count, generator)


@pytest.mark.parametrize("task", TASKS)
def test_a_record_has_the_same_loss_beside_any_others(task: str) -> None:
    opened, (x, y) = open_task(FACTS[task]), _records(task)
    outputs = x[:, : FACTS[task].classes]
    together = opened.losses(outputs, y)
    assert together.shape == (6,)
    assert torch.allclose(together[2:3], opened.losses(outputs[2:3], y[2:3]))


@pytest.mark.parametrize("task", TASKS)
def test_the_fast_clipped_mean_is_the_reference_one_for_every_task(task: str) -> None:
    facts, (x, y) = FACTS[task], _records(task)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, facts.classes))
    theta = torch.randn(sum(p.numel() for p in net.parameters()), generator=torch.Generator().manual_seed(5))
    basis, loss = Identity(len(theta)), open_task(facts).losses
    fast = clipped_mean(net, theta, basis, x, y, clip=0.3, denominator=6, loss=loss)
    slow = clipped_sum(net, theta, basis, x, y, 0.3, loss) / 6
    assert torch.allclose(fast, slow, atol=1e-6)
    assert fast.norm() > 0


@pytest.mark.parametrize("task", TASKS)
def test_no_record_of_any_task_moves_a_clipped_mean_beyond_its_bound(task: str) -> None:
    facts, (x, y) = FACTS[task], _records(task)
    net, basis = nn.Linear(4, facts.classes), Identity(5 * facts.classes)
    theta, loss = torch.zeros(5 * facts.classes), open_task(facts).losses
    x[0] *= 1e6
    alone = clipped_mean(net, theta, basis, x[:1], y[:1], clip=0.5, denominator=1, loss=loss)
    assert 0.499 < float(alone.norm()) <= 0.5
    x[0] = torch.nan
    assert not clipped_mean(net, theta, basis, x[:1], y[:1], clip=0.5, denominator=1, loss=loss).any()


def test_a_number_is_clamped_and_comes_back_in_its_own_units(tmp_path: Path) -> None:
    agreed = Description.load(folder(tmp_path / "f", AGE, north="height,age\n1,2\n") / "records.toml")
    task = open_task(agreed.facts())
    outputs = torch.tensor([[0.0], [0.5], [7.0], [-7.0]])
    assert task.decisions(outputs).tolist() == [60.0, 90.0, 120.0, 0.0]
    assert task.values(outputs).shape == (4, 1)


def test_metrics_of_a_number_are_in_its_own_units(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    agreed = Description.load(folder(tmp_path / "f", AGE, north="height,age\n1,2\n") / "records.toml")
    task = open_task(agreed.facts())
    y = torch.tensor([-1.0, 0.0, 1.0])
    found = task.metrics(torch.tensor([[-1.0], [0.5], [1.0]]), y)
    assert found["mean_absolute_error"] == pytest.approx(10.0)
    assert found["r2"] == pytest.approx(1 - 30**2 / (2 * 60**2))
    assert task.score(torch.tensor([[-1.0], [0.5], [1.0]]), y) == pytest.approx(100 * found["r2"])
    assert task.metrics(torch.zeros(1, 1), y[:1])["r2"] is None


def test_metrics_of_classes_know_how_to_tell_a_good_model_from_a_lazy_one() -> None:
    pytest.importorskip("torchmetrics")
    task = open_task(Facts((1,), 3))
    y = torch.tensor([0] * 8 + [1, 1])
    lazy, good = torch.zeros(10, 3), torch.zeros(10, 3)
    lazy[:, 0] = 4.0
    good[torch.arange(10), y] = 4.0
    found, better = task.metrics(lazy, y), task.metrics(good, y)
    assert (found["accuracy"], found["balanced_accuracy"], found["auroc"]) == (80.0, 50.0, 0.5)
    assert (better["accuracy"], better["balanced_accuracy"], better["auroc"]) == (100.0, 100.0, 1.0)
    assert found["log_loss"] > better["log_loss"]
    assert found["calibration_error"] == pytest.approx(float(task.values(lazy)[0, 0]) - 0.8, abs=1e-5)


def test_one_class_alone_says_nothing_about_an_auroc() -> None:
    pytest.importorskip("torchmetrics")
    found = open_task(Facts((1,), 2)).metrics(torch.zeros(3, 2), torch.zeros(3).long())
    assert found["auroc"] is None
    assert found["accuracy"] == 100.0


def test_metrics_of_labels_count_each_label() -> None:
    pytest.importorskip("torchmetrics")
    task = open_task(replace(FACTS["labels"], classes=2))
    y = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    outputs = torch.where(y > 0.5, 3.0, -3.0)
    outputs[0, 1] = 3.0
    found = task.metrics(outputs, y)
    assert found["accuracy"] == task.score(outputs, y) == 87.5
    assert found["balanced_accuracy"] == 87.5
    assert found["exact_match"] == 75.0
    assert found["auroc"] == pytest.approx((1 + 0.75) / 2)


def test_means_over_clients_leave_out_who_cannot_say() -> None:
    assert mean_metrics([{"r2": 0.5}, {"r2": None}]) == {"r2": 0.5}
    assert mean_metrics([{"r2": None}]) == {"r2": None}
    assert mean_metrics([]) == {}


@pytest.mark.parametrize("task", TASKS)
def test_a_model_with_another_number_of_outputs_is_refused_in_one_line(task: str) -> None:
    opened = open_task(FACTS[task])
    opened.check_outputs(torch.zeros(2, FACTS[task].classes), "head")
    with pytest.raises(SottovoceError, match=f"head gives 7 outputs .* have {FACTS[task].classes} "):
        opened.check_outputs(torch.zeros(2, 7), "head")
