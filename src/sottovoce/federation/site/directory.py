"""What a client keeps in its directory: what it agreed with the servers of runs, and its log for its owner.

Lines of the log say what it released, resent and refused, and why. They hold names, rounds and ε, nothing
that is computed from records: neither bytes nor norms. Only an error may say more about them, and the server
is not told that.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.machine.files import PRIVATE, locked, write_atomically

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

    @classmethod
    def all(cls, directory: Path) -> list[Self]:
        """The enrolments in all runs."""
        runs = (path.stem.removeprefix("enrolment-") for path in sorted(directory.glob("enrolment-*.json")))
        return [found for found in (cls.read(directory, run) for run in runs) if found is not None]

    def write(self, directory: Path) -> None:
        """Keeps the enrolment durably, for its owner only."""
        write_atomically(self.file(directory, self.run), json.dumps(asdict(self)).encode())


@contextmanager
def working_in(directory: Path) -> Iterator[None]:
    """A client's directory, made if there is none, for one process at a time and its owner alone."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in (directory, *directory.iterdir()):  # restored files may be open to all
        if path.stat().st_mode & 0o077:
            path.chmod(0o700 if path.is_dir() else PRIVATE)
    with locked(directory / "lock"):
        yield


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
