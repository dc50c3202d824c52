"""The budgets that a ledger's owner has set: the strictest holds until its owner raises it.

A budget is (ε, δ) under an accounting; spending is Σ (Δ/σ)², which knows no δ. So budgets and prices at
different δ are compared by the spending that they allow, and nobody gains by stating a large δ.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sottovoce.errors import SottovoceError
from sottovoce.privacy.charge import Budget
from sottovoce.privacy.past import Past

EPSILON, DELTA, ACCOUNTING = 8.0, 1e-5, "exact"
"""What a client is willing to spend if its owner says nothing."""
LARGEST_DELTA = 1e-2


class Budgets(Past):
    """An open ledger file, its witness, and what its owner allows."""

    @property
    def budget(self) -> Budget | None:
        """The budget that holds: the strictest since it was last raised; None if none was ever set."""
        rows = self._file.query(
            "SELECT epsilon, delta, accounting FROM budget"
            " WHERE id >= (SELECT coalesce(max(id), 0) FROM budget WHERE raised)"
        )
        return min((Budget(*row) for row in rows), key=lambda budget: budget.mu_squared, default=None)

    @property
    def allowed(self) -> Budget:
        """The budget that holds, or ε = 8 at δ = 10⁻⁵ where none was ever set."""
        return self.budget or Budget(EPSILON, DELTA, ACCOUNTING)

    def willing(self, epsilon: float | None = None, delta: float | None = None) -> Budget:
        """Sets what the owner is willing to spend, and returns what holds: the strictest ever set.

        What is not said is as it was set before, or ε = 8 at δ = 10⁻⁵.
        """
        default = self.allowed
        wanted = Budget(
            default.epsilon if epsilon is None else epsilon,
            default.delta if delta is None else delta,
            default.accounting,
        )
        return self._set(wanted, raised=False)

    def raise_budget(self, epsilon: float, delta: float | None = None) -> Budget:
        """Sets a budget in place of a stricter one, as only the ledger's owner may decide."""
        held = self.allowed
        wanted = Budget(epsilon, held.delta if delta is None else delta, held.accounting)
        return self._set(wanted, raised=True)

    def budgets(self) -> list[tuple[Budget, bool, datetime]]:
        """Every budget that was set, whether it was a raise, and when."""
        rows = self._file.query("SELECT epsilon, delta, accounting, raised, time FROM budget ORDER BY id")
        return [(Budget(*row[:3]), bool(row[3]), datetime.fromisoformat(row[4])) for row in rows]

    def compare(self) -> None:
        """Also puts a budget back that the witness knows and the ledger has lost."""
        with self._file.transaction():  # or a budget that is raised meanwhile would be taken back
            super().compare()
            known = self._witness.read()
            if known is not None and known.budget is not None:
                self._set(Budget(*known.budget), raised=False)

    def _set(self, budget: Budget, *, raised: bool) -> Budget:
        if not budget.delta <= LARGEST_DELTA:
            raise SottovoceError(
                f"delta = {budget.delta:g} promises little: take one well below 1/records, like 1e-5"
            )
        allowed = budget.mu_squared  # refuses what is no budget
        with self._file.transaction():
            held = self.budget
            if held is not None and not raised and allowed >= held.mu_squared:
                return held
            fields = (float(budget.epsilon), float(budget.delta), budget.accounting)
            self._file.query(
                "INSERT INTO budget (epsilon, delta, accounting, raised, time) VALUES (?, ?, ?, ?, ?)",
                *(*fields, int(raised), datetime.now(UTC).isoformat()),
            )
            self._tell([], fields)
        return budget
