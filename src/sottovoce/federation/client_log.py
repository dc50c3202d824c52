"""A client's own log: what it released, resent and refused, and why; in its own directory, for its owner.

Lines hold names, rounds and ε, nothing that is computed from records: neither bytes nor norms. Only an error
may say more about them, and the server is not told that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.errors import shown as shown

log = logging.getLogger("sottovoce.federation")


class ClientLog:
    """The file `client.log` of a client's directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, text: str, *, level: int = logging.INFO) -> None:
        """Adds one line, here and to the log of this process."""
        log.log(level, "%s", text)
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} {logging.getLevelName(level)} {text}\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @contextmanager
    def refusals(self, what: str) -> Iterator[None]:
        """Notes why `what` was refused, and lets the server be told."""
        try:
            yield
        except Exception as error:
            why = str(error) if isinstance(error, SottovoceError) else repr(error)
            self.note(f"refused {what}: {why}", level=logging.ERROR)
            raise
