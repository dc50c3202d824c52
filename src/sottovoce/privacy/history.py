"""A ledger's past: what was charged so far, compared with what is remembered of it outside of the ledger.

A ledger that was deleted, or restored from a backup, is charged again for what its memory knows: as a sum for
each client and run, in the table `lost`, until somebody can say which releases they were. A ledger whose
files are copies may lack what nobody here knows; whoever uses it decides whether that is refused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sottovoce.errors import SottovoceError
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.accounting import Budget, Charge, Client, Total
from sottovoce.privacy.ledger_file import OWN_RECORDS, LedgerError, LedgerFile

log = logging.getLogger("sottovoce.privacy")

_LONG = 1000  # facts that later ones replace, beyond which they are dropped


class Copied(SottovoceError):
    """The ledger's files are copies, and their owner has not said to trust them."""


@dataclass
class Remembered:
    """What is remembered of a ledger: its random name, whose records it is about, sums and budget."""

    ledger: str = ""
    scope: str = ""
    totals: dict[tuple[str, str], Total] = field(default_factory=dict)
    budget: Budget | None = None
    whole: bool = True
    """Whether every fact could be read."""

    @classmethod
    def of(cls, facts: Iterable[dict[str, Any]]) -> Self:
        """From the facts beside the ledger, of which later ones hold."""
        said = cls()
        for fact in facts:
            try:
                said.ledger, said.scope = str(fact["ledger"]), str(fact["scope"])
                if "client" in fact:
                    total = Total.of(fact)
                    said.totals[total.client, total.run] = total
                if "budget" in fact:
                    epsilon, delta, accounting = fact["budget"]
                    said.budget = Budget(float(epsilon), float(delta), str(accounting))
            except (ValueError, TypeError, KeyError):
                said.whole = False
        return said

    @classmethod
    def beside(cls, ledger: Path) -> Self | None:
        """Returns what is remembered of the ledger at a path, be it there or not; None if nothing is."""
        facts = Memory(ledger).recall()
        return None if facts is None else cls.of(facts)


