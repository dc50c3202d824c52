"""Evaluation: how well personal models do on records that neither trained them nor made their context.

Records that cannot be used are left out. Accuracy is reported unmasked, over all classes; masked accuracy,
where a model may choose only among the classes its client has, stands beside it for comparison with code that
evaluates so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.tasks import Metrics, Task


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One client's model on its held-out records: outputs (n, classes) and targets (n, …)."""

    task: Task
    outputs: Tensor
    y: Tensor
    owned: Tensor | None = None
    """Which classes the client has, (classes,) bool, where records have one."""

    @classmethod
    def of(cls, task: Task, outputs: Tensor, y: Tensor, owned: Tensor | None = None) -> Evaluation:
        """From outputs on any device.

        >>> from sottovoce.data import Facts
        >>> from sottovoce.tasks import open_task
        >>> logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
        >>> has = torch.tensor([False, True, True])
        >>> result = Evaluation.of(open_task(Facts((1,), 3)), logits, torch.tensor([1, 2]), has)
        >>> result.accuracy, result.masked_accuracy
        (50.0, 100.0)
        """
        return cls(task, outputs.cpu(), y.cpu(), None if owned is None else owned.cpu())

    @property
    def accuracy(self) -> float | None:
        """Percent of held-out records classified correctly, or the task's own metric on a scale of 100.

        None where there are no records to tell by.
        """
        return self.task.score(self.outputs, self.y)

    @property
    def masked_accuracy(self) -> float | None:
        """Percent when only the client's own classes may be chosen; None without classes."""
        if self.owned is None:
            return None
        return self.task.score(torch.where(self.owned, self.outputs, -torch.inf), self.y)

    @property
    def confusion(self) -> np.ndarray | None:
        """Counts (true class, predicted class); None where records have no class."""
        if self.owned is None:
            return None
        classes = self.outputs.shape[1]
        counts = torch.bincount(self.y * classes + self.task.decisions(self.outputs), minlength=classes**2)
        confusion: np.ndarray = counts.reshape(classes, classes).numpy()
        return confusion

    def metrics(self) -> Metrics:
        """All metrics of the task; nothing where there are no records."""
        return self.task.metrics(self.outputs, self.y) if len(self.y) else {}


def mean_accuracy(evaluations: Mapping[str, Evaluation]) -> float | None:
    """Mean over clients, each counting alike; None without any that has records to tell by."""
    return mean_known([evaluation.accuracy for evaluation in evaluations.values()])


def mean_known(values: list[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
