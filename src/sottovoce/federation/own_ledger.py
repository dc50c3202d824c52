"""The ledger of a client that takes part in federations: where it lies, and what its owner allows.

It lies beside the records and is the one that onboarding charges. Each opening compares it with its witness
and with the traces of all runs in the client's directory; what is missing is charged. Where the records lie
in a folder of sites on which somebody has simulated, what the folder's ledger knows of this client counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sottovoce.account import called, ledgers_of, own_ledger
from sottovoce.blueprint import Blueprint
from sottovoce.errors import SottovoceError
from sottovoce.federation.rollback import traces
from sottovoce.files import locked
from sottovoce.privacy import schedule
from sottovoce.privacy.ledger import OWN_RECORDS, Budget, Ledger, Total, client_scope
from sottovoce.privacy.terms import Price, Terms
from sottovoce.privacy.witness import Witness
from sottovoce.release import spending


class LedgerBehind(SottovoceError):
    """The ledger was restored, and the release may have left before."""


class OwnLedger:
    """The ledger of the records in a file, for a client with a directory of its own."""

    def __init__(self, directory: Path, records: Path, terms: Terms) -> None:
        self._directory = directory
        self._records = records
        self._terms = terms

    @property
    def path(self) -> Path:
        """Where it lies; version 0.1 had it in the client's directory."""
        old = self._directory / "ledger.sqlite"
        if self._terms.ledger is None and (old.exists() or Witness(old).path.exists()):
            return old
        return own_ledger(self._records) if self._terms.ledger is None else Path(self._terms.ledger)

    @property
    def client(self) -> str:
        """What the client is called."""
        return called(self._records, self._terms)

    @property
    def model_file(self) -> Path:
        """Where the personal model goes: beside the ledger, under the client's name where it is not alone."""
        alone = not any(other != self.path for other in self.path.parent.glob("*.ledger.sqlite"))
        name = "personal.safetensors" if alone else f"{self.client}.personal.safetensors"
        return self.path.with_name(name)

    @property
    def exists(self) -> bool:
        """Whether anything was ever charged in it, or may have been."""
        return self.path.exists() or Witness(self.path).path.exists() or bool(traces(self._directory))

    @contextmanager
    def open(self) -> Iterator[Ledger]:
        """The ledger, locked, and charged for what any run of the directory knows and it does not."""
        path = self.path
        with (
            Ledger.open(path, scope=client_scope(self.client)) as ledger,
            locked(path.with_name(f"{path.name}.lock")),
        ):
            for run, trace in traces(self._directory).items():
                if trace.spent is not None:
                    ledger.expect(Total(OWN_RECORDS, run, trace.releases, trace.spent, trace.server))
                elif trace.releases > ledger.total_in(run).releases:  # noted by version 0.1, without a price
                    raise LedgerBehind(f"{path} lacks releases of run {run}: restore its newest backup")
            ledger.count(OWN_RECORDS, ledgers_of(self._records, self._terms))
            yield ledger

    def budget(self, ledger: Ledger) -> Budget:
        """What the owner is willing to spend."""
        return ledger.willing(self._terms.epsilon, self._terms.delta)

    def price(self, ledger: Ledger, blueprint: Blueprint, participant: int) -> Price:
        """What a whole run costs a participant's records."""
        calls = schedule.counts(blueprint.schedule, blueprint.plan.participants)
        counts = blueprint.participant_counts(int(calls[participant]))
        cost = spending(blueprint.releases_of(participant), counts)
        return Price("this run", cost, ledger.spent(OWN_RECORDS), self.budget(ledger))
