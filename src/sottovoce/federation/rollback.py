"""What tells a client that its directory, or its ledger alone, was restored from a backup, run by run.

A ledger's witness tells what the ledger has lost; whether it may have been used in a certain run, so that the
server of that run must be asked for the streams, is noted here. What the server received it can tell, but not
what was lost on the way; so the client must notice the restore itself. Before a release leaves, it notes how
many its ledger holds of that run, in a file of its own. A restore shows in one of three ways: the ledger
holds fewer; the note is younger than it says, because no program can set the time at which a file was last
changed; or, by the same token, the lock file, which nothing ever changes, is a new one. Two cases show none
of them: a disk that is rolled back as a whole, and ledger and note put back, but not the lock, within seconds
of the note.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sottovoce.files import PRIVATE, write_atomically

_PROMPT = 5 * 10**9  # nanoseconds that writing a note may take; a slow disk only looks restored


def trace_file(directory: Path, run: str) -> Path:
    """Where the trace of a run is kept."""
    return directory / f"trace-{run}.json"


def traces(directory: Path) -> dict[str, Footprint]:
    """What the files of all runs in a directory hold, by run."""
    found = {
        path.stem.removeprefix("trace-"): Footprint.last(path) for path in directory.glob("trace-*.json")
    }
    return {run: trace for run, trace in sorted(found.items()) if trace is not None}


@dataclass(frozen=True)
class Footprint:
    """What was noted when this client last released something in a run."""

    lock: int
    """When the lock file came into being, in nanoseconds."""
    releases: int
    """How many releases of the run the ledger held, one by one."""
    spent: float | None = None
    """Their Σ (Δ/σ)²; version 0.1 did not note it."""
    server: int = 0
    """How many of them have their noise at the server."""

    @classmethod
    def of(cls, lock: Path, releases: int, spent: float = 0.0, server: int = 0) -> Self:
        """The trace as it is now."""
        return cls(os.stat(lock).st_ctime_ns, releases, spent, server)

    @classmethod
    def last(cls, path: Path) -> Self | None:
        """The trace that a file holds, wherever that file comes from; None if it holds none."""
        try:
            fields = json.loads(path.read_text())
            del fields["time"]
            return cls(**fields)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The trace that was noted; None if there is none, or this is not the file that was written then."""
        try:
            if abs(path.stat().st_ctime_ns - json.loads(path.read_text())["time"]) > _PROMPT:
                return None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
        return cls.last(path)

    def write(self, path: Path) -> None:
        """Notes the trace durably."""
        fields = {**asdict(self), "time": time.time_ns()}
        write_atomically(path, json.dumps(fields).encode(), mode=PRIVATE)

    def follows(self, noted: Footprint | None) -> bool:
        """Whether nothing was restored since `noted` was."""
        return noted is not None and noted.lock == self.lock and noted.releases <= self.releases
