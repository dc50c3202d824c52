"""How well personal models do on records that neither trained them nor made their context: metrics by task,
which the catalog names, and evaluations of clients.

A metric takes a task, outputs (n, outputs) and targets (n, …), and returns a number; None where these
records cannot say. Accuracies are in percent, errors of numbers in the target's own units. All mix records:
they stay with the client or a simulation. Records that cannot be used are left out.

Accuracy is reported unmasked, over all classes; masked accuracy, where a model may choose only among the
classes its client has, stands beside it for comparison with code that evaluates so.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sottovoce.errors import SottovoceError, shown
from sottovoce.models.tasks import Metrics, Task, percent
from sottovoce.plan.catalog import METRICS

log = logging.getLogger("sottovoce.metrics")

BINS = 15
"""Of a calibration error."""
Own = Mapping[str, Callable[..., Any]]
"""Metrics of the user's own, by name: functions of what is true and what was decided."""
CURVE_BINS = 10
"""Of a reliability curve."""


_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def student(freedom: int) -> float:
    """Standard errors on each side of an interval of 95 %, by degrees of freedom (Student's t at 97.5 %).

    >>> student(4), round(student(15), 2), round(student(10_000), 2)
    (2.78, 2.13, 1.96)
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return 1.96 + 2.37 / freedom + 2.82 / freedom**2


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
    """Returns what the task is judged by."""
    return task.score(outputs, y)


def mean_loss(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean loss of a record."""
    return mean(task.losses(outputs.float(), y))


def mean_recall(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over classes of their share that is found, in percent."""
    classes = task.facts.classes
    recalls = _torchmetrics("multiclass_recall", task.decisions(outputs), y, classes, average="none")
    return percent(recalls[torch.bincount(y, minlength=classes) > 0])


def mean_of_both_rates(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over labels of the shares of ones and of zeros that are found, in percent."""
    values, truth = _values(task, outputs), _truth(task, y)
    rates = [
        _torchmetrics("multilabel_recall", predicted, true, task.facts.classes, average="none")
        for predicted, true in ((values, truth), (1 - values, 1 - truth))
    ]
    return percent(torch.stack(rates).mean(dim=0)[_separable(truth)])


def areas(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The mean over classes, or labels, of the area under the curve of each against all others."""
    truth, classes = _truth(task, y), task.facts.classes
    found = _torchmetrics("multilabel_auroc", _values(task, outputs), truth, classes, average="none")
    return mean(found[_separable(truth)])


def exact_match(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The share of records all of whose labels are right, in percent."""
    values, truth = _values(task, outputs), _truth(task, y)
    return 100.0 * float(_torchmetrics("multilabel_exact_match", values, truth, task.facts.classes))


def class_calibration(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """Returns how far the probability of a decision lies from the share of such decisions that are right."""
    values, how = _values(task, outputs), {"n_bins": BINS, "norm": "l1"}
    return float(_torchmetrics("multiclass_calibration_error", values, y, task.facts.classes, **how))


def label_calibration(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """Returns how far probabilities lie from shares of ones, over all labels together."""
    values, truth = _values(task, outputs).flatten(), _truth(task, y).flatten()
    return float(_torchmetrics("binary_calibration_error", values, truth, n_bins=BINS, norm="l1"))


def mean_absolute_error(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """In the target's own units."""
    return float(_torchmetrics("mean_absolute_error", *_numbers(task, outputs, y)))


def root_mean_squared_error(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """In the target's own units."""
    return math.sqrt(float(_torchmetrics("mean_squared_error", *_numbers(task, outputs, y))))


def r2(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    """The share of the target's variance that is explained."""
    predicted, true = _numbers(task, outputs, y)
    if len(y) < 2 or not bool((true != true[0]).any()):
        return None
    return float(_torchmetrics("r2_score", predicted, true))


def mean(values: Tensor) -> float | None:
    """The mean, in float64; None of nothing."""
    return float(values.double().mean()) if values.numel() else None


def _values(task: Task, outputs: Tensor) -> Tensor:
    return task.values(outputs.float())


def _truth(task: Task, y: Tensor) -> Tensor:
    """Returns which classes or labels records have, 0 or 1 (n, classes)."""
    return (y > 0.5).long() if task.name == "labels" else one_hot(y, task.facts.classes)


def _separable(truth: Tensor) -> Tensor:
    """Returns which labels some records have and others have not, bool (labels,)."""
    return (truth.sum(dim=0) > 0) & (truth.sum(dim=0) < len(truth))


def _numbers(task: Task, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return task.decisions(outputs.double()), task.in_units(y.double())


def _torchmetrics(name: str, *values: Any, **options: Any) -> Tensor:
    """Returns what a function of torchmetrics finds; imported late, without advice on absent classes."""
    of_numbers = name in ("mean_absolute_error", "mean_squared_error", "r2_score")
    module = import_module(f"torchmetrics.functional.{'regression' if of_numbers else 'classification'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Tensor = getattr(module, name)(*values, **options)
    return found


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One client's model on its held-out records: outputs (n, classes) and targets (n, …), on the CPU.

    >>> from sottovoce.data import Facts
    >>> from sottovoce.models.tasks import open_task
    >>> logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
    >>> has = torch.tensor([False, True, True])
    >>> result = Evaluation(open_task(Facts((1,), 3)), logits, torch.tensor([1, 2]), has)
    >>> result.accuracy, result.masked_accuracy
    (50.0, 100.0)
    """

    task: Task
    outputs: Tensor
    y: Tensor
    owned: Tensor | None = None
    """Which classes the client has, (classes,) bool, where records have one."""
    known: Tensor | None = None
    """Targets of records that are not held out, of which a constant is made."""

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

    def knowing(self, targets: Tensor | None) -> Evaluation:
        """The same, with these `targets` for a constant where the client has told none of its own."""
        has_own = self.known is not None and len(self.known)
        return self if has_own else replace(self, known=targets)


def known_targets(evaluations: Iterable[Evaluation]) -> Tensor | None:
    """All clients' targets that are not held out: a constant of those who join without telling any."""
    known = [one.known for one in evaluations if one.known is not None and len(one.known)]
    return torch.cat(known) if known else None


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
        true = y if task.name == "labels" else one_hot(y, stated.shape[1])
        if task.name == "classes":
            chosen = torch.ones_like(y) if stated.shape[1] == 2 else stated.argmax(dim=1)
            stated, true = (values.gather(1, chosen[:, None]) for values in (stated, true))
        p, t = stated.flatten().numpy(), true.flatten().double().numpy()
        bins = np.minimum((p * CURVE_BINS).astype(int), CURVE_BINS - 1)
        counts = self._counts.setdefault(row, np.zeros((3, CURVE_BINS)))
        for place, weights in enumerate((np.ones_like(p), p, t)):
            counts[place] += np.bincount(bins, weights, CURVE_BINS)

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