class Past:
    """What a ledger file holds, and what its memory does."""

    def __init__(self, file: LedgerFile, memory: Memory) -> None:
        self._file = file
        self._memory = memory
        self.lost: list[Total] = []
        """What this opening found missing, and charged."""

    @property
    def copied(self) -> bool:
        """Returns whether the files are copies, or from a backup: what was released since is not known."""
        return self._memory.copied

    @property
    def copy(self) -> int:
        """A number that tells this copy from any other, where the files are one; 0 otherwise."""
        return self._memory.lock_time() if self.copied else 0

    def compare(self) -> Budget | None:
        """Charges what only the memory knows, notes what only the ledger knows; returns the budget noted."""
        with self._file.transaction():  # so that neither changes meanwhile
            facts, mine = self._memory.recall(), self.totals()
            if facts is None:
                self._memory.copied = bool(mine) and not self._file.old
                self.note(mine)
                return None
            known = Remembered.of(facts)
            if known.ledger != self._file.name:
                raise LedgerError(
                    f"{self._file.path} is not the ledger that {self._memory.path.name} knows: put that one "
                    "back, because this one knows nothing of what was spent in it"
                )
            self._memory.copied |= not known.whole
            self._memory.restrict()
            for total in known.totals.values():
                self.expect(total)
            none = Total("", "", 0, 0.0)
            grown = [each for each in mine if each.exceeds(known.totals.get((each.client, each.run), none))]
            if grown:
                self.note(grown)
            if not self.copied and len(facts) > 2 * len(known.totals) + _LONG:
                self.trust(known.budget)
        return known.budget

    def check(self, run: str | None = None) -> None:
        """Refuses a ledger that is a copy, until its owner trusts it; and one that has lost releases of a
        run, which would use a stream twice."""
        if self.copied:
            raise Copied(
                f"{self._file.path} was copied or restored from a backup, so what was released since is not "
                "known: put the newest back, or if nothing was, say 'sottovoce ledger vouch "
                f"{self._file.path}'"
            )
        if any(self.lost_in(total.run, total.client).releases for total in self.totals() if total.run == run):
            raise LedgerError(
                f"{self._file.path} has lost releases of this run, so that a stream might be used twice: "
                "they are charged; start a new run in another folder, with this ledger"
            )

    def trust(self, budget: Budget | None) -> None:
        """Takes the ledger as it is for the true one, and remembers it in as few facts as can be."""
        with self._file.transaction(), self._file.explained():
            self._memory.trust(self._facts(self.totals(), budget, always=True))

    def note(self, totals: Iterable[Total], budget: Budget | None = None) -> None:
        """Remembers what grew, looked up inside a transaction, so that facts never fall behind each other."""
        with self._file.transaction(), self._file.explained():
            self._memory.note(self._facts(totals, budget))

    def note_charges(self, charges: Iterable[Charge]) -> None:
        """Remembers charges that are committed."""
        touched = {(charge.run.partition("/")[0], str(charge.client)) for charge in charges}
        self.note(self.total_in(run, client) for run, client in sorted(touched))

    def _facts(
        self, totals: Iterable[Total], budget: Budget | None, *, always: bool = False
    ) -> list[dict[str, Any]]:
        name: dict[str, Any] = {"ledger": self._file.name, "scope": self._file.scope}
        facts = [{**name, **vars(total)} for total in totals]
        if budget is not None:
            facts.append({**name, "budget": [budget.epsilon, budget.delta, budget.accounting]})
        return [name, *facts] if always else facts or [name]

    def expect(self, known: Total) -> None:
        """Charges what the ledger lacks of a client's releases in a run, of which only the sum is known."""
        lost = self._charge_sum(known)
        if lost is not None:
            self.lost.append(lost)
            log.warning(
                "%s was restored or deleted: it had lost %d releases of %s in run %s, which are "
                "charged again",
                *(self._file.path, lost.releases, lost.client, lost.run),
            )

    def found(self, charge: Charge, run: str) -> None:
        """Charges as a sum no longer what is known of a lost release by now."""
        lost = self.lost_in(run, charge.client)
        releases, spent = min(lost.releases, 1), min(lost.spent, charge.mu_squared)
        if releases or spent:
            server, masked = min(lost.server, charge.place == "server"), min(lost.masked, charge.masked)
            self._lose(Total(lost.client, run, -releases, -spent, -server, -masked))

    def count_in(self, other: Past, client: Client, there: Client, besides: Iterable[Past] = ()) -> None:
        """Charges a client here, as a sum, with what it has spent in another ledger, where it is `there`.

        What the other one counts of this ledger, or of those that are counted `besides`, is left out, so that
        several may count each other's.
        """
        direct = {past._elsewhere for past in (self, *besides)}
        mine = [total for total in other.totals() if total.client == str(there) and total.run not in direct]
        spent = math.fsum(total.spent for total in mine)
        releases, server = sum(total.releases for total in mine), sum(total.server for total in mine)
        masked = math.fsum(total.masked for total in mine)
        known = Total(str(client), other._elsewhere, releases, spent, server, masked)
        if self._charge_sum(known) is not None:
            log.info("%s counts what %s has spent in %s", self._file.path, client, other._file.path)
            self.note(self.total_in(run, client) for run in [other._elsewhere])

    @property
    def _elsewhere(self) -> str:
        """What this ledger is called among the runs of one that counts it."""
        return f"ledger {self._file.name[:16]}"

    def _charge_sum(self, known: Total) -> Total | None:
        """Charges what the ledger lacks of a sum, and returns it; None if it lacks nothing."""
        with self._file.transaction():
            mine = self.total_in(known.run, known.client)
            if not known.exceeds(mine):
                return None
            lost = known.beyond(mine)
            self._lose(lost)
        return lost

    def _lose(self, total: Total) -> None:
        self._file.query(
            "INSERT INTO lost (client, run, releases, spent, server, masked, time)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(total.client, total.run, total.releases, total.spent, total.server, total.masked),
            datetime.now(UTC).isoformat(),
        )

    def totals(self) -> list[Total]:
        """Returns what each client was charged in each run, sorted by client and run."""
        return self._sums("spending", "GROUP BY 1, 2 ORDER BY 1, 2")

    def total_in(self, run: str, client: Client = OWN_RECORDS) -> Total:
        """Returns what the client was charged in a run, whether one by one or as a sum."""
        return self._sum("spending", run, client)

    def lost_in(self, run: str, client: Client = OWN_RECORDS) -> Total:
        """Returns what the client was charged in a run as a sum, because the ledger had lost the releases."""
        return self._sum("lost", run, client)

    def _sum(self, table: str, run: str, client: Client) -> Total:
        found = self._sums(table, "WHERE client = ? AND run = ? GROUP BY 1, 2", str(client), run)
        return found[0] if found else Total(str(client), run, 0, 0.0)

    def _sums(self, table: str, which: str, *values: str) -> list[Total]:
        rows = self._file.query(
            f"SELECT client, run, TOTAL(releases), TOTAL(spent), TOTAL(server), TOTAL(masked) FROM {table}"
            f" {which}",
            *values,
        )
        return [
            Total(client, run, int(releases), spent, int(server), masked)
            for client, run, releases, spent, server, masked in rows
        ]
