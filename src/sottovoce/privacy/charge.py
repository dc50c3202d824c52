"""What is charged, and what may be: one release, all releases of a client in a run, and a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self, get_args

from sottovoce.errors import SottovoceError, nearest
from sottovoce.privacy.accounting import epsilon, mu_squared

Kind = Literal["context", "gradient", "confusion", "calibration"]
Place = Literal["client", "server", "shared"]
Client = int | str

# Relative. Floats are added up here in another order than in calibration, and a run that was calibrated to ε
# must be able to spend all of it.
SLACK = 1e-9


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
    kind: Kind
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
        if self.kind not in get_args(Kind):
            raise SottovoceError(
                f"unknown kind of release '{self.kind}': {nearest(self.kind, get_args(Kind))}"
            )
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
        """What the other one lacks of it."""
        return replace(
            self,
            releases=max(self.releases - other.releases, 0),
            spent=max(self.spent - other.spent, 0.0),
            server=max(self.server - other.server, 0),
            masked=max(self.masked - other.masked, 0.0),
        )

    def exceeds(self, other: Total) -> bool:
        """Whether it holds more releases, of either place, or spending beyond the rounding of sums."""
        return (
            self.releases > other.releases
            or self.spent > other.spent * (1 + SLACK)
            or self.server > other.server
            or self.masked > other.masked * (1 + SLACK)
        )
