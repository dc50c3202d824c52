"""The end of a federation: everybody who trained gets the coefficients of their own model, once it is final.

They are made of releases that were paid for, so nobody is charged for them. Each client's travel under a seal
that only its enrolment opens, and are handed out again until the client says that it has kept its model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sottovoce.blueprint import participant_name
from sottovoce.downlink import Downlink
from sottovoce.federation.roster import Roster
from sottovoce.federation.sealing import MODEL, seal_downward
from sottovoce.federation.store import Store
from sottovoce.server import Server

log = logging.getLogger("sottovoce.federation")


class Handout:
    """Who is to get a model, and the message that brings it."""

    def __init__(self, server: Server, store: Store, roster: Roster) -> None:
        self._server = server
        self._store = store
        self._roster = roster

    def waiting(self) -> list[int]:
        """Participants whose releases are in the generator and who have not kept their model yet."""
        return sorted((self._store.contributors() & self._roster.enrolled) - self._store.kept())

    def message(self, participant: int) -> dict[str, Any]:
        """The final coefficients of one participant, under seal."""
        coefficients = self._server.coefficients([participant])[0]
        return {
            "run": self._store.run,
            "kind": MODEL,
            "model": seal_downward(
                Downlink(len(coefficients)).encode(coefficients),
                (self._store.run, participant_name(participant), MODEL, 0),
                agreed=self._roster.agreed(participant),
            ),
        }

    def accept(self, participant: int, answer: Mapping[str, Any]) -> None:
        """The client's word that its model is on its own disk."""
        if answer.get("kept") is True and participant in self._roster.enrolled:
            self._store.keep_model(participant)
            log.info("%s has its model", participant_name(participant))
