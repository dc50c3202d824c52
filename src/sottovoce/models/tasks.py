"""Tasks: what a model's outputs mean, and how well they say it.

`classes` (softmax over classes of which one holds), `labels` (independent sigmoids, several may hold) and
`number` (a target scaled by its public bounds to −1…1, squared error). A task gives the loss of each record,
whose gradient a client clips; turns outputs into probabilities or values, and into a decision; and measures
held-out records. Nothing here mixes records except `metrics`, which stays with the client or a simulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.data.dataset import Facts
from sottovoce.data.tables import schema
from sottovoce.errors import SottovoceError
from sottovoce.plan.catalog import METRICS, entry, function
from sottovoce.plan.catalog import TASKS as CAPABILITIES

Losses = Callable[[Tensor, Tensor], Tensor]
"""Losses (n,) of outputs (n, …) and targets (n, …): each record's own."""
Metrics = dict[str, float | None]
"""By name; None where these records cannot say."""


class Task(ABC):
    """What the outputs (n, `facts.classes`) of a model stand for."""

    name: str

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @property
    def metric(self) -> str:
        """The metric by which models are compared, on a scale of 100."""
        return CAPABILITIES[self.name].metric

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each record, (n,)."""

    @abstractmethod
    def values(self, outputs: Tensor) -> Tensor:
        """Probabilities (n, outputs), or the predicted numbers (n, 1) in the target's own units."""

    @abstractmethod
    def decisions(self, outputs: Tensor) -> Tensor:
        """Returns what a model says: class (n,), labels (n, outputs) bool, number (n,) in its own units."""

    @abstractmethod
    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        """`metric` of these records, on a scale of 100; None where they cannot say."""

    def metrics(self, outputs: Tensor, y: Tensor) -> Metrics:
        """All metrics that the catalog has for the task, of these records. Needs the package torchmetrics."""
        return {
            name: function(metric.measured[self.name])(self, outputs, y)
            for name, metric in METRICS.items()
            if self.name in metric.measured
        }

    def in_units(self, y: Tensor) -> Tensor:
        """Targets as people know them, where they were scaled."""
        return y

    def check_outputs(self, outputs: Tensor, model: str) -> None:
        """Refuses a model that does not give one output for each class, label or number."""
        found, wanted = tuple(outputs.shape[1:]), self.facts.classes
        if found != (wanted,):
            given = " × ".join(map(str, found)) or "no"
            raise SottovoceError(
                f"{model} gives {given} outputs a record, but the records have {wanted} ({self.name}): end "
                f"it with a layer of {wanted}"
            )


class Classes(Task):
    """One class of several: softmax, cross-entropy."""

    name = "classes"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y)

    def values(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    def decisions(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(dim=1)

    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        return percent((self.decisions(outputs) == y).float())


class Labels(Task):
    """Labels of which several may hold: a sigmoid each, the mean of their cross-entropies."""

    name = "labels"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(dim=1)

    def values(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def decisions(self, outputs: Tensor) -> Tensor:
        return outputs > 0

    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        return percent((self.decisions(outputs) == (y > 0.5)).float())


class Number(Task):
    """A number between public bounds, scaled to −1…1: half the squared error; predictions are clamped."""

    name = "number"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        agreed = schema.of(facts.source or facts)
        self._center, self._reach = (
            (0.0, 1.0) if agreed is None else (agreed.target.center, agreed.target.reach)
        )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.squeeze(1) - y).square() / 2

    def values(self, outputs: Tensor) -> Tensor:
        return self.in_units(outputs.clamp(-1.0, 1.0))

    def decisions(self, outputs: Tensor) -> Tensor:
        return self.values(outputs).squeeze(1)

    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        residual = (outputs.squeeze(1).clamp(-1.0, 1.0) - y).double().square().sum()
        spread = (y.double() - y.double().mean()).square().sum()
        return 100.0 * (1.0 - float(residual / spread)) if len(y) > 1 and spread > 0 else None

    def in_units(self, y: Tensor) -> Tensor:
        return y * self._reach + self._center


TASKS: dict[str, Callable[[Facts], Task]] = {"classes": Classes, "labels": Labels, "number": Number}
"""What opens each task of the catalog, from the facts about records."""


@lru_cache(maxsize=64)
def open_task(facts: Facts) -> Task:
    """The task of a run's facts.

    >>> task = open_task(Facts((2,), classes=3))
    >>> task.decisions(torch.tensor([[0.0, 2.0, 1.0]])).tolist()
    [1]
    """
    return entry("task", facts.task, TASKS)(facts)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of each record of task `classes`, (n,)."""
    return F.cross_entropy(outputs, y, reduction="none")


def mean_metrics(metrics: Sequence[Mapping[str, float | None]]) -> Metrics:
    """Means over clients, each counting alike; a client that cannot say is left out of a mean.

    >>> mean_metrics([{"auroc": 0.5}, {"auroc": 0.7}, {"auroc": None}])
    {'auroc': 0.6}
    """
    means: Metrics = {}
    for name in dict.fromkeys(name for one in metrics for name in one):
        known = [value for one in metrics if (value := one.get(name)) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means


def percent(values: Tensor) -> float | None:
    """A hundred times the mean; None of nothing."""
    return 100.0 * float(values.double().mean()) if values.numel() else None
