"""What so many right and wrong guesses certify, and when chance no longer explains them.

A promise of μ-GDP bounds every test: false negatives β ≥ Φ(Φ⁻¹(1 − α) − μ) for false positives α, so that a
guess between two files is wrong with probability Φ(−μ/2) at least. The number of wrong guesses therefore
bounds μ from below (Clopper and Pearson), and μ gives ε at δ, as in Nasr and others 2023. Counting alone,
without the Gaussian curve, certifies less: ε ≥ log((1 − β − δ)/α). One run with many canaries is bounded as
in Steinke, Nasr and Jagielski 2023. Thresholds are chosen from what is promised, before anything is seen.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from sottovoce.errors import SottovoceError
from sottovoce.privacy import accounting

CONFIDENCE = 0.95
FALSE_ALARM = 1e-4
"""How often an audit of a true promise may say that it is not: once in 10,000."""
_MOST_RUNS = 10**6
_DRAWN = 4096

_normal = NormalDist()


def wrong_guesses(mu: float) -> float:
    """The least probability of a wrong guess between two files under μ-GDP.

    >>> round(wrong_guesses(2.0), 3)
    0.159
    """
    return _normal.cdf(-mu / 2)


def beyond_chance(wrong: int, of: int, least: float, most: float) -> bool:
    """Returns whether a probability between `least` and `most` explains so many wrong guesses less often than
    an alarm may be false.

    >>> beyond_chance(203, 1000, 0.19, 0.21), beyond_chance(280, 1000, 0.19, 0.21)
    (False, True)
    """
    binom = stats().binom
    chance = min(float(binom.cdf(wrong, of, least)), float(binom.sf(wrong - 1, of, most)))
    return chance < FALSE_ALARM / 2


def least_mu(wrong: int, runs: int, confidence: float = CONFIDENCE) -> float:
    """The μ that so many wrong guesses certify: with this confidence no smaller one is true.

    >>> round(least_mu(203, 1000), 2)
    1.51
    """
    return max(0.0, -2 * _inverse(most_likely(wrong, runs, confidence)))


def most_likely(found: int, of: int, confidence: float) -> float:
    """The largest probability that `found` of `of` leave likely (Clopper and Pearson 1934, one-sided)."""
    return 1.0 if found >= of else float(stats().beta.ppf(confidence, found + 1, of - found))


def least_epsilon(mu: float, delta: float) -> float:
    """ε of μ-GDP at δ, by the exact curve."""
    return accounting.epsilon(mu**2, delta, "exact")


def check_runs(runs: int, mu: float) -> None:
    """Refuses so few runs that even the worst pair would most likely certify nothing."""

    def certified(count: int) -> float:
        return least_mu(round(count * wrong_guesses(mu)), count)

    if certified(runs) > 0:
        return
    needed = runs
    while needed < _MOST_RUNS and certified(needed) <= 0:
        needed = 2 * needed + 1
    raise SottovoceError(
        f"{runs} runs are too few to certify anything about this promise: play at least {needed}, or play 1 "
        "with many canaries"
    )


def counted_threshold(mu: float, delta: float, runs: int) -> float:
    """The evidence above which counting is expected to certify most, for a pair as far apart as promised."""

    def expected(threshold: float) -> float:
        rates = (1 - _normal.cdf((threshold + side * mu**2 / 2) / mu) for side in (1, -1))
        false, true = (round(runs / 2 * rate) for rate in rates)
        return counted_epsilon((false, true), (runs // 2, runs // 2), delta)

    return max((mu * step / 20 for step in range(101)), key=expected)


def counted_epsilon(above: tuple[int, int], runs: tuple[int, int], delta: float) -> float:
    """ε by counting: in how many runs of the first and of the second file was evidence above a threshold?

    >>> round(counted_epsilon((0, 400), (5000, 5000), 1e-5), 1)
    4.6
    """
    half = 1 - (1 - CONFIDENCE) / 2
    positives = most_likely(above[0], runs[0], half)
    right = 1 - most_likely(runs[1] - above[1], runs[1], half)
    return max(0.0, math.log((right - delta) / positives)) if right > delta else 0.0


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """ε that `right` of `guesses` about so many canaries of one run certify (their Theorem 5.2).

    >>> round(one_run_epsilon(1000, 100, 97, 1e-5), 1)
    2.5
    """

    def credible(epsilon: float) -> bool:
        return _one_run_chance(canaries, guesses, right, epsilon, delta) > 1 - confidence

    low, high = 0.0, 1.0
    while not credible(high):
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if credible(middle) else (middle, high)
    return low


def one_run_guesses(canaries: int, mu: float, delta: float) -> int:
    """Returns how many canaries to guess, those with most evidence, so that most is certified on average."""
    draws = np.random.default_rng(0).normal(mu**2 / 2, mu, _DRAWN)
    strongest = draws[np.argsort(-np.abs(draws))] > 0

    def expected(guesses: int) -> float:
        right = strongest[: max(1, round(_DRAWN * guesses / canaries))].mean()
        return one_run_epsilon(canaries, guesses, round(guesses * float(right)), delta)

    choices = sorted({max(1, round(canaries * step / 20)) for step in range(1, 21)})
    return max(choices, key=expected)


def _one_run_chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The chance of so many right guesses, at most, under (ε, δ)."""
    binomial = stats().binom(guesses, 1 / (1 + math.exp(-epsilon)))
    likely = float(binomial.sf(right - 1))
    fewer = np.arange(1, right + 1)
    share = float(np.max(np.cumsum(binomial.pmf(right - fewer)) / fewer, initial=0.0))
    return min(1.0, likely + 2 * canaries * delta * share)


def _inverse(probability: float) -> float:
    if probability <= 0:
        return -math.inf
    return math.inf if probability >= 1 else _normal.inv_cdf(probability)


def stats() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise SottovoceError("bounds of guesses need scipy: pip install 'sottovoce[audit]'") from None
    return stats
