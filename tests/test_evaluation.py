from __future__ import annotations

import torch

from sottovoce.evaluation import Evaluation, mean_accuracy


def test_clients_count_alike_whatever_their_number_of_records() -> None:
    right = Evaluation.of(torch.eye(3)[[0]], torch.tensor([0]), torch.ones(3).bool())
    wrong = Evaluation.of(torch.eye(3)[[0] * 9], torch.tensor([1] * 9), torch.ones(3).bool())
    assert mean_accuracy({"a": right, "b": wrong}) == 50.0
    assert mean_accuracy({}) is None


def test_masking_never_lowers_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits, y = torch.randn(20, 5, generator=generator), torch.randint(3, (20,), generator=generator)
        result = Evaluation.of(logits, y, torch.tensor([True, True, True, False, False]))
        assert result.masked_accuracy >= result.accuracy
        assert result.confusion.sum() == 20
        assert result.accuracy == 100.0 * int((logits.argmax(1) == y).sum()) / 20
