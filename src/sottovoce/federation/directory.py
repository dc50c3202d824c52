"""What a client keeps in its directory: what it agreed with the servers of runs, its log for its owner, and
what it released, so that one whose directory or ledger was restored from a backup is charged for all that
may have left.

Lines of the log say what it released, resent and refused, and why. They hold names, rounds and ε, nothing
that is computed from records: neither bytes nor norms. Only an error may say more about them, and the server
is not told that.

What a ledger has lost its own memory tells (`privacy.past`). In which run streams may have been used, so
that the server of that run must be asked, the client remembers here: before a release leaves, how many the
ledger holds of that run. What the server has received the client can be told; what it was asked for may have
left and been lost on its way. Both are charged before anything else happens, and a stream that may have been
used is left out. The server of one run knows nothing of others: a ledger that is a copy stays one until its
owner says otherwise.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.machine.files import write_atomically
from sottovoce.machine.rollback import Memory
from sottovoce.plan.catalog import Kind
from sottovoce.privacy.accounting import Total
from sottovoce.privacy.ledger import OWN_RECORDS, AlreadyDelivered, Ledger
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.once import ONCE
from sottovoce.training.accounts import Account

log = logging.getLogger("sottovoce.federation")

_RUN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Enrolment:
    """An agreement with one server; `secret` never leaves this machine."""

    run: str
    participant: int
    agreement: str
    server_key: str
    key: str
    secret: str
    ledger: str = ""
    """The name of the ledger that this client enrolled with; version 0.1 did not note it."""
    records: int = 0
    """Training records that this client has declared; 0 where the plan states a number."""
    frozen: str = ""
    """The digest of the agreement with everybody's numbers, once the server has frozen it."""
    cost: float = 0.0
    """Σ (Δ/σ)² of the whole run, as its owner was told; 0 where an earlier version enrolled."""

    @staticmethod
    def file(directory: Path, run: str) -> Path:
        """Returns where the enrolment in a run is kept."""
        if not _RUN.fullmatch(run):
            raise EnrolmentError(f"'{shown(run)}' is not the name of a run")
        return directory / f"enrolment-{run}.json"

    @classmethod
    def read(cls, directory: Path, run: str) -> Self | None:
        """The enrolment in a run; None if there is none."""
        path = cls.file(directory, run)
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise EnrolmentError(f"{path.name} is damaged: restore it from a backup") from None

    def write(self, directory: Path) -> None:
        """Keeps the enrolment durably, for its owner only."""
        write_atomically(self.file(directory, self.run), json.dumps(asdict(self)).encode())


class ClientLog:
    """The file `client.log` of a client's directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, text: str, *, level: int = logging.INFO) -> None:
        """Adds one line, here and to the log of this process."""
        log.log(level, "%s", text)
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} {logging.getLevelName(level)} {text}\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line.encode())

    @contextmanager
    def refusals(self, what: str) -> Iterator[None]:
        """Notes why `what` was refused, and lets the server be told."""
        try:
            yield
        except Exception as error:
            why = str(error) if isinstance(error, SottovoceError) else repr(error)
            self.note(f"refused {what}: {why}", level=logging.ERROR)
            raise


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
    """Returns what a client remembers of a run, wherever the file is from; nothing if it is unreadable."""
    if path.suffix == ".witness":
        return (Memory(path.with_suffix("")).recall() or [{}])[-1]
    try:
        noted = json.loads(path.read_text())  # as version 0.1 kept it
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


class Recovery:
    """What one client has released in one run: as its ledger, its memory and the server know it."""

    def __init__(self, directory: Path, ledger: Ledger, run: str, client_log: ClientLog) -> None:
        self._memory = Memory(directory / f"trace-{run}", directory / "lock")
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
        """Returns how much of the run the ledger holds, one by one and in all, and as which copy."""
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
