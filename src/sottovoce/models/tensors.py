"""Tensors of ours on disk: the generator of a run, its checkpoints, and personal models, all safetensors.

A generator's file explains itself: plan, facts about records, the run and the reference that its coefficients
refer to. A *home* model says so in its header, and only code that keeps it at home reads it. Nothing in a
file is code, and nothing is imported by its word.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sottovoce.errors import SottovoceError, shown
from sottovoce.machine.files import write_atomically

FORMAT = "1"
HOME = "home"
"""The word in a header that no loader passes over."""
PUBLISHED_KIND, HOME_KIND, NO_KIND = "a published model", "a home model", "no model"


class ModelFileError(SottovoceError):
    """A file of tensors that is missing, damaged or about something else."""


class HomeModel(ModelFileError):
    """A model that was finished on records without noise, where only a published one may be used."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file of ours, written atomically."""
    write_atomically(path, tensor_bytes(tensors, metadata))


def check_place(path: Path, *, home: bool = False) -> None:
    """Refuses to put a client's model in the place of anything but a model of its kind, `home` or published.

    Records, ledgers and a run's generator are lost for ever; and a home model under the name of a published
    one would be taken for it.
    """
    if not path.exists():
        return
    kind = _kind(path)
    if kind != (HOME_KIND if home else PUBLISHED_KIND):
        raise ModelFileError(f"{path} exists and is {kind}: choose another file", "out")


def _kind(path: Path) -> str:
    """Returns what a file is, by its header."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            said = json.loads(file.read(length if length <= path.stat().st_size else 0))["__metadata__"]
        if HOME in said:
            return HOME_KIND
        return PUBLISHED_KIND if "origin" in said else "a run's generator" if "plan" in said else NO_KIND
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return NO_KIND


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with its header in our order: the library's differs from one writing to the next."""
    said = {"format": "sottovoce", "version": FORMAT, **metadata}
    data = save(dict(tensors), said)
    [length] = struct.unpack_from("<Q", data)
    header = {**json.loads(data[8 : 8 + length]), "__metadata__": said}
    text = json.dumps({name: header[name] for name in sorted(header)}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def load_tensors(
    path: Path, expected: Mapping[str, str] | None = None, *, home: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file of ours; a damaged or foreign one is refused.

    `expected` metadata must agree, so that the file of another run is not taken for this one's. A home model
    is refused, except where the caller keeps what it makes of it at `home`.
    """
    if not path.parent.is_dir():
        raise ModelFileError(f"{path.parent} is no folder: check the path")
    if not path.exists():
        raise ModelFileError(f"{path} is missing: the run has not come that far")
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder: give the file of one model")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            # Copied: where numbers lie in a file decides how products of them are rounded.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or not a safetensors file: {shown(error)}") from None
    if metadata.get("format") != "sottovoce" or metadata.get("version") != FORMAT:
        raise ModelFileError(
            f"{path} was not written by this version of sottovoce: use the one that wrote it"
        )
    if HOME in metadata and not home:
        raise HomeModel(
            f"{path} is a home model, made of records without noise, and stays at home: use the published one"
        )
    for key, value in (expected or {}).items():
        if metadata.get(key) != value:
            raise ModelFileError(
                f"{path} belongs to another run, its {key} differs: put the right file there"
            )
    return tensors, metadata
