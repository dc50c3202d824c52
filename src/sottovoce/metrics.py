"""Metrics: how well outputs say what is true of held-out records. The catalog names them, by task.

Each takes a task, outputs (n, outputs) and targets (n, …), and returns a number; None where these records
cannot say. Accuracies are in percent, errors of numbers in the target's own units. All mix records: they stay
with the client or a simulation. Most need the package torchmetrics.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from sottovoce.catalog import METRICS
from sottovoce.errors import SottovoceError, shown
from sottovoce.tasks import Metrics, Task, percent

log = logging.getLogger(__name__)

BINS = 15
"""Of a calibration error."""


class NoMeasures(SottovoceError):
    """The package that measures is not installed here."""


Own = Mapping[str, Callable[..., Any]]
"""Metrics of the user's own, by name: functions of what is true and what was decided."""


def check_own(own: Own | None) -> None:
    """Refuses metrics that could not be told, before anything is trained."""
    for name, measure in (own or {}).items():
        if name in METRICS or not isinstance(name, str) or not name.isprintable():
            raise SottovoceError(f"a metric cannot be called {name!r}: choose a name that is not taken yet")
        if not callable(measure):
            raise SottovoceError(f"metric '{name}' is no function: give one of (true, decided)")


def own_metrics(task: Task, outputs: Tensor, y: Tensor, own: Own | None) -> Metrics:
    """Metrics of the user's own, of these records.

    Each is called with two arrays as scikit-learn's are: what is true, and what was decided (classes by
    number, labels 0 or 1, numbers in their own units); one with a parameter `probabilities` also gets those.
    One that fails, or gives no number, is None and logged: a run is not lost for it.
    """
    found: Metrics = {}
    for name, measure in (own or {}).items() if len(y) else ():
        true, decided = task.in_units(y).numpy(), task.decisions(outputs).numpy()
        if task.name == "labels":
            true, decided = (true > 0.5).astype(int), decided.astype(int)
        more = {}
        if "probabilities" in _parameters(measure):
            more = {"probabilities": task.values(outputs.float()).numpy()}
        try:
            value = float(measure(true, decided, **more))
            found[name] = value if math.isfinite(value) else None
        except Exception as error:
            log.warning("metric '%s' cannot say: %s", name, shown(f"{type(error).__name__}: {error}"))
            found[name] = None
    return found


def _parameters(measure: Callable[..., Any]) -> Collection[str]:
    try:
        return signature(measure).parameters
    except (TypeError, ValueError):  # some built-in functions tell none
        return ()


def score(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """What the task is judged by."""
    return task.score(outputs, y)


def mean_loss(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean loss of a record."""
    return mean(task.losses(outputs.float(), y))


def mean_recall(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over classes of their share that is found, in percent."""
    with _measures("classification") as measures:
        recalls = measures.multiclass_recall(task.decisions(outputs), y, task.facts.classes, average="none")
    return percent(recalls[_counts(task, y) > 0])


def class_areas(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over classes of the area under the curve of each against all others."""
    counts = _counts(task, y)
    with _measures("classification") as measures:
        areas = measures.multiclass_auroc(_values(task, outputs), y, task.facts.classes, average="none")
    return mean(areas[(counts > 0) & (counts < len(y))])


def class_calibration(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """How far the probability of a decision lies from the share of such decisions that are right."""
    with _measures("classification") as measures:
        error = measures.multiclass_calibration_error(
            _values(task, outputs), y, task.facts.classes, n_bins=BINS, norm="l1"
        )
    return float(error)


def mean_of_both_rates(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over labels of the shares of ones and of zeros that are found, in percent."""
    values, truth = _values(task, outputs), (y > 0.5).long()
    with _measures("classification") as measures:
        rates = [
            measures.multilabel_recall(predicted, true, task.facts.classes, average="none")
            for predicted, true in ((values, truth), (1 - values, 1 - truth))
        ]
    return percent(torch.stack(rates).mean(dim=0)[_separable(truth)])


def exact_match(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The share of records all of whose labels are right, in percent."""
    with _measures("classification") as measures:
        exact = measures.multilabel_exact_match(_values(task, outputs), (y > 0.5).long(), task.facts.classes)
    return 100.0 * float(exact)


def label_areas(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over labels of the area under the curve of each."""
    truth = (y > 0.5).long()
    with _measures("classification") as measures:
        areas = measures.multilabel_auroc(_values(task, outputs), truth, task.facts.classes, average="none")
    return mean(areas[_separable(truth)])


def label_calibration(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """How far probabilities lie from shares of ones, over all labels together."""
    with _measures("classification") as measures:
        error = measures.binary_calibration_error(
            _values(task, outputs).flatten(), (y > 0.5).long().flatten(), n_bins=BINS, norm="l1"
        )
    return float(error)


def mean_absolute_error(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """In the target's own units."""
    with _measures("regression") as measures:
        return float(measures.mean_absolute_error(*_numbers(task, outputs, y)))


def root_mean_squared_error(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """In the target's own units."""
    with _measures("regression") as measures:
        return math.sqrt(float(measures.mean_squared_error(*_numbers(task, outputs, y))))


def r2(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The share of the target's variance that is explained."""
    predicted, true = _numbers(task, outputs, y)
    if len(y) < 2 or not bool((true != true[0]).any()):
        return None
    with _measures("regression") as measures:
        return float(measures.r2_score(predicted, true))


def mean(values: Tensor) -> float | None:
    """The mean, in float64; None of nothing."""
    return float(values.double().mean()) if values.numel() else None


def _values(task: Task, outputs: Tensor) -> Tensor:
    return task.values(outputs.float())


def _counts(task: Task, y: Tensor) -> Tensor:
    return torch.bincount(y, minlength=task.facts.classes)


def _separable(truth: Tensor) -> Tensor:
    """Which labels some records have and others have not, bool (labels,)."""
    return (truth.sum(dim=0) > 0) & (truth.sum(dim=0) < len(truth))


def _numbers(task: Task, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return task.decisions(outputs.double()), task.in_units(y.double())


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
