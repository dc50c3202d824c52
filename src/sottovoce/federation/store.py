"""The server's durable memory of a federation: one SQLite file, readable by its owner only.

It holds who is enrolled, which releases were received, and the server's state after every round. A message is
stored before it is used, and a round is applied in one transaction that saves the new state and drops the
messages it was made of, with the keys that could open them; so a server killed at any moment continues with
the same bytes, and afterwards nobody can read them, here or in any copy. What was received is remembered for
ever, message or not. With noise at the server the rounds whose noise was drawn are noted beside it, so that a
store that was restored or copied draws nothing again.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.sealing import EnrolmentError, new_key
from sottovoce.machine.files import Database, locked, private_folder
from sottovoce.plan.catalog import Kind
from sottovoce.release.places.server import AlreadyDrawn, DrawnRounds

log = logging.getLogger("sottovoce.federation")

_FORMAT = 4
_SCHEMA = f"""
PRAGMA user_version = {_FORMAT};
CREATE TABLE federation (run TEXT NOT NULL, agreement TEXT NOT NULL, key BLOB NOT NULL);
CREATE TABLE client (
    participant INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    enrolled TEXT NOT NULL,
    records INTEGER NOT NULL,
    name TEXT NOT NULL
);
CREATE TABLE address (participant INTEGER PRIMARY KEY, address TEXT NOT NULL);
CREATE TABLE release (
    participant INTEGER NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    message BLOB,
    PRIMARY KEY (participant, kind, round)
) WITHOUT ROWID;
CREATE TABLE seal (
    participant INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (participant, kind)
) WITHOUT ROWID;
CREATE TABLE asked (
    participant INTEGER NOT NULL,
    kind TEXT NOT NULL,
    request BLOB NOT NULL,
    PRIMARY KEY (participant, kind, request)
) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, type TEXT NOT NULL, shape TEXT NOT NULL, numbers BLOB NOT NULL);
CREATE TABLE kept (participant INTEGER PRIMARY KEY);
CREATE TABLE round (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""

_SHARED = """
CREATE TABLE helper_key (
    helper INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,
    public BLOB NOT NULL,
    signature BLOB NOT NULL
);
CREATE TABLE fixed (round INTEGER PRIMARY KEY, clients TEXT NOT NULL);
CREATE TABLE masks (helper INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""
"""What the store of a run with shared noise has besides, for `sharing.Sums`: the newest key of each helper,
whose sum is to open, and what helpers have answered for it."""


class StoreError(SottovoceError):
    """The server's store cannot be used as asked."""


class Store(Database):
    """An open store; one server at a time."""

    def __init__(self, path: Path, agreement: Agreement, lock: ExitStack) -> None:
        super().__init__(path, _explain, page_size=16384)  # the state is megabytes
        self._lock = lock
        self._drawn: DrawnRounds | None = None
        plan = agreement.plan
        self._shared = plan.place.shared
        noted = plan.place.at_server and not plan.seeded  # a seeded draw that is repeated is the same draw
        self.query("PRAGMA journal_mode = WAL")
        if not self.query("SELECT 1 FROM sqlite_master"):
            run = plan.digest() if plan.seeded else secrets.token_hex(8)
            with self.transaction():
                for statement in (_SCHEMA + _SHARED * plan.place.shared).split(";"):
                    self.query(statement)
                self.query("INSERT INTO federation VALUES (?, ?, ?)", run, agreement.to_toml(), new_key())
                if noted:  # before there is a store that could be restored without its notes
                    DrawnRounds.begin(path, run)
        [(version,)] = self.query("PRAGMA user_version")
        if version != _FORMAT:
            raise StoreError(
                f"{path} has store format {version} and this version reads {_FORMAT}: continue with the "
                "version of Sottovoce that wrote it, or start a new run in another directory"
            )
        self.run: str
        """The run's name in streams."""
        self.key: bytes
        """The server's private key."""
        [(self.run, self.key, text)] = self.query("SELECT run, key, agreement FROM federation")
        played = agreement.simulation
        before = Agreement.parse(text, simulation=played, model=plan.model, features=agreement.features)
        difference = agreement.difference(before)
        if difference is not None:
            raise StoreError(
                f"{self.path} was started under another agreement ({difference}): "
                "continue with that one, or start in another directory"
            )
        [(applied,)] = self.query("SELECT COUNT(*) FROM round")
        if noted and applied < plan.rounds:
            self._drawn = self._drawn_rounds(applied)
        self._forget()  # what a killed server has dropped and left in its log
        self.restrict()

    def _drawn_rounds(self, applied: int) -> DrawnRounds:
        """The rounds that were drawn: as many as were applied, or a store that was restored is refused."""
        drawn = DrawnRounds.reopen(self.path, self.run)
        if applied < drawn.last:
            raise AlreadyDrawn(
                f"{self.path} was restored from before round {drawn.last}, whose noise was drawn: a second "
                "draw would undo it; put its newest files back, or start a new run"
            )
        drawn.check(applied - 1)
        if applied > drawn.last:  # the server was killed when the round was durable and nothing had left
            drawn.note(applied)
        return drawn

    @classmethod
    def open(cls, path: str | Path, agreement: Agreement, *, timeout: float = 30.0) -> Store:
        """Opens the store of this agreement, or creates it; waits `timeout` seconds for another server."""
        file = Path(path)
        private_folder(file.parent)
        with ExitStack() as lock:
            # Two servers would answer one client differently.
            busy = f"another server is working with {file}: stop it first"
            lock.enter_context(locked(file.with_name(file.name + ".lock"), timeout=timeout, busy=busy))
            return cls(file, agreement, lock.pop_all())

    def close(self) -> None:
        """Lets another server have it."""
        super().close()
        self._lock.close()

    # Clients

    def enrol(self, participant: int, key: bytes, records: int = 0, name: str = "") -> bool:
        """Remembers a client's public key, the number of its training records and its name for ever.

        False if the client was known, an error if another one is.
        """
        known = self.query("SELECT key FROM client WHERE participant = ?", participant)
        if known:
            if known[0][0] != key:
                raise EnrolmentError(
                    f"participant {participant} is enrolled with another key: take a free index, or restore "
                    "the directory it was enrolled with"
                )
            return False
        if self.query("SELECT 1 FROM client WHERE key = ?", key):
            raise EnrolmentError("this key is enrolled as another participant: use one directory per client")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.query("INSERT INTO client VALUES (?, ?, ?, ?, ?)", participant, key, now, records, name)
        return True

    def keys(self) -> dict[int, bytes]:
        """Public keys of all enrolled participants."""
        return dict(self.query("SELECT participant, key FROM client"))

    def declared(self) -> dict[int, int]:
        """Training records of all enrolled participants, as they declared them; 0: they were not asked."""
        return dict(self.query("SELECT participant, records FROM client"))

    def names(self) -> dict[int, str]:
        """Returns what enrolled participants call themselves."""
        return dict(self.query("SELECT participant, name FROM client WHERE name != ''"))

    def addresses(self) -> dict[int, str]:
        """Returns where the engine last reached each participant."""
        return dict(self.query("SELECT participant, address FROM address"))

    def reached(self, participant: int, address: str) -> None:
        """Remembers where a participant was reached."""
        self.query("INSERT OR REPLACE INTO address VALUES (?, ?)", participant, address)

    def keep_model(self, participant: int) -> None:
        """Remembers that a participant has its final model."""
        self.query("INSERT OR IGNORE INTO kept VALUES (?)", participant)

    def kept(self) -> set[int]:
        """Participants who have their final model."""
        return {participant for (participant,) in self.query("SELECT participant FROM kept")}

    # Releases

    def receive(self, participant: int, kind: Kind, round_number: int, message: bytes) -> None:
        """Stores a message durably; nothing, if that release was received before."""
        row = (participant, kind, round_number, message)
        self.query("INSERT OR IGNORE INTO release VALUES (?, ?, ?, ?)", *row)

    def received(self, participant: int) -> list[tuple[Kind, int]]:
        """Every release that the server ever had from a participant."""
        query = "SELECT kind, round FROM release WHERE participant = ? ORDER BY round, kind"
        return self.query(query, participant)

    def counts(self) -> dict[int, dict[Kind, int]]:
        """Returns how many releases of each kind the server ever had, by participant."""
        found: dict[int, dict[Kind, int]] = {}
        query = "SELECT participant, kind, COUNT(*) FROM release GROUP BY participant, kind"
        for participant, kind, count in self.query(query):
            found.setdefault(participant, {})[kind] = count
        return found

    def ask(self, participant: int, kind: Kind) -> bytes:
        """The private key for which the answer to a request is to be sealed, the same until it is applied.

        It is durable: only then may the request leave.
        """
        self.query("INSERT OR IGNORE INTO seal VALUES (?, ?, ?)", participant, kind, new_key())
        key = self.seal_key(participant, kind)
        assert key is not None
        return key

    def note_request(self, participant: int, kind: Kind, request: bytes) -> None:
        """Remembers, until it is applied, the digest of a request that is about to leave.

        It is the same each time, unless this server computes other coefficients than before it was killed.
        """
        self.query("INSERT OR IGNORE INTO asked VALUES (?, ?, ?)", participant, kind, request)

    def requests(self, participant: int, kind: Kind) -> list[bytes]:
        """The digests of the requests for a participant's next release of a kind."""
        query = "SELECT request FROM asked WHERE participant = ? AND kind = ?"
        return [request for (request,) in self.query(query, participant, kind)]

    def seal_key(self, participant: int, kind: Kind) -> bytes | None:
        """The private key for which a participant seals its next release of a kind; None: not asked for."""
        rows = self.query("SELECT key FROM seal WHERE participant = ? AND kind = ?", participant, kind)
        return rows[0][0] if rows else None

    def waiting(self) -> list[tuple[int, Kind, int, bytes]]:
        """Messages that are not applied yet: participant, kind, round, bytes."""
        return self.query(
            "SELECT participant, kind, round, message FROM release WHERE message IS NOT NULL"
            " ORDER BY participant"
        )

    # Rounds

    def state(self) -> dict[str, Tensor] | None:
        """The server's state after the last applied round; None before the first."""
        rows = self.query("SELECT name, type, shape, numbers FROM state")
        return {name: _tensor(*values) for name, *values in rows} or None

    def apply(
        self, state: Mapping[str, Tensor], line: Mapping[str, Any] | None, *, last: bool = False
    ) -> None:
        """Saves the state in which all waiting messages are applied, with the round's line if one ended.

        The messages are dropped, and erased with them are the keys of all gradients, received or not, and of
        every context that was received; after the `last` round, all keys. What is made from the state may
        leave when this returns: with noise at the server, the round is noted as drawn.
        """
        with self.transaction():
            for table in ("seal", "asked"):
                self.query(
                    f"DELETE FROM {table} WHERE ? OR kind = 'gradient'"
                    " OR (participant, kind) IN (SELECT participant, kind FROM release)",
                    last,
                )
            for name, tensor in state.items():
                self._keep(name, tensor)
            self.query("UPDATE release SET message = NULL WHERE message IS NOT NULL")
            if self._shared:
                self.query("DELETE FROM masks")
                self.query("DELETE FROM fixed")
            if line is not None:
                self.query("INSERT INTO round VALUES (?, ?)", line["round"], json.dumps(line))
        if line is not None and self._drawn is not None:
            self._drawn.note(line["round"])
        self._forget()

    def _forget(self) -> None:
        """Cuts what was dropped from the write-ahead log; `secure_delete` has overwritten it in the file."""
        if not self.emptied_log():
            log.warning(
                "%s is being read by another process: dropped messages stay in its log until the next round",
                self.path,
            )

    def _keep(self, name: str, tensor: Tensor) -> None:
        """Writes a tensor in place: replacing a row would write its old pages too."""
        array = tensor.numpy()
        same = (name, array.dtype.str, json.dumps(array.shape))
        rows = self.query("SELECT rowid FROM state WHERE name = ? AND type = ? AND shape = ?", *same)
        if not rows:
            self.query("INSERT OR REPLACE INTO state VALUES (?, ?, ?, zeroblob(?))", *same, array.nbytes)
            rows = self.query("SELECT rowid FROM state WHERE name = ?", name)
        with self.explained(), self._connection.blobopen("state", "numbers", rows[0][0]) as blob:
            blob.write(array.data)

    def lines(self) -> list[dict[str, Any]]:
        """One line for each applied round."""
        return [json.loads(line) for (line,) in self.query("SELECT line FROM round ORDER BY number")]


def _tensor(kind: str, shape: str, numbers: bytes) -> Tensor:
    return torch.tensor(np.frombuffer(numbers, kind).reshape(json.loads(shape)))


def _explain(path: Path, error: Exception) -> StoreError:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return StoreError(f"{path} is damaged or not a store of ours ({error}): restore a backup")
    return StoreError(f"{path} cannot be used ({error}): free some space or restore it")
