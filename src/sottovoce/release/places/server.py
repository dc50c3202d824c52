"""Noise once a round, at the server: U = Σ_i w_i û_i h_iᵀ + σZ moves the generator, and no release alone.

h_i with ‖h_i‖ ≤ 1 says in which columns of its generator a client's release counts, and is fixed by contexts
that were paid for; w_i = m_i/Σm with Σm of the smallest planned round, whoever is missing (a client may count
for fewer records than it has). Replacing one record of client i moves its clipped mean û_i by at most 2C/m_i,
and so U by at most 2C/Σm in Frobenius norm:
Δ and σ are the same for every client and every column. What comes after the noise is post-processing.

The noise of a sum is drawn once for ever: two draws for one sum would average it away, uncharged. So a sum is
on the disk and its round is noted (`DrawnRounds`) before anything is made from it, and a run whose files were
restored or copied draws nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import sync_folder
from sottovoce.machine.rollback import Memory
from sottovoce.models.tensors import ModelFileError, load_tensors, save_tensors

Array = TypeVar("Array", np.ndarray, Tensor)

CARRIED = 0.1
"""The most that the channels' noise is of all noise's variance; it protects nobody and is not counted."""


@dataclass(frozen=True)
class RoundSum:
    """The public numbers behind noise in a sum: Σm of the smallest planned round, the largest Σ w_i².

    >>> round_sum = RoundSum.of(np.array([[0, 1], [1, 2]]), (300, 100, 200))
    >>> round_sum.records, round_sum.weights((300, 100)).round(2).tolist()
    (300, [1.0, 0.33])
    """

    records: int
    squares: float
    most: int
    """Σm of the largest planned round."""
    clients: int
    """Planned for a round."""

    @classmethod
    def of(cls, schedule: np.ndarray, sizes: Sequence[int]) -> RoundSum:
        """From who is planned in which round (rounds, clients) and the records behind a release of each."""
        planned = np.asarray(sizes, dtype=np.int64)[schedule]
        records, most = int(planned.sum(axis=1).min()), int(planned.sum(axis=1).max())
        squares = float(((planned / records) ** 2).sum(axis=1).max())
        return cls(records, squares, most, planned.shape[1])

    def weights(self, sizes: Sequence[int]) -> np.ndarray:
        """w_i of clients with so many records; they sum to 1 or more if nobody of a round is missing."""
        weights: np.ndarray = np.asarray(sizes, dtype=np.float64) / self.records
        return weights

    def channel_sigma(self, sigma: float) -> float:
        """σ of the channels that carry releases to a server that adds `sigma`."""
        return sigma * math.sqrt(CARRIED / (1 - CARRIED) / self.squares)

    def total(self, sigma: float) -> float:
        """The most noise that a client's coefficients see in a round: the server's and the channels'."""
        return math.hypot(sigma, self.channel_sigma(sigma) * math.sqrt(self.squares))


@dataclass(frozen=True, eq=False)
class Update:
    """What a round leaves: the noised sum (k, columns), and the participants whose releases are in it."""

    round: int
    participants: tuple[int, ...]
    columns: Tensor

    def digest(self) -> str:
        """A fingerprint of this draw."""
        told = f"{self.round}:{self.participants}:{tuple(self.columns.shape)}:".encode()
        return hashlib.sha256(told + self.columns.contiguous().numpy().tobytes()).hexdigest()[:32]


class AlreadyDrawn(SottovoceError):
    """The noise of a round was drawn before, or may have been: it is not drawn again."""


