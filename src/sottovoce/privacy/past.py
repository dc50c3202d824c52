"""What a ledger remembers of its past, compared with what its witness remembers.

A ledger that was deleted, or restored from a backup, is charged again for what its witness knows: as a sum
for each client and run, in the table `lost`, until somebody can say which releases they were. A ledger whose
files are copies may lack what nobody here knows; whoever uses it decides whether that is refused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.privacy.charge import Charge, Client, Total
from sottovoce.privacy.ledger_file import OWN_RECORDS, LedgerError, LedgerFile
from sottovoce.privacy.witness import Testimony, Witness

log = logging.getLogger("sottovoce.privacy")


class Copied(SottovoceError):
    """The ledger's files are not those that were written, and nobody has vouched for them."""


class Past:
    """An open ledger file with its witness."""

    def __init__(self, file: LedgerFile, witness: Witness) -> None:
        self._file = file
        self._witness = witness
        self.lost: list[Total] = []
        """What this opening found missing, and charged."""
        self.copied = False
        """Whether the files are copies, or from a backup: what was released since is not known."""

    @property
    def path(self) -> Path:
        """Where the ledger is kept."""
        return self._file.path

    @property
    def name(self) -> str:
        """The random word by which this ledger is told from every other."""
        return self._file.name

    @property
    def scope(self) -> str:
        """Whose records it is about."""
        return self._file.scope

    def compare(self) -> None:
        """Charges what only the witness knows, and tells the witness what only the ledger knows.

        Inside a transaction, so that neither changes meanwhile.
        """
        known = self._witness.read()
        if known is None:
            mine = self.totals()
            self.copied = bool(mine) and not self._file.old
            self._tell(mine)
            return
        if known.ledger != self.name:
            raise LedgerError(
                f"{self.path} is not the ledger that {self._witness.path.name} knows: put that one back, "
                "because this one knows nothing of what was spent in it"
            )
        self.copied = not known.genuine
        self._witness.restrict()
        for total in known.totals.values():
            self.expect(total)
        grown = [
            total
            for total in self.totals()
            if total.exceeds(known.totals.get((total.client, total.run), Total("", "", 0, 0.0)))
        ]
        if grown:
            self._tell(grown)
        self._witness.shorten(known)

    def expect(self, known: Total) -> None:
        """Charges what the ledger lacks of a client's releases in a run, of which only the sum is known."""
        lost = self._charge_sum(known)
        if lost is not None:
            self.lost.append(lost)
            log.warning(
                "%s was restored or deleted: it had lost %d releases of %s in run %s, which are "
                "charged again",
                *(self.path, lost.releases, lost.client, lost.run),
            )

    def count_in(self, other: Past, client: Client, there: Client, besides: Sequence[Past] = ()) -> None:
        """Charges a client here, as a sum, with what it has spent in another ledger, where it is `there`.

        What the other one counts of this ledger, or of those that are counted `besides`, is left out, so that
        several may count each other's.
        """
        direct = {_elsewhere(ledger) for ledger in (self, *besides)}
        mine = [total for total in other.totals() if total.client == str(there) and total.run not in direct]
        spent = math.fsum(total.spent for total in mine)
        releases, server = sum(total.releases for total in mine), sum(total.server for total in mine)
        if self._charge_sum(Total(str(client), _elsewhere(other), releases, spent, server)) is not None:
            log.info("%s counts what %s has spent in %s", self.path, client, other.path)
            with self._file.transaction():
                self._tell([self._total(str(client), _elsewhere(other))])

    def _charge_sum(self, known: Total) -> Total | None:
        """Charges what the ledger lacks of a sum, and returns it; None if it lacks nothing."""
        with self._file.transaction():
            mine = self._total(known.client, known.run)
            if not known.exceeds(mine):
                return None
            lost = Total(
                *(known.client, known.run),
                max(known.releases - mine.releases, 0),
                max(known.spent - mine.spent, 0.0),
                max(known.server - mine.server, 0),
            )
            self._lose(lost)
        return lost

    def vouch(self) -> None:
        """Takes the files as they are for the true ones, by the word of their owner."""
        self.copied = False
        with self._file.transaction(), self._file.explained():
            known = self._witness.read()
            totals = {(total.client, total.run): total for total in self.totals()}
            budget = None if known is None else known.budget
            self._witness.rewrite(Testimony(self.name, self.scope, totals, budget))

    def check_genuine(self) -> None:
        """Refuses a ledger that is a copy or comes from a backup, until its owner vouches for it."""
        if self.copied:
            raise Copied(
                f"{self.path} was copied or restored from a backup, so what was released since is not known: "
                f"put the newest back, or if nothing was, say 'sottovoce ledger vouch {self.path}'"
            )

    def totals(self) -> list[Total]:
        """What each client was charged in each run, sorted by client and run."""
        rows = self._file.query(
            "SELECT client, run, TOTAL(releases), TOTAL(spent), TOTAL(server) FROM spending"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        )
        return [
            Total(client, run, int(releases), spent, int(server))
            for client, run, releases, spent, server in rows
        ]

    def total_in(self, run: str, client: Client = OWN_RECORDS) -> Total:
        """What the client was charged in a run, whether one by one or as a sum."""
        return self._total(str(client), run)

    def lost_in(self, run: str, client: Client = OWN_RECORDS) -> Total:
        """What the client was charged in a run as a sum, because the ledger had lost the releases."""
        return self._total(str(client), run, table="lost")

    def _total(self, client: str, run: str, table: str = "spending") -> Total:
        [(releases, spent, server)] = self._file.query(
            f"SELECT TOTAL(releases), TOTAL(spent), TOTAL(server) FROM {table} WHERE client = ? AND run = ?",
            *(client, run),
        )
        return Total(client, run, int(releases), spent, int(server))

    def _lose(self, total: Total) -> None:
        self._file.query(
            "INSERT INTO lost (client, run, releases, spent, server, time) VALUES (?, ?, ?, ?, ?, ?)",
            *(total.client, total.run, total.releases, total.spent, total.server),
            datetime.now(UTC).isoformat(),
        )

    def _note(self, charges: Iterable[Charge]) -> None:
        """Tells the witness of charges that are committed."""
        touched = {(str(charge.client), charge.run.partition("/")[0]) for charge in charges}
        with self._file.transaction():
            self._tell(self._total(client, run) for client, run in sorted(touched))

    def _tell(self, totals: Iterable[Total], budget: tuple[float, float, str] | None = None) -> None:
        """Adds to the witness, inside a transaction, so that its lines never fall behind one another.

        Not while the files are copies: the witness would look as if it had always been there.
        """
        if not self.copied:
            with self._file.explained():
                self._witness.note(self.name, self.scope, totals, budget)


def _elsewhere(ledger: Past) -> str:
    """What another ledger is called among the runs of one that counts it."""
    return f"ledger {ledger.name[:16]}"
