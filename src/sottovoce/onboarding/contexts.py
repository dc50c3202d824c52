"""The contexts that a service has received, on disk: one for each client, for ever.

A retry with the same bytes is answered again from here and costs nothing new. Other bytes from the same
client are refused: a second context would be a second release, and after a restored backup two encodings
under one stream.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import numpy as np

from sottovoce.errors import SottovoceError


class SecondContext(SottovoceError):
    """The client has released another context before."""


class Contexts:
    """Received contexts in an SQLite file that only its owner can read; used by one thread."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS context"
                " (client TEXT PRIMARY KEY, digest BLOB NOT NULL, vector BLOB NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as error:
            raise SottovoceError(f"{path} is damaged or not ours ({error}): restore a backup") from None

    def known(self, client: str, body: bytes) -> np.ndarray | None:
        """The decoded context that these bytes gave before; None for a client that is new."""
        row = self._connection.execute(
            "SELECT digest, vector FROM context WHERE client = ?", (client,)
        ).fetchone()
        if row is None:
            return None
        if row[0] != _digest(body):
            raise SecondContext(
                "this client has sent another context before: send that one again, it costs nothing new"
            )
        return np.frombuffer(row[1], np.float64).copy()

    def remember(self, client: str, body: bytes, vector: np.ndarray) -> None:
        """Keeps a context durably before it is answered."""
        row = (client, _digest(body), vector.astype(np.float64).tobytes())
        self._connection.execute("INSERT INTO context VALUES (?, ?, ?)", row)

    def close(self) -> None:
        self._connection.close()


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