@dataclass
class DrawnRounds:
    """The rounds of a run whose noise was drawn, noted beside the file `name` that the run is kept in.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     DrawnRounds.begin(Path(folder) / "run", "3f2a").note(1, "digest")
    ...     print(DrawnRounds.reopen(Path(folder) / "run", "3f2a").digests)
    {1: 'digest'}
    """

    _memory: Memory
    _run: str
    digests: dict[int, str]
    """What was drawn, by round."""

    @classmethod
    def begin(cls, name: Path, run: str) -> DrawnRounds:
        """Those of a run that has made nothing yet, in place of any other run's."""
        memory = Memory(name)
        memory.trust([{"run": run}])
        return cls(memory, run, {})

    @classmethod
    def reopen(cls, name: Path, run: str) -> DrawnRounds:
        """Those of a run that goes on; refused if the notes are gone, copied, restored or another run's."""
        memory = Memory(name)
        facts = memory.faithful(run=run)
        if facts is None:
            if memory.owned_anew:
                raise AlreadyDrawn(
                    f"{memory.path} has another owner or mode, or was put back in place: if it was not, "
                    f"say 'sottovoce ledger vouch {name.parent}'"
                )
            raise AlreadyDrawn(
                f"{memory.path} is missing, copied or restored from a backup: noise of this run may have "
                "been drawn since, and a second draw would undo it; start a new run"
            )
        return cls(memory, run, {fact["round"]: fact["draw"] for fact in facts if "round" in fact})

    @classmethod
    def vouch(cls, name: Path) -> bool:
        """Trusts notes whose owner or mode was changed, by the word of whoever changed it; nothing else makes
        notes that were copied or restored true again. Returns whether there was anything to trust."""
        memory = Memory(name)
        facts = memory.recall()
        if facts is None or not memory.copied:
            return False
        if not memory.owned_anew:
            raise AlreadyDrawn(
                f"{memory.path} was copied or restored from a backup: noise may have been drawn since, and "
                "no word undoes that; start a new run"
            )
        memory.trust(facts)
        return True

    @property
    def last(self) -> int:
        """The last round whose noise was drawn; 0 before the first."""
        return max(self.digests, default=0)

    def check(self, made: int) -> None:
        """Refuses a run that has made more rounds than were noted: its notes are not all that there were."""
        if made > self.last:
            raise AlreadyDrawn(
                f"{self._memory.path} knows {self.last} rounds, and {made} were made: start a new run, "
                "because what else was drawn is not known"
            )

    def note(self, round_number: int, digest: str = "") -> None:
        """Notes a draw that is durable by now, for ever; only then may anything be made from it."""
        if round_number in self.digests:
            raise AlreadyDrawn(f"the noise of round {round_number} was drawn before, and is not drawn again")
        self._memory.note([{"run": self._run, "round": round_number, "draw": digest}])
        self.digests[round_number] = digest


def noised_sum(releases: Array, h: Array, weights: Array, noise: Array) -> Array:
    """U (k, columns), from releases û (n, k), h (n, columns) of norm 1 at most, w (n,) and σZ, all float64.

    Every column gets noise of the same scale; none may be scaled before it.
    """
    lengths = (h * h).sum(1) ** 0.5
    total: Array = (weights[:, None] * releases).T @ (h / lengths.clip(1.0)[:, None]) + noise
    return total


class Updates:
    """The folder of the sums of one run, whose name and reference are its `identity`."""

    def __init__(self, folder: Path, identity: Mapping[str, str], drawn: DrawnRounds) -> None:
        self._folder = folder
        self._identity = identity
        self._drawn = drawn

    def check(self, after: int) -> None:
        """Refuses to go on after so many rounds if one was not noted, or a sum drawn later is gone."""
        self._drawn.check(after)
        for round_number in self._drawn.digests:
            if round_number > after:
                self.get(round_number)

    def get(self, round_number: int) -> Update | None:
        """The sum of a round; None if none was drawn."""
        path, drawn = self._path(round_number), self._drawn.digests.get(round_number)
        if not path.exists():
            if drawn is not None:
                raise AlreadyDrawn(
                    f"{self._folder} lacks round {round_number}, whose noise was drawn: put its newest files "
                    "back, or start a new run, because drawing it again would undo it"
                )
            return None
        tensors, metadata = load_tensors(path, self._identity)
        try:
            columns, participants = tensors["columns"], tuple(json.loads(metadata["participants"]))
        except (KeyError, ValueError, TypeError):
            raise ModelFileError(f"{path} is damaged: start a new run") from None
        update = Update(round_number, participants, columns)
        if drawn is None:  # stored by a process that was killed before it could use it
            self._drawn.note(round_number, update.digest())
        elif drawn != update.digest():
            raise AlreadyDrawn(f"{path} is not the sum that was drawn: start a new run")
        return update

    def commit(self, update: Update) -> None:
        """Keeps the sum of a round and notes it, durably; one that was drawn is never replaced."""
        path = self._path(update.round)
        if path.exists() or update.round in self._drawn.digests:
            raise AlreadyDrawn(f"{path} was drawn before, and is not drawn again")
        if not self._folder.is_dir():
            self._folder.mkdir()
            sync_folder(self._folder.parent)
        told = {**self._identity, "participants": json.dumps(update.participants)}
        save_tensors(path, {"columns": update.columns.contiguous()}, told)
        self._drawn.note(update.round, update.digest())

    def forget(self, up_to: int) -> None:
        """Removes the sums of the first rounds, which a checkpoint holds by now."""
        for path in self._folder.glob("*.safetensors"):
            if int(path.stem) <= up_to:
                path.unlink()
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _path(self, round_number: int) -> Path:
        return self._folder / f"{round_number}.safetensors"
