"""What a client's records may spend and have spent: here its owner's terms, the price of a release, which is
shown and agreed to before anything leaves, and who releases when; beside it accounting and ledger.

Which participants release in which round (the paper's S_t) is settled before any record is seen. A
schedule is a function of public numbers alone, so it costs no privacy; how often it calls the busiest
client (T_max) decides how much noise everybody adds. `balanced` calls all clients equally often and so
needs the least noise; `random` is the paper's.

Nothing here imports torch, so that the promise can be read, checked and audited by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sottovoce.privacy.accounting import Budget


@dataclass(frozen=True)
class Price:
    """Σ (Δ/σ)² of what is about to be released, and of what was before, under the client's own budget.

    >>> print(Price("this release", 0.15, 0.1, Budget(epsilon=8, delta=1e-5, accounting="exact")))
    this release: ε 1.5, together 1.99 of 8 at δ = 1e-5
    """

    what: str
    cost: float
    before: float
    budget: Budget

    @property
    def epsilon(self) -> float:
        """ε of the release alone, at the client's own δ, whatever the server's plan states."""
        return self.budget.price(self.cost)

    @property
    def together(self) -> float:
        """ε of all that these records have released, with it."""
        return self.budget.price(self.before + self.cost)

    @property
    def affordable(self) -> bool:
        """Returns whether the client's budget covers it."""
        return self.budget.covers(self.before + self.cost)

    def __str__(self) -> str:
        delta = f"{self.budget.delta:g}".replace("e-0", "e-")
        return (
            f"{self.what}: ε {self.epsilon:.3g}, together {self.together:.3g} of {self.budget.epsilon:g} "
            f"at δ = {delta}"
        )

    def refusal(self, ledger: Path) -> str:
        """Returns why what the budget does not cover is not released, and what its owner can do."""
        return (
            f"{self}, which the budget does not cover: nothing was released; its owner can raise it with "
            f"'sottovoce ledger raise {ledger}'"
        )


Agree = Callable[[Price], None]
"""Shows the price to the client's owner, and raises unless the owner agrees."""


def calling_is_agreeing(price: Price) -> None:
    """From Python, whoever asks for a model has agreed to its price, within the budget."""


@dataclass(frozen=True)
class Terms:
    """What a client's owner says before anything is released.

    `ledger` lies beside the records by default, as NAME.ledger.sqlite, and is that of `client`, by default
    NAME. `epsilon` and `delta` are what all releases of these records together may cost, by default what was
    said before, at first 8 and 1e-5; the strictest that was ever said holds. `agree` is shown the price.
    `noise_at_server` accepts runs whose noise the server adds, which then sees what nobody else may;
    `looked_up` runs whose agreement has constants that were read from somebody's records.
    `noise_shared` accepts runs whose noise sites share, at least `honest` honest ones in a sum, under masks
    of the `helpers` with these fingerprints and no others.
    """

    ledger: str | Path | None = None
    client: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    agree: Agree = calling_is_agreeing
    noise_at_server: bool = False
    looked_up: bool = False
    noise_shared: bool = False
    honest: int = 0
    helpers: frozenset[str] = frozenset()
