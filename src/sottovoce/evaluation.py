"""Evaluation: how well personal models do on records that neither trained them nor made their context.

Accuracy is reported unmasked, over all classes; masked accuracy, where a model may choose only among the
classes its client has, stands beside it for comparison with code that evaluates so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Evaluation:
    """One client's model on its held-out records: counts (true class, predicted class), and masked hits."""

    confusion: np.ndarray
    masked_correct: int

    @classmethod
    def of(cls, logits: Tensor, y: Tensor, owned: Tensor) -> Evaluation:
        """From logits (n, classes), labels y (n,) and the classes the client has (classes,) bool.

        >>> logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
        >>> result = Evaluation.of(logits, torch.tensor([1, 2]), torch.tensor([False, True, True]))
        >>> result.accuracy, result.masked_accuracy
        (50.0, 100.0)
        """
        classes = logits.shape[1]
        confusion = torch.bincount(y * classes + logits.argmax(dim=1), minlength=classes**2)
        masked = torch.where(owned, logits, -torch.inf).argmax(dim=1)
        return cls(confusion.reshape(classes, classes).cpu().numpy(), int((masked == y).sum()))

    @property
    def accuracy(self) -> float:
        """Percent of held-out records classified correctly."""
        return 100.0 * float(np.trace(self.confusion)) / float(self.confusion.sum())

    @property
    def masked_accuracy(self) -> float:
        """The same when only the client's own classes may be chosen."""
        return 100.0 * self.masked_correct / float(self.confusion.sum())


def mean_accuracy(evaluations: Mapping[str, Evaluation]) -> float | None:
    """Mean over clients, each counting alike, in percent; None without clients."""
    if not evaluations:
        return None
    return float(np.mean([evaluation.accuracy for evaluation in evaluations.values()]))
