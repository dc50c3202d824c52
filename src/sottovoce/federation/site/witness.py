"""A client's witness: a folder outside of its machine that knows how far it was.

A disk or a virtual machine that is put back as a whole looks from inside as if nothing had happened. So a
client may be told of a folder that is not put back with it, such as a share of another machine. Before a
message leaves, how many releases the ledger holds of its run, and what they cost, are written there too, and
before an answer they are compared. Of each client and run there is one file, and nothing of records in it.

A witness that cannot be read or written is no reason to trust: nothing leaves until it can.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import write_atomically
from sottovoce.privacy.accounting import Total
from sottovoce.privacy.ledger import OWN_RECORDS


class WitnessError(SottovoceError):
    """The witness cannot be asked: nothing leaves."""


class Witness:
    """What the witness in `folder` knows of a client.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Witness(Path(folder), "north").note("3f2a", {"releases": 2, "spent": 0.5})
    ...     print(Witness(Path(folder), "north").runs())
    {'3f2a': {'releases': 2, 'spent': 0.5}}
    """

    def __init__(self, folder: Path, client: str) -> None:
        self._folder = folder
        self._mine = re.sub(r"[^\w-]", "_", client)

    def runs(self) -> dict[str, dict[str, Any]]:
        """What it knows of each run."""
        if not self._folder.is_dir():
            raise WitnessError(f"the witness {self._folder} is not there: nothing leaves until it is")
        return {
            path.name.split(".")[1]: self._read(path) for path in self._folder.glob(f"{self._mine}.*.json")
        }

    def totals(self) -> list[Total]:
        """What this client has spent in each run, as far as it knows."""
        return [Total.of({**fact, "client": OWN_RECORDS, "run": run}) for run, fact in self.runs().items()]

    def note(self, run: str, fact: dict[str, Any]) -> None:
        """Writes how far the client is in a run, durably."""
        write_atomically(self._folder / f"{self._mine}.{run}.json", json.dumps(fact).encode())

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            fact = json.loads(path.read_bytes())
            return {**fact, "releases": int(fact["releases"]), "spent": float(fact["spent"])}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise WitnessError(f"{path} cannot be read ({error}): nothing leaves until it can") from None
