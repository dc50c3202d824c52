"""What encoders made of contents, each kept once: private data, for their owner alone.

They lie in one SQLite file of the cache folder as float16, under a digest of encoder and content that is
keyed with a secret of this machine, so that a key says nothing about a content. Whoever trains, predicts
or adds a record to a folder finds there what was encoded before; another content, or another encoder, is
another key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import cache_folder
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import Database, kept_secret

FILE = "encoded.sqlite"
_ASKED = 500


def features_folder() -> Path:
    """Where all that is kept of features lies, open to its owner only."""
    folder = cache_folder() / "features"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


class Kept:
    """Rows of float32 by encoder and content; what comes back is rounded as float16 rounds it."""

    def __init__(self) -> None:
        self._key = kept_secret(features_folder() / "key")
        self._database = Database(features_folder() / FILE, _explained)
        self._database.script("CREATE TABLE IF NOT EXISTS encoded (key BLOB PRIMARY KEY, row BLOB NOT NULL)")
        self._database.restrict()

    def found(self, encoder: str, contents: Sequence[bytes]) -> dict[bytes, Tensor]:
        """The rows that are there already, by content."""
        keys = {self._named(encoder, content): content for content in contents}
        rows: dict[bytes, Tensor] = {}
        for start in range(0, len(keys), _ASKED):
            asked = list(keys)[start : start + _ASKED]
            marks = ",".join("?" * len(asked))
            for key, row in self._database.query(
                f"SELECT key, row FROM encoded WHERE key IN ({marks})", *asked
            ):
                rows[keys[key]] = torch.from_numpy(np.frombuffer(row, np.float16).astype(np.float32))
        return rows

    def keep(self, encoder: str, rows: Mapping[bytes, Tensor]) -> None:
        """Keeps rows for the next time."""
        with self._database.transaction():
            for content, row in rows.items():
                self._database.query(
                    "INSERT OR REPLACE INTO encoded VALUES (?, ?)",
                    self._named(encoder, content),
                    row.half().numpy().tobytes(),
                )

    def close(self) -> None:
        self._database.close()

    def _named(self, encoder: str, content: bytes) -> bytes:
        return hmac.new(self._key, encoder.encode() + content, hashlib.sha256).digest()


def _explained(path: Path, error: Exception) -> SottovoceError:
    return SottovoceError(f"cannot keep features in {path} ({error}): 'sottovoce data clean' removes them")
