"""Estimators of scikit-learn's kind: they pass its checks, spend what they say, scale nothing by records."""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import sottovoce
from sottovoce import PrivateClassifier, PrivateRegressor
from sottovoce.errors import SottovoceError
from sottovoce.run.estimators import EstimatorError

SITES = [None, "north", ("south", 2)]
FEW = {"rounds": 3}
"""Enough where only the outside of an estimator matters."""


def records(count: int = 240, columns: int = 3) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (count, columns))
    return X, np.where(X[:, 0] > 0, "ill", "well"), [SITES[i % 3] for i in range(count)]


@pytest.fixture(scope="module")
def fitted() -> PrivateClassifier:
    X, y, site = records()
    return PrivateClassifier(epsilon=4).fit(X, y, groups=site)


CHEAP = {
    "check_estimator_cloneable", "check_estimator_tags_renamed",
    "check_no_attributes_set_in_init", "check_estimator_repr", "check_parameters_default_constructible",
    "check_get_params_invariance", "check_set_params", "check_mixin_order", "check_estimators_unfitted",
    "check_requires_y_none", "check_estimators_empty_data_messages", "check_estimators_nan_inf",
    "check_classifiers_regression_target", "check_complex_data",
}  # fmt: skip
"""Checks that hardly fit anything; `make test-slow` runs all of them."""


@pytest.mark.filterwarnings("ignore:all records are one client's")
@pytest.mark.parametrize(
    "estimator", [PrivateClassifier(plan=FEW), PrivateRegressor(plan=FEW)], ids=["classes", "number"]
)
def test_checks_of_scikit_learn_that_hardly_fit(estimator: Any) -> None:
    ran = set()
    for one, check in estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if name in CHEAP:
            check(one)
            ran.add(name)
    assert len(ran) >= len(CHEAP) - 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [PrivateClassifier(), PrivateRegressor()], ids=["classes", "number"])
def test_all_checks_of_scikit_learn_pass_without_an_exception(estimator: Any) -> None:
    found = check_estimator(estimator, on_fail="raise", on_skip=None, expected_failed_checks={})
    assert {one["check_name"] for one in found if one["status"] == "skipped"} <= {"check_array_api_input"}


def test_each_group_has_its_model_for_the_epsilon_that_was_asked_for(fitted: PrivateClassifier) -> None:
    X, y, site = records()
    assert fitted.epsilon_ <= 4
    assert fitted.epsilon_ == pytest.approx(4, abs=1e-3)
    assert fitted.delta_ == 1e-5
    assert fitted.groups_ == SITES
    assert fitted.score(X, y, groups=site) > 0.8
    probabilities = fitted.predict_proba(X, groups=site)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(len(X)))
    assert (fitted.classes_[probabilities.argmax(axis=1)] == fitted.predict(X, groups=site)).all()
    apart = [fitted.predict_proba(X[:5], groups=[one] * 5) for one in SITES]
    assert not np.allclose(apart[0], apart[1])
    mixed = fitted.predict_proba(X[:3], groups=SITES)
    assert mixed == pytest.approx(np.stack([one[i] for i, one in enumerate(apart)]))


def test_a_group_that_did_not_train_gets_what_all_share(fitted: PrivateClassifier) -> None:
    X, _, _ = records()
    new = [fitted.predict_proba(X[:5], groups=[one] * 5) for one in ("elsewhere", 7)]
    assert (new[0] == new[1]).all()
    assert not np.allclose(new[0], fitted.predict_proba(X[:5], groups=["north"] * 5))


def test_it_is_copied_kept_and_cloned(fitted: PrivateClassifier) -> None:
    X, _, site = records()
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(X, groups=site) == fitted.predict_proba(X, groups=site)).all()
    assert not hasattr(clone(fitted), "epsilon_")


def test_the_order_of_records_decides_nothing() -> None:
    """Which group came first decided who trained on what, in all groups."""
    X, y, site = records(60)
    fits = [
        PrivateClassifier(plan=FEW, random_state=0).fit(X[rows], y[rows], [site[row] for row in rows])
        for rows in (range(60), [1, 0, *range(2, 60)])
    ]
    assert fits[0].groups_ == fits[1].groups_
    one, other = (fit.predict_proba(X, groups=site) for fit in fits)
    assert one == pytest.approx(other)


