"""What a client's owner is shown, and agrees to, before anything is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sottovoce.privacy.charge import Budget


@dataclass(frozen=True)
class Price:
    """Σ (Δ/σ)² of what is about to be released, and of what was before, under the client's own budget.

    >>> print(Price("this release", 0.15, 0.1, Budget(epsilon=8, delta=1e-5, accounting="exact")))
    this release: ε 1.48, together 1.96 of 8 at δ = 1e-5
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
        """Whether the client's budget covers it."""
        return self.budget.covers(self.before + self.cost)

    def __str__(self) -> str:
        delta = f"{self.budget.delta:g}".replace("e-0", "e-")
        return (
            f"{self.what}: ε {self.epsilon:.3g}, together {self.together:.3g} of {self.budget.epsilon:g} "
            f"at δ = {delta}"
        )


Agree = Callable[[Price], None]
"""Shows the price to the client's owner, and raises unless the owner agrees."""


def calling_is_agreeing(price: Price) -> None:
    """From Python, whoever asks for a model has agreed to its price, within the budget."""
