"""A ledger in memory, for simulations that are seeded and send nothing.

It charges and refuses as the durable one does, but what it holds is on the disk only after `keep`: a process
that is killed has forgotten what it charged since. A seeded simulation that goes on from its checkpoint
draws the same releases again and protects nobody; for anything else a release would leave uncharged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from sottovoce.machine.files import write_atomically
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.ledger_file import LedgerFile


class MemoryFile(LedgerFile):
    """The tables of the ledger at `path`, which is made where there is none, in memory."""

    def __init__(self, path: Path, scope: str) -> None:
        with closing(LedgerFile.open(path, scope)) as kept:
            self.path, self._explain, self._timeout = path, kept._explain, kept._timeout
            self._only_read = False
            self._connection = sqlite3.connect(":memory:", isolation_level=None)
            with kept.explained():
                kept._connection.backup(self._connection)

    def save(self) -> None:
        """Replaces the file at `path`, durably, by what is in memory."""
        write_atomically(self.path, self._connection.serialize())


class MemoryLedger(Ledger):
    """An open ledger whose file at `path` holds what was charged when it was last kept.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     book = MemoryLedger.begin(Path(folder) / "ledger.sqlite", scope="demo")
    ...     print(book.path.exists(), book.clients())
    True []
    """

    _file: MemoryFile

    @classmethod
    def begin(cls, path: Path, *, scope: str) -> Self:
        """Goes on from the file at `path`, or begins a new ledger there."""
        new = not path.exists()
        ledger = cls(MemoryFile(path, scope), _Later(path))
        if new:
            ledger.keep()
        return ledger

    def keep(self) -> None:
        """Writes everything to the file, and to its witness, as a durable ledger would have."""
        self._file.save()
        self.trust_copy()


class _Later(Memory):
    """Remembers nothing before the ledger is kept."""

    def note(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Passed over."""
