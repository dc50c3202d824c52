"""Tasks: what a model's outputs mean, and how well they say it.

`classes` (softmax over classes of which one holds), `labels` (independent sigmoids, several may hold) and
`number` (a target scaled by its public bounds to −1…1, squared error). A task gives the loss of each record,
whose gradient a client clips; turns outputs into probabilities or values, and into a decision; and measures
held-out records. Nothing here mixes records except `metrics`, which stays with the client or a simulation.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.catalog import TASKS as CAPABILITIES
from sottovoce.catalog import entry
from sottovoce.data import description
from sottovoce.data.facts import Facts
from sottovoce.errors import SottovoceError

Losses = Callable[[Tensor, Tensor], Tensor]
"""Losses (n,) of outputs (n, …) and targets (n, …): each record's own."""
Metrics = dict[str, float | None]
"""By name; None where these records cannot say."""

BINS = 15
"""Of a calibration error."""


class NoMeasures(SottovoceError):
    """The package that measures is not installed here."""


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
        """What a model would say: class (n,), labels (n, outputs) bool, number (n,) in its own units."""

    @abstractmethod
    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        """`metric` of these records, on a scale of 100; None where they cannot say."""

    @abstractmethod
    def metrics(self, outputs: Tensor, y: Tensor) -> Metrics:
        """All metrics of these records; accuracies in percent, errors of numbers in the target's own units.

        Needs the package torchmetrics.
        """

    @abstractmethod
    def random_targets(self, count: int, generator: torch.Generator) -> Tensor:
        """Made-up targets, to try a model on."""

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
        return _percent((self.decisions(outputs) == y).float())

    def metrics(self, outputs: Tensor, y: Tensor) -> Metrics:
        with _measures("classification") as measures:
            classes, probabilities = self.facts.classes, self.values(outputs.float())
            counts = torch.bincount(y, minlength=classes)
            held, separable = counts > 0, (counts > 0) & (counts < len(y))
            recalls = measures.multiclass_recall(self.decisions(outputs), y, classes, average="none")
            areas = measures.multiclass_auroc(probabilities, y, classes, average="none")
            error = measures.multiclass_calibration_error(probabilities, y, classes, n_bins=BINS, norm="l1")
            return {
                "accuracy": self.score(outputs, y),
                "balanced_accuracy": _percent(recalls[held]),
                "auroc": _mean(areas[separable]),
                "log_loss": _mean(self.losses(outputs.float(), y)),
                "calibration_error": float(error),
            }

    def random_targets(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.facts.classes, (count,), generator=generator)


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
        return _percent((self.decisions(outputs) == (y > 0.5)).float())

    def metrics(self, outputs: Tensor, y: Tensor) -> Metrics:
        with _measures("classification") as measures:
            labels, probabilities, truth = self.facts.classes, self.values(outputs.float()), (y > 0.5).long()
            separable = (truth.sum(dim=0) > 0) & (truth.sum(dim=0) < len(truth))
            areas = measures.multilabel_auroc(probabilities, truth, labels, average="none")
            rates = [
                measures.multilabel_recall(predicted, true, labels, average="none")
                for predicted, true in ((probabilities, truth), (1 - probabilities, 1 - truth))
            ]
            error = measures.binary_calibration_error(
                probabilities.flatten(), truth.flatten(), n_bins=BINS, norm="l1"
            )
            exact = measures.multilabel_exact_match(probabilities, truth, labels)
            return {
                "accuracy": self.score(outputs, y),
                "balanced_accuracy": _percent(torch.stack(rates).mean(dim=0)[separable]),
                "exact_match": 100.0 * float(exact),
                "auroc": _mean(areas[separable]),
                "log_loss": _mean(self.losses(outputs.float(), y)),
                "calibration_error": float(error),
            }

    def random_targets(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(2, (count, self.facts.classes), generator=generator).float()


class Number(Task):
    """A number between public bounds, scaled to −1…1: half the squared error; predictions are clamped."""

    name = "number"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        agreed = description.of(facts.source or facts)
        self._center, self._reach = (
            (0.0, 1.0) if agreed is None else (agreed.target.center, agreed.target.reach)
        )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.squeeze(1) - y).square() / 2

    def values(self, outputs: Tensor) -> Tensor:
        return self._in_units(outputs.clamp(-1.0, 1.0))

    def decisions(self, outputs: Tensor) -> Tensor:
        return self.values(outputs).squeeze(1)

    def score(self, outputs: Tensor, y: Tensor) -> float | None:
        residual = (outputs.squeeze(1).clamp(-1.0, 1.0) - y).double().square().sum()
        spread = (y.double() - y.double().mean()).square().sum()
        return 100.0 * (1.0 - float(residual / spread)) if len(y) > 1 and spread > 0 else None

    def metrics(self, outputs: Tensor, y: Tensor) -> Metrics:
        with _measures("regression") as measures:
            predicted, true = self.decisions(outputs.double()), self._in_units(y.double())
            known = len(y) > 1 and bool((true != true[0]).any())
            return {
                "mean_absolute_error": float(measures.mean_absolute_error(predicted, true)),
                "root_mean_squared_error": math.sqrt(float(measures.mean_squared_error(predicted, true))),
                "r2": float(measures.r2_score(predicted, true)) if known else None,
            }

    def random_targets(self, count: int, generator: torch.Generator) -> Tensor:
        return 2 * torch.rand(count, generator=generator) - 1

    def _in_units(self, scaled: Tensor) -> Tensor:
        return scaled * self._reach + self._center


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


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if values.numel() else None


def _percent(values: Tensor) -> float | None:
    return 100.0 * float(values.double().mean()) if values.numel() else None


@contextmanager
def _measures(kind: str) -> Iterator[Any]:
    """The functions of torchmetrics, imported when first needed, without their advice on absent classes."""
    try:
        functions = import_module(f"torchmetrics.functional.{kind}")
    except ImportError:
        raise NoMeasures("metrics need the package torchmetrics: pip install torchmetrics") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield functions
