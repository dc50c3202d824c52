"""Bounds hold as often as they say, and certify what the literature says they do."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

from sottovoce.audit import bounds
from sottovoce.errors import SottovoceError
from sottovoce.report.promise import _promised

MU = 1.6660305978  # of ε = 8 at δ = 1e-5
TRIES = 2000
# A rate of 5 % in 2,000 tries is below 6.5 % with a probability of 99.9 %.
MOST = 0.065


def test_a_bound_is_above_the_truth_in_one_of_twenty_audits_at_most() -> None:
    wrong = np.random.default_rng(1).binomial(300, bounds.wrong_guesses(MU), size=TRIES)
    above = np.mean([bounds.least_mu(int(found), 300) > MU for found in wrong])
    assert 0.02 < above < MOST


def test_an_alarm_is_false_once_in_ten_thousand_audits_at_most() -> None:
    quantile = int(stats.binom.ppf(bounds.FALSE_ALARM, 300, bounds.wrong_guesses(MU)))
    assert bounds.least_mu(quantile + 1, 300, 1 - bounds.FALSE_ALARM) <= MU
    assert bounds.least_mu(quantile - 6, 300, 1 - bounds.FALSE_ALARM) > MU


def test_counting_is_above_the_truth_in_one_of_twenty_audits_at_most() -> None:
    # Randomized response: ε = log(p/q) and δ = 0, exactly what counting can certify.
    rng, epsilon = np.random.default_rng(2), 2.0
    q = 1 / (1 + np.exp(epsilon))
    found = [
        bounds.counted_epsilon((int(rng.binomial(500, q)), int(rng.binomial(500, 1 - q))), (500, 500), 0.0)
        for _ in range(TRIES)
    ]
    assert np.mean(np.array(found) > epsilon) < MOST
    assert np.median(found) > 0.8 * epsilon


def test_counting_certifies_at_most_half_of_epsilon_8_in_ten_thousand_runs() -> None:
    threshold = bounds.counted_threshold(MU, 1e-5, 10_000)
    normal = stats.norm()
    rates = [normal.sf((threshold + side * MU**2 / 2) / MU) for side in (1, -1)]
    above = (round(5000 * rates[0]), round(5000 * rates[1]))
    assert 3.2 < bounds.counted_epsilon(above, (5000, 5000), 1e-5) < 3.8


def test_one_run_is_above_the_truth_in_one_of_twenty_audits_at_most() -> None:
    rng, epsilon, canaries = np.random.default_rng(3), 1.5, 200
    right = rng.binomial(canaries, 1 / (1 + np.exp(-epsilon)), size=300)
    found = np.array([_one_run(int(one)) for one in right])
    assert np.mean(found > epsilon) < 0.1  # of 300 tries, at 5 %: below with 99.98 %
    assert np.median(found) > 0.7 * epsilon


@cache
def _one_run(right: int) -> float:
    return bounds.one_run_epsilon(200, 200, right, 0.0)


def test_delta_makes_one_run_certify_less() -> None:
    without = bounds.one_run_epsilon(1000, 100, 97, 0.0)
    assert 0 < bounds.one_run_epsilon(1000, 100, 97, 1e-4) < without


def test_nothing_is_certified_by_chance() -> None:
    assert bounds.least_mu(500, 1000) == 0.0
    assert bounds.least_mu(1000, 1000) == 0.0
    assert bounds.counted_epsilon((250, 250), (500, 500), 1e-5) == 0.0
    assert bounds.one_run_epsilon(100, 50, 25, 1e-5) == pytest.approx(0.0, abs=1e-3)


def test_the_promised_curve_is_symmetric_and_falls() -> None:
    positives = np.linspace(0.01, 0.99, 50)
    negatives = [_promised(float(one), MU) for one in positives]
    assert np.all(np.diff(negatives) < 0)
    back = [_promised(one, MU) for one in negatives]
    assert back == pytest.approx(positives.tolist(), abs=1e-9)
    assert _promised(0.0, MU) == 1.0
    assert _promised(0.5, 2.0) == pytest.approx(0.0228, abs=5e-5)


def test_too_few_runs_are_refused_with_how_many_it_takes() -> None:
    bounds.check_runs(100, MU)
    with pytest.raises(SottovoceError, match=r"5 runs are too few .* play at least"):
        bounds.check_runs(5, MU)
    with pytest.raises(SottovoceError, match="100 runs are too few"):
        bounds.check_runs(100, 0.01)


def test_without_scipy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    with pytest.raises(SottovoceError, match=r"sottovoce\[audit\]"):
        bounds.least_mu(3, 10)
