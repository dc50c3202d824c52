"""What a client agreed with the server of one run, in a file of the client's directory."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sottovoce.federation.client_log import shown
from sottovoce.federation.keys import EnrolmentError
from sottovoce.files import write_atomically

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

    @staticmethod
    def file(directory: Path, run: str) -> Path:
        """Where the enrolment in a run is kept."""
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
