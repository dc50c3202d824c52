"""The noised sums of a run with noise at the server, each durable before anything made from it leaves.

A sum is drawn once: a run that was killed finds the sums of the rounds since its last checkpoint here, and
uses them instead of drawing again. With the checkpoint that makes them superfluous they are removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sottovoce.central import Update
from sottovoce.files import sync_folder
from sottovoce.modelfile import ModelFileError, load_tensors, save_tensors


class Updates:
    """The folder of the sums of one run, whose name and reference are its `identity`."""

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self._folder = folder
        self._identity = identity

    def get(self, round_number: int) -> Update | None:
        """The sum of a round; None if none was drawn."""
        path = self._path(round_number)
        if not path.exists():
            return None
        tensors, metadata = load_tensors(path, self._identity)
        try:
            columns, participants = tensors["columns"], tuple(json.loads(metadata["participants"]))
        except (KeyError, ValueError, TypeError):
            raise ModelFileError(f"{path} is damaged: restore it from a backup") from None
        return Update(round_number, participants, columns)

    def commit(self, update: Update) -> None:
        """Keeps the sum of a round, on the disk when this returns; one that is there is never replaced."""
        path = self._path(update.round)
        if path.exists():
            raise ModelFileError(f"{path} is there: its round was drawn before, and is not drawn again")
        if not self._folder.is_dir():
            self._folder.mkdir()
            sync_folder(self._folder.parent)
        told = {**self._identity, "participants": json.dumps(update.participants)}
        save_tensors(path, {"columns": update.columns.contiguous()}, told)

    def forget(self, up_to: int) -> None:
        """Removes the sums of the first rounds, which a checkpoint holds by now."""
        for path in self._folder.glob("*.safetensors"):
            if int(path.stem) <= up_to:
                path.unlink()
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _path(self, round_number: int) -> Path:
        return self._folder / f"{round_number}.safetensors"
