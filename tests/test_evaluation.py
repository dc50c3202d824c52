from __future__ import annotations

import math

import pytest
import torch

from sottovoce.data import Facts
from sottovoce.models.metrics import Curves, Evaluation, mean_accuracy
from sottovoce.models.tasks import open_task

TASK, WIDE = open_task(Facts((1,), 3)), open_task(Facts((1,), 5))


def test_clients_count_alike_whatever_their_number_of_records() -> None:
    right = Evaluation(TASK, torch.eye(3)[[0]], torch.tensor([0]), torch.ones(3).bool())
    wrong = Evaluation(TASK, torch.eye(3)[[0] * 9], torch.tensor([1] * 9), torch.ones(3).bool())
    assert mean_accuracy({"a": right, "b": wrong}) == 50.0
    assert mean_accuracy({}) is None


def test_masking_never_lowers_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits, y = torch.randn(20, 5, generator=generator), torch.randint(3, (20,), generator=generator)
        result = Evaluation(WIDE, logits, y, torch.tensor([True, True, True, False, False]))
        assert result.masked_accuracy >= result.accuracy
        assert result.confusion.sum() == 20
        assert result.accuracy == 100.0 * int((logits.argmax(1) == y).sum()) / 20


def test_a_client_without_a_usable_record_says_nothing() -> None:
    nothing = Evaluation(TASK, torch.zeros(0, 3), torch.zeros(0).long(), torch.ones(3).bool())
    assert nothing.accuracy is nothing.masked_accuracy is None
    assert nothing.metrics() == {}
    right = Evaluation(TASK, torch.eye(3)[[0]], torch.tensor([0]), torch.ones(3).bool())
    assert mean_accuracy({"a": right, "b": nothing}) == 100.0


def test_a_number_has_neither_confusion_nor_mask() -> None:
    task = open_task(Facts((1,), 1, task="number"))
    result = Evaluation(task, torch.tensor([[0.5], [-0.5]]), torch.tensor([0.5, -0.5]))
    assert result.accuracy == 100.0
    assert result.confusion is result.masked_accuracy is None


def test_a_constant_is_made_of_the_clients_other_records_and_judged_on_those_held_out() -> None:
    task = open_task(Facts((1,), 2))
    known, y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 1])
    found = Evaluation(task, torch.zeros(3, 2), y, known=known).constant
    assert found["accuracy"] == pytest.approx(200 / 3)
    share = 3 / 10  # one record added to each class
    assert found["log_loss"] == pytest.approx(-(2 * math.log(1 - share) + math.log(share)) / 3)
    assert Evaluation(task, torch.zeros(3, 2), y).constant == {}


def test_a_reliability_curve_says_how_often_what_is_stated_happens() -> None:
    task, curves = open_task(Facts((1,), 2)), Curves()
    stated = torch.tensor([0.95] * 20 + [0.25] * 4).double()
    outputs = torch.stack([torch.zeros(24).double(), torch.logit(stated)], dim=1)
    y = torch.tensor([1] * 10 + [0] * 10 + [1, 0, 0, 0])
    curves.add("seen", task, outputs, y)
    low, high = curves.told()["seen"]
    assert (low["records"], high["records"]) == (4, 20)
    assert [low["stated"], low["observed"], high["stated"], high["observed"]] == pytest.approx(
        [25, 25, 95, 50]
    )
