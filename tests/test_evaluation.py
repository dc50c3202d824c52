from __future__ import annotations

import torch

from sottovoce.data import Facts
from sottovoce.evaluation import Evaluation, mean_accuracy
from sottovoce.tasks import open_task

TASK, WIDE = open_task(Facts((1,), 3)), open_task(Facts((1,), 5))


def test_clients_count_alike_whatever_their_number_of_records() -> None:
    right = Evaluation.of(TASK, torch.eye(3)[[0]], torch.tensor([0]), torch.ones(3).bool())
    wrong = Evaluation.of(TASK, torch.eye(3)[[0] * 9], torch.tensor([1] * 9), torch.ones(3).bool())
    assert mean_accuracy({"a": right, "b": wrong}) == 50.0
    assert mean_accuracy({}) is None


def test_masking_never_lowers_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits, y = torch.randn(20, 5, generator=generator), torch.randint(3, (20,), generator=generator)
        result = Evaluation.of(WIDE, logits, y, torch.tensor([True, True, True, False, False]))
        assert result.masked_accuracy >= result.accuracy
        assert result.confusion.sum() == 20
        assert result.accuracy == 100.0 * int((logits.argmax(1) == y).sum()) / 20


def test_a_client_without_a_usable_record_says_nothing() -> None:
    nothing = Evaluation.of(TASK, torch.zeros(0, 3), torch.zeros(0).long(), torch.ones(3).bool())
    assert nothing.accuracy is nothing.masked_accuracy is None
    assert nothing.metrics() == {}
    right = Evaluation.of(TASK, torch.eye(3)[[0]], torch.tensor([0]), torch.ones(3).bool())
    assert mean_accuracy({"a": right, "b": nothing}) == 100.0


def test_a_number_has_neither_confusion_nor_mask() -> None:
    task = open_task(Facts((1,), 1, task="number"))
    result = Evaluation.of(task, torch.tensor([[0.5], [-0.5]]), torch.tensor([0.5, -0.5]))
    assert result.accuracy == 100.0
    assert result.confusion is result.masked_accuracy is None