def test_x_is_clamped_and_never_scaled_by_itself() -> None:
    X, y, site = records()
    wild = X.copy()
    wild[0, 0], wild[1, 1] = 1e9, -1e9
    tame = np.clip(wild, -1, 1)
    seeded = PrivateClassifier(random_state=1, plan=FEW)
    one, other = clone(seeded).fit(wild, y, groups=site), clone(seeded).fit(tame, y, groups=site)
    assert (one.predict_proba(X, groups=site) == other.predict_proba(X, groups=site)).all()
    assert (one.predict_proba(X * 1e6, groups=site) == one.predict_proba(np.sign(X), groups=site)).all()
    # What other records are changes nothing of how one is seen.
    elsewhere = clone(seeded).fit(X / 1000, y, groups=site)
    assert (elsewhere._encoded(X) == one._encoded(X)).all()


def test_bounds_are_a_pair_or_one_for_each_column() -> None:
    X, y, site = records(60)
    seeded = PrivateClassifier(random_state=1, plan=FEW)
    pairs = [(-1, 1), (-10, 10), (0, 1000)]
    stretched = X * [1, 10, 500] + [0, 0, 500]
    one = clone(seeded).fit(X, y, groups=site)
    other = clone(seeded).set_params(bounds=pairs).fit(stretched, y, groups=site)
    assert other.predict_proba(stretched, groups=site) == pytest.approx(
        one.predict_proba(X, groups=site), abs=1e-5
    )


def test_classes_may_be_named_that_no_record_has() -> None:
    X, y, site = records(60)
    found = PrivateClassifier(classes=["ill", "unsure", "well"], plan=FEW).fit(X, y, groups=site)
    assert list(found.classes_) == ["ill", "unsure", "well"]
    assert found.predict_proba(X, groups=site).shape == (60, 3)
    with pytest.raises(ValueError, match="label 'well' is not among classes"):
        PrivateClassifier(classes=["ill", "unsure"]).fit(X, y, groups=site)


def test_numbers_lie_within_their_bounds() -> None:
    X, _, site = records()
    y = 50 + 30 * X[:, 0]
    found = PrivateRegressor(epsilon=8, target_bounds=(0, 100)).fit(X, y, groups=site)
    assert found.epsilon_ <= 8
    assert found.score(X, y, groups=site) > 0.5
    assert found.predict(X * 100, groups=site).min() >= 0
    assert found.predict(X * 100, groups=site).max() <= 100


def test_without_groups_one_line_says_what_to_do(fitted: PrivateClassifier) -> None:
    X, y, _ = records(40)
    with pytest.warns(UserWarning, match="all records are one client's.*pass groups=…") as warned:
        alone = PrivateClassifier(plan=FEW).fit(X, y)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone.predict(X)
    with pytest.raises(EstimatorError, match="each of the 3 groups has its model: say with groups=…"):
        fitted.predict(X)


WRONG: dict[str, tuple[dict[str, Any], Any, str]] = {
    "few groups": ({}, ["a"], "groups has 1 values for 40 records"),
    "no group": ({}, [float("nan")] * 40, "record 0 has no group"),
    "lists": ({}, [["a"]] * 40, "not hashable"),
    "a small group": ({}, ["a"] * 39 + ["b"], "group 'b': 1 sample"),
    "bounds": ({"bounds": (1, -1)}, ["a"] * 40, "bounds are"),
    "three bounds": ({"bounds": (0, 1, 2)}, ["a"] * 40, "bounds are"),
    "texts": ({"bounds": "wide"}, ["a"] * 40, "bounds are"),
    "epsilon": ({"epsilon": -1}, ["a"] * 40, "epsilon must be above 0"),
    "a key": ({"plan": {"round": 3}}, ["a"] * 40, "unknown plan key 'round': did you mean 'rounds'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_a_value_error_of_one_line(what: str) -> None:
    X, y, _ = records(40)
    settings, groups, said = WRONG[what]
    with pytest.raises(ValueError, match=said) as caught:
        PrivateClassifier(**settings).fit(X, y, groups=groups)
    assert isinstance(caught.value, SottovoceError)
    assert "\n" not in str(caught.value)


def test_they_say_that_they_simulate_on_pooled_records() -> None:
    assert "simulation" in (PrivateClassifier.__doc__ or "").splitlines()[0]
    assert "simulation" in (PrivateRegressor.__doc__ or "").splitlines()[0]
    assert "pooled" in (PrivateClassifier.__doc__ or "")


def test_the_package_does_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "sottovoce.run.estimators")
    with pytest.raises(
        SottovoceError, match=r"scikit-learn 1.6 or later: pip install 'sottovoce\[sklearn\]'"
    ):
        sottovoce.PrivateClassifier  # noqa: B018
    assert sottovoce.train is not None
