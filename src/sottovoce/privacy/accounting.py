"""From noise to ε and back: what the releases of one client cost together.

Every release is a Gaussian mechanism, so a client's whole history is summed up by one number,
μ² = Σ (Δ/σ)² over its releases (the paper's A_i is μ²/2). `rdp` turns it into ε by the paper's closed form,
ε = A + 2√(A log 1/δ); `exact` by the tight curve of the one Gaussian mechanism that the releases compose to,
δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), which never asks for more noise. Both hold under replace-one
adjacency when Δ is the replace-one sensitivity; neither assumes amplification by subsampling.

A `Charge` is one release, a `Total` what one client released in a run, a `Budget` what it may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, Self, get_args

from sottovoce.errors import SottovoceError, nearest, shown

Place = Literal["client", "server", "shared"]
Client = int | str
ACCOUNTINGS = ("rdp", "exact")
LONGEST_KIND = 64
# Relative. Floats are added up here in another order than in calibration, and a run that was calibrated to ε
# must be able to spend all of it.
SLACK = 1e-9


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


@dataclass(frozen=True)
class Budget:
    """What all releases of any one client together may cost: (ε, δ) under an accounting."""

    epsilon: float
    delta: float
    accounting: str

    def covers(self, spending: float) -> bool:
        """Returns whether a client may have spent Σ (Δ/σ)² = `spending`.

        >>> Budget(epsilon=16, delta=1e-5, accounting="exact").covers(2.9**2)
        True
        """
        return spending <= self.mu_squared * (1 + SLACK)

    @property
    def mu_squared(self) -> float:
        """The largest Σ (Δ/σ)² that it pays for: budgets at different δ are compared by it."""
        return mu_squared(self.epsilon, self.delta, self.accounting)

    def price(self, spending: float) -> float:
        """ε of Σ (Δ/σ)² = `spending`, at this budget's own δ and accounting."""
        return epsilon(spending, self.delta, self.accounting)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:g} at δ = {self.delta:g} ({self.accounting} accounting)"


@dataclass(frozen=True)
class Charge:
    """One release: its stream (run, client, kind, round), its L2 sensitivity Δ and its noise scale σ.

    With noise in a sum Δ and σ are those of the sum, and hold for whoever reads no releases.
    Clients are compared as text: 3 and "3" are the same client, with one budget.
    """

    run: str
    client: Client
    kind: str
    """What is released, in one word: to the ledger any will do."""
    round: int
    sensitivity: float
    sigma: float
    place: Place = "client"
    """Where the noise is added: to the release itself, by the server to the sum that it is part of, or by all
    clients to their sum."""
    honest: int = 0
    """H: how many clients' shares of the noise σ counts on, where clients share it."""
    share: float = 0.0
    """τγ: the noise of one such share, in the units of σ; 0 where nothing is shared."""
    helpers: str = ""
    """The names of the helpers whose masks hide all but the sum."""

    def __post_init__(self) -> None:
        if not (self.kind.isidentifier() and len(self.kind) <= LONGEST_KIND):
            raise SottovoceError(f"a kind of release is one short word, not '{shown(self.kind)}'")
        if self.place not in get_args(Place):
            raise SottovoceError(f"unknown place of noise '{self.place}': it is client, server or shared")
        for name, value in (("sensitivity", self.sensitivity), ("sigma", self.sigma)):
            if not (math.isfinite(value) and value > 0):
                raise SottovoceError(f"{name} = {value} cannot be charged: give a positive, finite number")
        if self.share and not 0 <= (self.honest - 1) * self.share**2 < self.sigma**2:
            raise SottovoceError(
                f"{self.honest} shares of {self.share} are no noise of {self.sigma}: nothing was charged"
            )

    @property
    def mu_squared(self) -> float:
        """(Δ/σ)², the release's share of the client's spending."""
        return (self.sensitivity / self.sigma) ** 2

    @property
    def masked(self) -> float:
        """How much more it is if all helpers fail: one share of the noise is left, σ² − (H − 1)τ²γ².

        >>> Charge("run", 0, "gradient", 1, 1.0, 4.0, "shared", 4, 2.0).masked
        0.1875
        """
        if not self.share:
            return 0.0
        alone = self.sigma**2 - (self.honest - 1) * self.share**2
        return self.sensitivity**2 / alone - self.mu_squared

    def __str__(self) -> str:
        return f"{self.kind} of client {self.client} in round {self.round} of run {self.run}"


@dataclass(frozen=True)
class Entry:
    """A row of the ledger: the charge and when it was committed (UTC)."""

    charge: Charge
    time: datetime


@dataclass(frozen=True)
class Total:
    """What one client was ever charged in one run: how many releases, and their Σ (Δ/σ)²."""

    client: str
    run: str
    releases: int
    spent: float
    server: int = 0
    """How many of the releases have their noise at the server: whoever reads those has no finite ε."""
    masked: float = 0.0
    """What masks alone protect: how much more `spent` is if all helpers fail."""

    @classmethod
    def of(cls, fact: Mapping[str, Any]) -> Self:
        """From what is remembered of it; before there was noise at the server, nobody noted its place."""
        numbers = int(fact["releases"]), float(fact["spent"]), int(fact.get("server", 0))
        return cls(str(fact["client"]), str(fact["run"]), *numbers, float(fact.get("masked", 0.0)))

    def beyond(self, other: Total) -> Total:
        """Returns what the other one lacks of it."""
        return replace(
            self,
            releases=max(self.releases - other.releases, 0),
            spent=max(self.spent - other.spent, 0.0),
            server=max(self.server - other.server, 0),
            masked=max(self.masked - other.masked, 0.0),
        )

    def exceeds(self, other: Total) -> bool:
        """Returns whether it holds more releases, of either place, or more spending than sums round."""
        return (
            self.releases > other.releases
            or self.spent > other.spent * (1 + SLACK)
            or self.server > other.server
            or self.masked > other.masked * (1 + SLACK)
        )
