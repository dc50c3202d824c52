"""Estimators of scikit-learn's kind: a federation behind `fit` and `predict`, simulated on pooled records.

Each group of records is a client that trains; every record is protected with (ε, δ) against everybody but its
own group, as if the groups had never pooled them. Nothing is scaled by what the records are: X is clamped to
public bounds, classes and groups are public. Whoever calls `fit` has all records in one process, so this is a
simulation: to keep them apart, start a federation (docs/deployment.md).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sottovoce.data import Dataset, Facts
from sottovoce.errors import SottovoceError
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan
from sottovoce.plan.presets import FOLDER
from sottovoce.run.prepare import prepare
from sottovoce.run.rehearsal import rehearse

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise SottovoceError(
        "estimators need scikit-learn 1.6 or later: pip install 'sottovoce[sklearn]'"
    ) from None

POOLED = "pooled records"
"""What a plan calls the records that `fit` was given."""
Values = npt.NDArray[Any]
Groups = Iterable[Hashable] | None
"""Whose each record is; None: nobody has said."""


class EstimatorError(SottovoceError, ValueError):
    """Records or settings that an estimator cannot use."""


class _Private(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: clients made of groups, one training, a model for each group."""

    epsilon: float
    delta: float | None
    bounds: Any
    plan: Mapping[str, Any] | None
    random_state: Any

    def _train(self, X: Values, y: Tensor, groups: Groups, outputs: int, task: str) -> None:
        owner, names = _groups(groups, len(X))
        self.groups_ = list(names)
        if min(np.bincount(owner)) < 2:
            small = self.groups_[int(np.bincount(owner).argmin())]
            what = "all records" if groups is None else f"group {small!r}"
            raise EstimatorError(f"{what}: 1 sample, and two are needed, to train on one and hold one out")
        self._low, self._high = _bounds(self.bounds, X.shape[1])
        self._facts = Facts((X.shape[1],), outputs, (0.0,), (math.sqrt(X.shape[1]),), task=task)
        texts = [f"{place}: {name}" for place, name in enumerate(names)]
        records = Dataset(POOLED, self._encoded(X), y, self._facts, torch.from_numpy(owner), tuple(texts))
        try:
            prepared = prepare(self._plan(), records, trusted=True)
            with TemporaryDirectory() as folder:
                run = rehearse(prepared, Path(folder) / "ledger.sqlite", lambda line: None)
        except SottovoceError as error:
            raise EstimatorError(str(error)) from None
        blueprint = prepared.blueprint
        self._module: nn.Module = blueprint.module.double()
        thetas = [blueprint.theta(one).double() for one in run.coefficients]
        trained = [names[texts.index(text)] for text in prepared.federation.names]
        self._parameters = dict(zip(trained, thetas, strict=True))
        self._newcomers = blueprint.theta(run.shared).double()
        self.epsilon_: float = math.inf if run.spent is None else run.spent
        self.delta_: float = prepared.plan.delta

    def _plan(self) -> Plan:
        given: dict[str, Any] = {"dataset": POOLED, **FOLDER, "channel": "direct", "evaluate_every": 0}
        given |= {"epsilon": self.epsilon} | ({} if self.delta is None else {"delta": self.delta})
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            given |= {"seed": seed, "seeded": True}
        return Plan.load(overrides={**given, **(self.plan or {})})

    def _encoded(self, X: Values) -> Tensor:
        """X clamped to its bounds, and scaled as if each value between them were equally likely."""
        spread = (self._high - self._low) / math.sqrt(12)
        clamped = np.clip(X, self._low, self._high)
        return torch.from_numpy(((clamped - (self._low + self._high) / 2) / spread).astype(np.float32))

    def _outputs(self, X: Any, groups: Groups) -> Tensor:
        """Outputs (n, classes) of each record's group's model; of a group that is new, of the shared one."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        if groups is None and len(self.groups_) > 1:
            raise EstimatorError(
                f"each of the {len(self.groups_)} groups has its model: say with groups=… whose a record is"
            )
        x = self._facts.normalize(self._encoded(X)).double()
        owner, names = _groups(groups, len(X)) if groups is not None else (np.zeros(len(X), np.int64), [None])
        outputs = torch.zeros(len(X), self._facts.classes, dtype=torch.float64)
        for place, name in enumerate(names):
            rows = torch.from_numpy(np.flatnonzero(owner == place))
            with torch.no_grad():
                outputs[rows] = logits(self._module, self._parameters.get(name, self._newcomers), x[rows])
        return outputs


class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """A classifier for each group of records, trained together with (ε, δ)-privacy: a simulation.

    `groups` of `fit` says whose each record is, by any hashable value: each group is a client with a model of
    its own, and `epsilon` is what one record of any group may cost. `delta` is by default 1e-5, or less where
    groups are large. `bounds` is a public pair (low, high) for all columns, or one for each: X is clamped to
    it and never scaled by itself. `classes` are public too, by default the sorted labels. `plan` has further
    keys of a plan, such as {"rounds": 100, "noise": "server"}. `random_state` makes noise repeatable, which
    then protects nobody.

    All records are pooled in this process: ε is what a federation of the groups would have promised. Four
    fifths of each group train, the rest is held out, as in every run. Fitted: `epsilon_` and `delta_`, what
    was spent; `classes_`, `groups_`. A group that did not train gets the model that all share.
    """

    def __init__(
        self,
        epsilon: float = 8.0,
        *,
        delta: float | None = None,
        bounds: Any = (-1.0, 1.0),
        classes: Sequence[Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds, self.classes = epsilon, delta, bounds, classes
        self.plan, self.random_state = plan, random_state

    def fit(self, X: Any, y: Any, groups: Groups = None) -> PrivateClassifier:
        """Trains on X (n, columns) and labels y (n,), each record in the hands of its group."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        if len(places) < 2:
            raise EstimatorError(
                "one class alone cannot be told from another: name all of them with classes=…"
            )
        unknown = [label for label in np.unique(y).tolist() if label not in places]
        if unknown:
            raise EstimatorError(f"label {unknown[0]!r} is not among classes: name all of them")
        targets = torch.tensor([places[label] for label in y.tolist()])
        self._train(X, targets, groups, len(places), "classes")
        return self

    def predict_proba(self, X: Any, groups: Groups = None) -> Values:
        """Probabilities (n, classes), in the order of `classes_`."""
        outputs = self._outputs(X, groups)
        return open_task(self._facts).values(outputs).numpy()

    def predict(self, X: Any, groups: Groups = None) -> Values:
        """The most probable class of each record."""
        places = self._outputs(X, groups).argmax(dim=1).numpy()
        decided: Values = self.classes_[places]
        return decided

    def score(self, X: Any, y: Any, groups: Groups = None) -> float:
        """The share of records that are classified correctly."""
        return float(accuracy_score(y, self.predict(X, groups)))


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A regression for each group of records, trained together with (ε, δ)-privacy: a simulation.

    As `PrivateClassifier`; `target_bounds` is the public pair (low, high) that y is clamped to, and within
    which predictions lie.
    """

    def __init__(
        self,
        epsilon: float = 8.0,
        *,
        delta: float | None = None,
        bounds: Any = (-1.0, 1.0),
        target_bounds: tuple[float, float] = (-1.0, 1.0),
        plan: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds, self.target_bounds = epsilon, delta, bounds, target_bounds
        self.plan, self.random_state = plan, random_state

    def fit(self, X: Any, y: Any, groups: Groups = None) -> PrivateRegressor:
        """Trains on X (n, columns) and numbers y (n,), each record in the hands of its group."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        [low], [high] = _bounds(self.target_bounds, 1)
        self._center, self._reach = (low + high) / 2, (high - low) / 2
        scaled = (np.clip(np.asarray(y, np.float64), low, high) - self._center) / self._reach
        self._train(X, torch.from_numpy(scaled.astype(np.float32)), groups, 1, "number")
        return self

    def predict(self, X: Any, groups: Groups = None) -> Values:
        """The number of each record, within `target_bounds`."""
        outputs: Values = self._outputs(X, groups)[:, 0].clamp(-1.0, 1.0).numpy()
        found: Values = outputs * self._reach + self._center
        return found

    def score(self, X: Any, y: Any, groups: Groups = None) -> float:
        """R², the share of the variance of y that is explained."""
        return float(r2_score(y, self.predict(X, groups)))


