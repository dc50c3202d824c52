"""The server's durable memory of a federation: one SQLite file, readable by its owner only.

It holds who is enrolled, which releases were asked for and received, and the server's state after every
round. A message is stored before it is used, and a round is applied in one transaction that saves the new
state and drops the messages it was made of; so a server killed at any moment goes on with the same bytes.
What was asked for and received is remembered for ever, message or not: that is how a client with a restored
backup knows what it must have spent.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.keys import EnrolmentError, new_key
from sottovoce.privacy.ledger import Kind

_FORMAT = 1
_SCHEMA = f"""
PRAGMA user_version = {_FORMAT};
CREATE TABLE federation (run TEXT NOT NULL, agreement TEXT NOT NULL, key BLOB NOT NULL);
CREATE TABLE client (participant INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, enrolled TEXT NOT NULL);
CREATE TABLE address (participant INTEGER PRIMARY KEY, address TEXT NOT NULL);
CREATE TABLE release (
    participant INTEGER NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    message BLOB,
    PRIMARY KEY (participant, kind, round)
) WITHOUT ROWID;
CREATE TABLE asked (
    participant INTEGER NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    PRIMARY KEY (participant, kind, round)
) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, type TEXT NOT NULL, shape TEXT NOT NULL, numbers BLOB NOT NULL);
CREATE TABLE round (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""


class StoreError(SottovoceError):
    """The server's store cannot be used as asked."""


class Store:
    """An open store; one server at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        [(run, key)] = self._query("SELECT run, key FROM federation")
        self.run: str = run
        """The run's name in streams."""
        self.key: bytes = key
        """The server's private key."""

    @classmethod
    def open(cls, path: str | Path, agreement: Agreement, *, patience: float = 30.0) -> Store:
        """Opens the store of this agreement, or creates it; waits `patience` seconds for another server."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(file, patience)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            os.close(descriptor)
            connection = sqlite3.connect(file, isolation_level=None)
            connection.execute("PRAGMA page_size = 16384")  # the state is megabytes
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")  # a message reveals more than its release
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                run = agreement.plan.digest() if agreement.plan.seeded else secrets.token_hex(8)
                connection.executescript("BEGIN;" + _SCHEMA)
                row = (run, agreement.to_toml(), new_key())
                connection.execute("INSERT INTO federation VALUES (?, ?, ?)", row)
                connection.execute("COMMIT")
            [(version,)] = connection.execute("PRAGMA user_version")
            if version != _FORMAT:
                raise StoreError(
                    f"{file} has store format {version} and this version reads {_FORMAT}: go on with the "
                    "version of Sottovoce that wrote it, or start a new run in another directory"
                )
            store = cls(file, connection, lock)
            store._check_same(agreement)
        except sqlite3.DatabaseError as error:
            os.close(lock)
            raise StoreError(f"{file} is damaged or no store of ours ({error}): restore a backup") from None
        except BaseException:
            os.close(lock)
            raise
        return store

    def close(self) -> None:
        """Lets another server have it."""
        self._connection.close()
        os.close(self._lock)

    # Clients

    def enrol(self, participant: int, key: bytes) -> bool:
        """Remembers a client's public key for ever; False if it was known, an error if another one is."""
        known = self._query("SELECT key FROM client WHERE participant = ?", participant)
        if known:
            if known[0][0] != key:
                raise EnrolmentError(
                    f"participant {participant} is enrolled with another key: take a free index, or restore "
                    "the directory it was enrolled with"
                )
            return False
        if self._query("SELECT 1 FROM client WHERE key = ?", key):
            raise EnrolmentError("this key is enrolled as another participant: use one directory per client")
        with self.transaction():
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._query("INSERT INTO client VALUES (?, ?, ?)", participant, key, now)
        return True

    def keys(self) -> dict[int, bytes]:
        """Public keys of all enrolled participants."""
        return dict(self._query("SELECT participant, key FROM client"))

    def addresses(self) -> dict[int, str]:
        """Where the engine last reached each participant."""
        return dict(self._query("SELECT participant, address FROM address"))

    def reached(self, participant: int, address: str) -> None:
        """Remembers where a participant was reached."""
        with self.transaction():
            self._query("INSERT OR REPLACE INTO address VALUES (?, ?)", participant, address)

    # Releases

    def receive(self, participant: int, kind: Kind, round_number: int, message: bytes) -> bool:
        """Stores a message durably; False, and nothing stored, if that release was received before."""
        with self.transaction():
            before = self._connection.total_changes
            row = (participant, kind, round_number, message)
            self._query("INSERT OR IGNORE INTO release VALUES (?, ?, ?, ?)", *row)
            return self._connection.total_changes > before

    def received(self, participant: int) -> list[tuple[Kind, int]]:
        """Every release that the server ever had from a participant."""
        return self._query(
            "SELECT kind, round FROM release WHERE participant = ? ORDER BY round, kind", participant
        )

    def ask(self, participant: int, kind: Kind, round_number: int) -> None:
        """Remembers durably that a release is asked for; only then may the request leave."""
        with self.transaction():
            self._query("INSERT OR IGNORE INTO asked VALUES (?, ?, ?)", participant, kind, round_number)

    def asked(self, participant: int) -> list[tuple[Kind, int]]:
        """Every release that a participant was ever asked for."""
        return self._query(
            "SELECT kind, round FROM asked WHERE participant = ? ORDER BY round, kind", participant
        )

    def waiting(self) -> list[tuple[int, Kind, int, bytes]]:
        """Messages that are not applied yet: participant, kind, round, bytes."""
        return self._query(
            "SELECT participant, kind, round, message FROM release WHERE message IS NOT NULL"
            " ORDER BY participant"
        )

    # Rounds

    def state(self) -> dict[str, Tensor] | None:
        """The server's state after the last applied round; None before the first."""
        rows = self._query("SELECT name, type, shape, numbers FROM state")
        return {name: _tensor(*values) for name, *values in rows} or None

    def apply(self, state: Mapping[str, Tensor], line: Mapping[str, Any] | None) -> None:
        """Saves the state in which all waiting messages are applied, with the round's line if one ended."""
        with self.transaction():
            for name, tensor in state.items():
                self._keep(name, tensor)
            self._query("UPDATE release SET message = NULL WHERE message IS NOT NULL")
            if line is not None:
                self._query("INSERT INTO round VALUES (?, ?)", line["round"], json.dumps(line))

    def _keep(self, name: str, tensor: Tensor) -> None:
        """Writes a tensor in place: replacing a row would write its old pages too."""
        array = tensor.numpy()
        same = (name, array.dtype.str, json.dumps(array.shape))
        rows = self._query("SELECT rowid FROM state WHERE name = ? AND type = ? AND shape = ?", *same)
        if not rows:
            self._query("INSERT OR REPLACE INTO state VALUES (?, ?, ?, zeroblob(?))", *same, array.nbytes)
            rows = self._query("SELECT rowid FROM state WHERE name = ?", name)
        with self._explained(), self._connection.blobopen("state", "numbers", rows[0][0]) as blob:
            blob.write(array.data)

    def lines(self) -> list[dict[str, Any]]:
        """One line for each applied round."""
        return [json.loads(line) for (line,) in self._query("SELECT line FROM round ORDER BY number")]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block durably, or nothing of it; a block inside another one is part of it."""
        if self._connection.in_transaction:
            yield
            return
        self._query("BEGIN IMMEDIATE")
        try:
            yield
            self._query("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _query(self, statement: str, *values: object) -> list[Any]:
        with self._explained():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self.path} cannot be used ({error}): free some space or restore it") from None

    def _check_same(self, agreement: Agreement) -> None:
        [(text,)] = self._query("SELECT agreement FROM federation")
        difference = agreement.difference(Agreement.parse(text))
        if difference is not None:
            raise StoreError(
                f"{self.path} was started under another agreement ({difference}): "
                "go on with that one, or start in another directory"
            )


def _tensor(kind: str, shape: str, numbers: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(numbers, kind).reshape(json.loads(shape)).copy())


def _locked(file: Path, patience: float) -> int:
    """An exclusive lock that ends with the process: two servers would answer one client differently."""
    lock = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                raise StoreError(f"another server is working with {file}: stop it first") from None
            time.sleep(0.2)
