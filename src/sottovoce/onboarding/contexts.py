"""The contexts that a service has received, on disk: one for each client, for ever.

A retry with the same bytes is answered again from here and costs nothing new. Other bytes from the same
client are refused: a second context would be a second release, and after a restored backup two encodings
under one stream.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from sottovoce.errors import SottovoceError
from sottovoce.files import Database


class SecondContext(SottovoceError):
    """The client has released another context before."""


class Contexts(Database):
    """Received contexts in an SQLite file that only its owner can read; used by one thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _explain, threads=True)
        self.query("PRAGMA journal_mode = WAL")
        self.query(
            "CREATE TABLE IF NOT EXISTS context"
            " (client TEXT PRIMARY KEY, digest BLOB NOT NULL, vector BLOB NOT NULL) WITHOUT ROWID"
        )
        self.restrict()

    def known(self, client: str, body: bytes) -> np.ndarray | None:
        """The decoded context that these bytes gave before; None for a client that is new."""
        rows = self.query("SELECT digest, vector FROM context WHERE client = ?", client)
        if not rows:
            return None
        [(digest, vector)] = rows
        if digest != _digest(body):
            raise SecondContext(
                "this client has sent another context before: send that one again, it costs nothing new"
            )
        return np.frombuffer(vector, np.float64).copy()

    def remember(self, client: str, body: bytes, vector: np.ndarray) -> None:
        """Keeps a context durably before it is answered."""
        row = (client, _digest(body), vector.astype(np.float64).tobytes())
        self.query("INSERT INTO context VALUES (?, ?, ?)", *row)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _explain(path: Path, error: Exception) -> SottovoceError:
    return SottovoceError(f"{path} is damaged or not ours ({error}): restore a backup")
