"""A helper: holds no records, and answers each round of a run once, with the sum of its masks of one set.

The key of a round exists from the answer of the round before on, and is erased in the transaction that stores
its answer: nobody can make the helper answer for another set, later or by force. The store is on the disk,
and its free pages and log are empty of the key, before an answer leaves. What it has answered is noted beside
the store; a store that was restored or copied refuses its run for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import Database, locked
from sottovoce.machine.rollback import Memory
from sottovoce.release.places.masks import (
    KIND,
    MaskingError,
    MaskTerms,
    RoundKey,
    derived,
    exchanged,
    public_hex,
    stream,
)

_SCHEMA = (
    "CREATE TABLE helper (agreement BLOB NOT NULL)",
    "CREATE TABLE key (round INTEGER PRIMARY KEY, private BLOB NOT NULL)",
    "CREATE TABLE answer (round INTEGER PRIMARY KEY, clients TEXT NOT NULL, masks BLOB NOT NULL)",
)
_GIVEN_UP = "given up"


class Helper(Database):
    """An open helper of one run; `Helper.open` is the way to it."""

    def __init__(
        self, path: Path, terms: MaskTerms, exchange: X25519PrivateKey, signing: Ed25519PrivateKey
    ) -> None:
        names = [(one.exchange, one.signing) for one in terms.helpers]
        mine = (public_hex(exchange), public_hex(signing))
        if mine not in names:
            raise MaskingError("these keys are of no helper that was agreed on: refused")
        super().__init__(path, _explain)
        self._terms, self._exchange, self._signing = terms, exchange, signing
        self.number = names.index(mine)
        """Its place among the helpers."""
        self._memory = Memory(path)

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, terms: MaskTerms, exchange: X25519PrivateKey, signing: Ed25519PrivateKey
    ) -> Iterator[Helper]:
        """The helper whose store is at `path`, one process at a time; made where there is none."""
        busy = f"another process has {path} open: end it first"
        with locked(Memory(path).lock, timeout=0, busy=busy):
            helper = cls(path, terms, exchange, signing)
            try:
                helper._start()
                yield helper
            finally:
                helper.close()

    @property
    def round(self) -> int:
        """The round that it has a key for, and will answer; 0 after the last."""
        rows = self.query("SELECT round FROM key")
        return int(rows[0][0]) if rows else 0

    def key(self) -> RoundKey | None:
        """Its signed public key of that round."""
        for number, private in self.query("SELECT round, private FROM key"):
            public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
            return RoundKey.signed(self._terms, self.number, number, public, self._signing)
        return None

    def answer(self, run: str, kind: str, round_number: int, ephemerals: Mapping[int, bytes]) -> bytes:
        """The sum of its masks of the clients whose messages began with these keys.

        Asked again about the same clients it says the same again, whatever keys are named; about others it
        never says anything.
        """
        terms, clients = self._terms, json.dumps(sorted(ephemerals))
        if (run, kind) != (terms.run, KIND):
            raise MaskingError("that is another run, or another kind of release: refused")
        planned = set(terms.planned(round_number))
        if not set(ephemerals) <= planned or len(ephemerals) < terms.threshold:
            raise MaskingError(
                f"a sum is of at least {terms.threshold} of the clients planned for its round: refused"
            )
        stored = self.query("SELECT clients, masks FROM answer WHERE round = ?", round_number)
        if stored:
            if stored[0][0] != clients:
                raise MaskingError(f"round {round_number} was answered before, or given up: refused")
            self._settle()
            return bytes(stored[0][1])
        masks = self._masks(self._private(round_number), round_number, ephemerals)
        self._close_round(round_number, clients, masks)
        return masks

    def give_up(self, round_number: int) -> None:
        """Erases the key of a round that will never be answered, and makes that of the next."""
        if self.query("SELECT clients FROM answer WHERE round = ?", round_number) != [(_GIVEN_UP,)]:
            self._private(round_number)
            self._close_round(round_number, _GIVEN_UP, b"")

    def _masks(self, private: X25519PrivateKey, round_number: int, ephemerals: Mapping[int, bytes]) -> bytes:
        terms, public = self._terms, private.public_key().public_bytes_raw()
        total = np.zeros(terms.size, terms.unsigned)
        for client, e in ephemerals.items():
            both = exchanged(private, e) + exchanged(self._exchange, bytes.fromhex(terms.clients[client]))
            seed = derived(both, terms, round_number, client, self.number, e, public)
            total = total + terms.words(stream(seed, terms.length))
        return total.astype(terms.unsigned).tobytes()

    def _private(self, round_number: int) -> X25519PrivateKey:
        rows = self.query("SELECT private FROM key WHERE round = ?", round_number)
        if not rows:
            raise MaskingError(f"there is no key of round {round_number}, or it was erased: refused")
        return X25519PrivateKey.from_private_bytes(rows[0][0])

    def _close_round(self, round_number: int, clients: str, masks: bytes) -> None:
        """Stores what is said of a round, erases its key and makes the next one, at once or not at all."""
        with self.transaction():
            self.query("INSERT INTO answer VALUES (?, ?, ?)", round_number, clients, masks)
            self.query("DELETE FROM key WHERE round = ?", round_number)
            if round_number < len(self._terms.schedule):
                self._new_key(round_number + 1)
        self._settle()

    def _settle(self) -> None:
        """Empties the log, in which the erased key still is, and notes the rounds that are closed."""
        [(busy, _, _)] = self.query("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise MaskingError(f"{self.path} is being read by another process: ask again when it has ended")
        closed = self._closed()
        if closed > self._noted():
            self._memory.note([self._fact(closed)])

    def _start(self) -> None:
        self.query("PRAGMA journal_mode = WAL")
        if not self.query("SELECT 1 FROM sqlite_master"):
            self._begin()
        if self.query("SELECT agreement FROM helper") != [(self._terms.digest,)]:
            raise MaskingError(f"{self.path} is about another agreement: one store serves one run")
        self._compare()

    def _begin(self) -> None:
        if self._memory.path.exists():
            raise MaskingError(
                f"{self.path} is gone and its notes are there: it may have answered, so it never will again"
            )
        self._memory.trust([self._fact(0)])
        with self.transaction():
            for statement in _SCHEMA:
                self.query(statement)
            self.query("INSERT INTO helper VALUES (?)", self._terms.digest)
            self._new_key(1)

    def _compare(self) -> None:
        """Refuses a store that is older than its notes, and notes that were copied or restored."""
        whole = self._memory.faithful(agreement=self._terms.digest.hex())
        if whole is None or self._noted() > self._closed():
            raise MaskingError(
                f"{self.path} or its notes were restored or copied: rounds may have been answered since, so "
                "this helper never answers for this run again; start a new run"
            )
        self._settle()

    def _noted(self) -> int:
        return max((int(fact.get("closed", 0)) for fact in self._memory.recall() or []), default=0)

    def _closed(self) -> int:
        return int(self.query("SELECT COUNT(*) FROM answer")[0][0])

    def _fact(self, closed: int) -> dict[str, object]:
        return {"agreement": self._terms.digest.hex(), "closed": closed}

    def _new_key(self, round_number: int) -> None:
        private = X25519PrivateKey.generate().private_bytes_raw()
        self.query("INSERT INTO key VALUES (?, ?)", round_number, private)


def _explain(path: Path, error: Exception) -> SottovoceError:
    return MaskingError(f"the helper's store {path} cannot be used ({error}): check its folder and its disk")
