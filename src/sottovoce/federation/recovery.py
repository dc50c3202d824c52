"""A client whose directory or ledger was restored from a backup: charged first for all that may have left.

What the server has received the client can be told; what it was asked for may have left and been lost on its
way. Both are charged before anything else happens, and a stream that may have been used is left out. The
server of one run knows nothing of others: a ledger that is a copy stays one until its owner says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.blueprint import Blueprint
from sottovoce.federation.client_log import ClientLog
from sottovoce.federation.own_ledger import LedgerBehind
from sottovoce.federation.rollback import Footprint, trace_file
from sottovoce.privacy.ledger import OWN_RECORDS, AlreadyDelivered, Kind, Ledger


class Past:
    """What one client has released in one run: as its ledger, its notes and the server know it."""

    def __init__(self, directory: Path, lock: Path, ledger: Ledger, run: str, client_log: ClientLog) -> None:
        self._file = trace_file(directory, run)
        self._lock = lock
        self._ledger = ledger
        self._run = run
        self._client_log = client_log

    def catch_up(self, blueprint: Blueprint, participant: int, request: Mapping[str, Any]) -> None:
        """Charges what a restored ledger does not know, and forgets messages that the server has applied."""
        ledger, due = self._ledger, (request["kind"], int(request["round"]))
        releases = blueprint.releases_of(participant)
        unknown = self._unknown(blueprint, participant, request, "received")
        restored = bool(unknown) or not self._trace().follows(Footprint.read(self._file))
        if restored or ledger.copied:
            # What the server asked for may have left and been lost on its way.
            asked = self._unknown(blueprint, participant, request, "asked")
            unknown += [stream for stream in asked if stream not in unknown]
            charges = [releases[kind].charge(self._run, OWN_RECORDS, number) for kind, number in unknown]
            ledger.recover(charges, self._run)
            if restored or unknown:
                self._tell(unknown)
            self.note()
        if request["received_context"] or "context" not in releases:
            ledger.forget(self._run, before_round=due[1])
        if ledger.stored(self._run, OWN_RECORDS, *due) == b"":
            raise LedgerBehind(
                "the ledger was restored from a backup and this release may have left before: it was "
                "charged, and is left out since a stream is used once for ever"
            )

    def note(self) -> None:
        """Makes the run's note true, before anything leaves; also where a killed process could not."""
        trace = self._trace()
        if trace != Footprint.read(self._file):
            trace.write(self._file)

    def _tell(self, unknown: list[tuple[Kind, int]]) -> None:
        said = "this directory or its ledger was restored from a backup: charged for " + (
            ", ".join(f"the {kind} of round {number}" for kind, number in unknown) or "nothing more"
        )
        if self._ledger.copied:
            said += (
                "; what other runs have released since is not known: this client enrols in no other until "
                f"its owner says 'sottovoce ledger vouch {self._ledger.path}'"
            )
        self._client_log.note(said, level=logging.WARNING)

    def _trace(self) -> Footprint:
        released, total = self._ledger.releases(OWN_RECORDS, run=self._run), self._ledger.total_in(self._run)
        return Footprint.of(self._lock, released, total.spent, total.server)

    def _unknown(
        self, blueprint: Blueprint, participant: int, request: Mapping[str, Any], what: str
    ) -> list[tuple[Kind, int]]:
        """Releases that the server has "received" or "asked" for and the ledger does not know.

        Only what the run asks of this participant counts, and was priced at enrolment: a server that states
        more could otherwise spend a client's budget with a list.
        """
        stated = {int(number) for number in request[f"{what}_rounds"]}
        once: list[Kind] = ["context", "confusion"]
        planned = blueprint.participant_counts(0)
        streams: list[tuple[Kind, int]] = [
            (kind, 0) for kind in once if kind in planned and request[f"{what}_{kind}"]
        ]
        for number, called in enumerate(blueprint.schedule, start=1):
            if participant in called and number in stated:
                streams.append(("gradient", number))
        return [(kind, number) for kind, number in streams if not self._charged(kind, number)]

    def _charged(self, kind: Kind, round_number: int) -> bool:
        try:
            return self._ledger.stored(self._run, OWN_RECORDS, kind, round_number) is not None
        except AlreadyDelivered:
            return True
