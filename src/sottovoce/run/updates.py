"""The noised sums of a run with noise at the server, each durable and noted before anything is made from it.

A sum is drawn once: a run that was killed finds the sums of the rounds since its last checkpoint here, and
uses them instead of drawing again. With the checkpoint that makes them superfluous they are removed. A sum
that was drawn and is not here was lost with files that were restored: its round is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sottovoce.central import AlreadyDrawn, DrawnRounds, Update
from sottovoce.files import sync_folder
from sottovoce.modelfile import ModelFileError, load_tensors, save_tensors


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