def _groups(groups: Groups, records: int) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """For each record its group's place, and the groups in an order that no record's place decides."""
    if groups is None:
        warnings.warn(
            "all records are one client's, for nothing says whose they are: pass groups=…, a value a record",
            stacklevel=4,
        )
        return np.zeros(records, np.int64), [None]
    values = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    if len(values) != records:
        raise EstimatorError(f"groups has {len(values)} values for {records} records: give one for each")
    places: dict[Any, int] = {}
    owner = np.zeros(records, np.int64)
    for row, value in enumerate(values):
        try:
            if value != value:
                raise EstimatorError(f"record {row} has no group, but {value!r}: say whose it is")
            owner[row] = places.setdefault(value, len(places))
        except TypeError:
            raise EstimatorError(
                f"group {value!r} of record {row} is not hashable: use texts or numbers"
            ) from None
    try:
        names = sorted(places)
    except TypeError:  # of unlike kinds
        names = sorted(places, key=lambda name: (type(name).__name__, repr(name)))
    rank = np.empty(len(names), np.int64)
    rank[[places[name] for name in names]] = np.arange(len(names))
    return rank[owner], names


def _bounds(bounds: Any, columns: int) -> tuple[Values, Values]:
    """Lower and upper bounds (columns,)."""
    try:
        pairs = np.asarray(bounds, np.float64)
    except (TypeError, ValueError):
        pairs = np.zeros(0)
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (columns, 1))
    if pairs.shape != (columns, 2) or not np.isfinite(pairs).all() or not (pairs[:, 0] < pairs[:, 1]).all():
        raise EstimatorError(
            f"bounds are (low, high), or such a pair for each of the {columns} columns: give finite ones, "
            "the lower first"
        )
    return pairs[:, 0], pairs[:, 1]
