"""A client whose directory or ledger was restored from a backup: charged first for all that may have left.

What a ledger has lost its own memory tells (`privacy.past`). In which run streams may have been used, so that
the server of that run must be asked, the client remembers in its directory: before a release leaves, how many
the ledger holds of that run. What the server has received the client can be told; what it was asked for may
have left and been lost on its way. Both are charged before anything else happens, and a stream that may have
been used is left out. The server of one run knows nothing of others: a ledger that is a copy stays one until
its owner says otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.account import Account
from sottovoce.blueprint import Blueprint
from sottovoce.errors import SottovoceError
from sottovoce.federation.client_directory import ClientLog
from sottovoce.plan import ONCE
from sottovoce.privacy.ledger import OWN_RECORDS, AlreadyDelivered, Kind, Ledger, Total
from sottovoce.privacy.rollback import Memory


class LedgerBehind(SottovoceError):
    """The ledger was restored, and the release may have left before."""


@contextmanager
def opened(account: Account, directory: Path) -> Iterator[Ledger]:
    """The client's ledger, locked, and charged for what any run of the directory knows and it does not."""
    with account.open() as ledger:
        for path in sorted(directory.glob("trace-*")):
            run, noted = path.stem.removeprefix("trace-"), _noted(path)
            if noted.get("spent") is not None:
                ledger.past.expect(Total.of({**noted, "client": OWN_RECORDS, "run": run}))
            elif noted.get("releases", 0) > ledger.past.total_in(run).releases:  # version 0.1 noted no price
                raise LedgerBehind(f"{account.path} lacks releases of run {run}: restore its newest backup")
        yield ledger


def _noted(path: Path) -> dict[str, Any]:
    """What a client remembers of a run, wherever that file comes from; nothing if it cannot be read."""
    if path.suffix == ".witness":
        return (Memory(path.with_suffix("")).recall() or [{}])[-1]
    try:
        noted = json.loads(path.read_text())  # as version 0.1 kept it
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


class Recovery:
    """What one client has released in one run: as its ledger, its memory and the server know it."""

    def __init__(self, directory: Path, lock: Path, ledger: Ledger, run: str, client_log: ClientLog) -> None:
        self._memory = Memory(directory / f"trace-{run}", lock)
        self._ledger = ledger
        self._run = run
        self._client_log = client_log

    def catch_up(
        self, blueprint: Blueprint, participant: int, request: Mapping[str, Any], helpers: str = ""
    ) -> None:
        """Charges what a restored ledger does not know, and forgets messages that the server has applied."""
        ledger, due = self._ledger, (request["kind"], int(request["round"]))
        releases = blueprint.releases_of(participant)
        unknown = self._unknown(blueprint, participant, request, "received")
        if unknown or self._restored():
            # What the server asked for may have left and been lost on its way.
            asked = self._unknown(blueprint, participant, request, "asked")
            unknown += [stream for stream in asked if stream not in unknown]
            charges = [
                releases[kind].charge(self._run, OWN_RECORDS, number, helpers) for kind, number in unknown
            ]
            ledger.recover(charges, self._run)
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
        """Makes the run's memory true, before anything leaves; also where a killed process could not."""
        now, noted = self._now(), self._noted()
        if any(noted.get(name) != value for name, value in now.items()):
            self._memory.trust([now])

    def _now(self) -> dict[str, Any]:
        """How much of the run the ledger holds, one by one and in all, and as which copy."""
        past, run = self._ledger.past, self._run
        released, total = self._ledger.releases(OWN_RECORDS, run=run), past.total_in(run)
        return {"releases": released, "spent": total.spent, "server": total.server, "copy": past.copy}

    def _noted(self) -> dict[str, Any]:
        """The same when the last release left; nothing if that memory is a copy."""
        return (self._memory.faithful() or [{}])[-1]

    def _restored(self) -> bool:
        """Returns whether the ledger, or the memory of the run, was put back since its last release."""
        now, noted = self._now(), self._noted()
        return not noted or noted["releases"] > now["releases"] or now["copy"] not in (0, noted["copy"])

    def _tell(self, unknown: list[tuple[Kind, int]]) -> None:
        said = "this directory or its ledger was restored from a backup: charged for " + (
            ", ".join(f"the {kind} of round {number}" for kind, number in unknown) or "nothing more"
        )
        if self._ledger.past.copied:
            said += (
                "; what other runs have released since is not known: this client enrols in no other until "
                f"its owner says 'sottovoce ledger vouch {self._ledger.path}'"
            )
        self._client_log.note(said, level=logging.WARNING)

    def _unknown(
        self, blueprint: Blueprint, participant: int, request: Mapping[str, Any], what: str
    ) -> list[tuple[Kind, int]]:
        """Releases that the server has "received" or "asked" for and the ledger does not know.

        Only what the run asks of this participant counts, and was priced at enrolment: a server that states
        more could otherwise spend a client's budget with a list.
        """
        stated = {int(number) for number in request[f"{what}_rounds"]}
        planned = blueprint.participant_counts(0)
        streams: list[tuple[Kind, int]] = [
            (kind, 0) for kind in ONCE if kind in planned and request[f"{what}_{kind}"]
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
