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

BINS = 10
"""Of a reliability curve."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One client's model on its held-out records: outputs (n, classes) and targets (n, …)."""

    task: Task
    outputs: Tensor
    y: Tensor
    owned: Tensor | None = None
    """Which classes the client has, (classes,) bool, where records have one."""
    known: Tensor | None = None
    """Targets of records that are not held out, of which a constant is made."""

    @classmethod
    def of(
        cls, task: Task, outputs: Tensor, y: Tensor, owned: Tensor | None = None, known: Tensor | None = None
    ) -> Evaluation:
        """From outputs on any device.

        >>> from sottovoce.data import Facts
        >>> from sottovoce.tasks import open_task
        >>> logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
        >>> has = torch.tensor([False, True, True])
        >>> result = Evaluation.of(open_task(Facts((1,), 3)), logits, torch.tensor([1, 2]), has)
        >>> result.accuracy, result.masked_accuracy
        (50.0, 100.0)
        """
        others = (None if tensor is None else tensor.cpu() for tensor in (owned, known))
        return cls(task, outputs.cpu(), y.cpu(), *others)

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

    @property
    def constant(self) -> Metrics:
        """What this client would have without any model: the task's metric, and the log loss."""
        if self.known is None or not len(self.known) or not len(self.y):
            return {}
        outputs = constant(self.task, self.known, len(self.y))
        found: Metrics = {self.task.metric: self.task.score(outputs, self.y)}
        if self.task.name != "number":
            found["log_loss"] = float(self.task.losses(outputs, self.y).mean())
        return found

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


def constant(task: Task, y: Tensor, count: int) -> Tensor:
    """Outputs (count, outputs) that are the same for all: shares, one record added to each, or the mean."""
    outputs = task.facts.classes
    if task.name == "number":
        return y.mean().expand(count, 1)
    if task.name == "labels":
        share = (y.sum(dim=0) + 1) / (len(y) + 2)
        return torch.logit(share).expand(count, outputs)
    shares = torch.bincount(y, minlength=outputs) + 1.0
    return (shares / shares.sum()).log().expand(count, outputs)


class Curves:
    """Reliability curves: of held-out records by stated probability, how many were as stated."""

    def __init__(self) -> None:
        self._counts: dict[str, np.ndarray] = {}

    def add(self, row: str, task: Task, outputs: Tensor, y: Tensor) -> None:
        """Adds one site's records: the second of two classes, the decided one of more, or every label."""
        if task.name == "number":
            return
        stated = task.values(outputs.double())
        true = y if task.name == "labels" else torch.nn.functional.one_hot(y, stated.shape[1])
        if task.name == "classes":
            chosen = torch.ones_like(y) if stated.shape[1] == 2 else stated.argmax(dim=1)
            stated, true = (values.gather(1, chosen[:, None]) for values in (stated, true))
        p, t = stated.flatten().numpy(), true.flatten().double().numpy()
        bins = np.minimum((p * BINS).astype(int), BINS - 1)
        counts = self._counts.setdefault(row, np.zeros((3, BINS)))
        for place, weights in enumerate((np.ones_like(p), p, t)):
            counts[place] += np.bincount(bins, weights, BINS)

    def told(self) -> dict[str, list[dict[str, float]]]:
        """For each row the bins that hold records: `records`, `stated` and `observed`, both in percent."""
        return {
            row: [
                {"records": n, "stated": 100 * p / n, "observed": 100 * t / n}
                for n, p, t in counts.T.tolist()
                if n
            ]
            for row, counts in self._counts.items()
        }
