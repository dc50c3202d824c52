"""Tasks: losses are each record's own, decisions say what they should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sottovoce.data import Facts
from sottovoce.data.tables.schema import Description
from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_mean
from sottovoce.gradients.vmap import clipped_sum
from sottovoce.models.bases import Identity
from sottovoce.models.tasks import TASKS, mean_metrics, open_task
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
    y = open_task(FACTS[task]).decisions(torch.randn(count, FACTS[task].classes, generator=generator))
    return x, y.float() if task == "labels" else y


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
