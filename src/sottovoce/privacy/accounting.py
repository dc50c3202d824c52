"""From noise to ε and back: what the releases of one client cost together.

Every release is a Gaussian mechanism, so a client's whole history is summed up by one number,
μ² = Σ (Δ/σ)² over its releases (the paper's A_i is μ²/2). `rdp` turns it into ε by the paper's closed form,
ε = A + 2√(A log 1/δ); `exact` by the tight curve of the one Gaussian mechanism that the releases compose to,
δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), which never asks for more noise. Both hold under replace-one
adjacency when Δ is the replace-one sensitivity; neither assumes amplification by subsampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from sottovoce.catalog import ACCOUNTINGS
from sottovoce.errors import SottovoceError, nearest


def epsilon(mu_squared: float, delta: float, accounting: str) -> float:
    """ε at which releases with Σ (Δ/σ)² = `mu_squared` are (ε, δ)-differentially private.

    >>> round(epsilon(2.9055**2, 1e-5, "exact"), 2)
    16.0
    >>> round(epsilon(2.9055**2, 1e-5, "rdp"), 2)
    18.16
    """
    _check(delta, accounting)
    if not (math.isfinite(mu_squared) and mu_squared >= 0):
        raise SottovoceError(f"μ² = {mu_squared} is not a spending: every release needs a finite Δ and σ > 0")
    return _cost(mu_squared, delta, accounting)


@lru_cache  # asked again for every release
def mu_squared(epsilon: float, delta: float, accounting: str) -> float:
    """The largest Σ (Δ/σ)² that a budget of (ε, δ) pays for; the inverse of `epsilon`, rounded down.

    >>> round(mu_squared(16, 1e-5, "exact") ** 0.5, 4)
    2.9055
    """
    _check(delta, accounting)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise SottovoceError(f"epsilon = {epsilon} buys no release: give a positive, finite epsilon")

    def affordable(spending: float) -> bool:
        return _cost(spending, delta, accounting) <= epsilon

    log_delta = -math.log(delta)
    closed_form = 2 * (epsilon / (math.sqrt(log_delta + epsilon) + math.sqrt(log_delta))) ** 2
    low = closed_form * (1 - 1e-12)  # the closed form is affordable under both accountings, up to rounding
    if not low > 0:
        raise SottovoceError(f"epsilon = {epsilon} is too small to compute with: give a larger one")
    high = 2 * low
    while affordable(high):
        low, high = high, 2 * high
    return _bisect(affordable, low, high)[0]


def calibrate(*, epsilon: float, delta: float, accounting: str, squared_sensitivity: float) -> float:
    """The smallest noise scale σ, rounded up, at which all releases of a client together cost at most ε.

    `squared_sensitivity` is Σ Δ² over the releases of the busiest client. A release whose own noise is
    `ratio`·σ (a context with a separate noise scale) enters with Δ²/ratio².

    One context and 43 gradients over 333 records, as in the paper at ε = 16:

    >>> total = 44 * (2 / 333) ** 2
    >>> round(calibrate(epsilon=16, delta=1e-5, accounting="rdp", squared_sensitivity=total), 6)
    0.015209
    >>> round(calibrate(epsilon=16, delta=1e-5, accounting="exact", squared_sensitivity=total), 6)
    0.013712
    """
    if not (math.isfinite(squared_sensitivity) and squared_sensitivity > 0):
        raise SottovoceError(
            f"squared sensitivity {squared_sensitivity} needs no noise: give the positive, finite sum of Δ²"
        )
    sigma = math.sqrt(squared_sensitivity / mu_squared(epsilon, delta, accounting))
    step = math.ulp(sigma)
    while _cost(squared_sensitivity / sigma**2, delta, accounting) > epsilon:
        sigma += step
        step *= 2
    return sigma


def _check(delta: float, accounting: str) -> None:
    if not 0 < delta < 1:
        raise SottovoceError(f"delta = {delta} is outside (0, 1): take one well below 1/records, like 1e-5")
    if accounting not in ACCOUNTINGS:
        raise SottovoceError(f"unknown accounting '{accounting}': {nearest(accounting, ACCOUNTINGS)}")


def _cost(mu_squared: float, delta: float, accounting: str) -> float:
    if accounting == "rdp":
        half = mu_squared / 2
        return half + 2 * math.sqrt(half * -math.log(delta))
    return _exact_epsilon(math.sqrt(mu_squared), delta)


def _exact_epsilon(mu: float, delta: float) -> float:
    """ε of one Gaussian mechanism with sensitivity μ at unit noise, to ten digits for μ from 1e-4 to 50.

    Solved for t = ε/μ − μ/2 instead of ε: t stays between −μ/2 and √(2 log 1/δ) whatever μ is.
    """
    if _exact_delta(-mu / 2, mu) <= delta:
        return 0.0
    _, t = _bisect(lambda t: _exact_delta(t, mu) > delta, -mu / 2, math.sqrt(-2 * math.log(delta)))
    return mu * (t + mu / 2)


def _exact_delta(t: float, mu: float) -> float:
    """δ(ε) at ε = μ(t + μ/2), without forming e^ε.

    Φ(μ/2 − ε/μ) = erfc(t/√2)/2, and e^ε Φ(−μ/2 − ε/μ) = e^(−t²/2) erfcx((t + μ)/√2)/2.
    """
    root2 = math.sqrt(2)
    return (math.erfc(t / root2) - math.exp(-t * t / 2) * _erfcx((t + mu) / root2)) / 2


def _erfcx(x: float) -> float:
    """Scaled complementary error function e^(x²) erfc(x) for x ≥ 0."""
    if x < 5:
        return math.exp(x * x) * math.erfc(x)
    # Laplace's continued fraction: at x ≥ 5, 30 levels leave less than a rounding error.
    tail = x
    for level in range(30, 0, -1):
        tail = x + level / 2 / tail
    return 1 / (math.sqrt(math.pi) * tail)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring floats, the first where `holds` is true and the second where it is false."""
    while low < (middle := (low + high) / 2) < high:
        if holds(middle):
            low = middle
        else:
            high = middle
    return low, high
