"""Public encoders: fixed networks that the world has trained, from a raw picture or text to numbers.

An encoder is a folder of files, told by `encoder.toml`: what it takes, how that is prepared, how its weights
are run, and the SHA-256 of each file. Its digest covers all that decides its numbers and nothing else, so two
that share one are the same, whatever they are called and wherever they come from. It is data, never code, and
only what lies in this machine's cache, put there by its owner, is opened.

Each record is encoded in a tile of one fixed shape: on a CPU alone, on a GPU beside others in a tile that is
always full. What lies beside a record therefore changes no digit of its numbers, before any rounding.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from sottovoce.data.section import DescriptionError, Section, document
from sottovoce.data.tables.schema import written
from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import batched, side_by_side
from sottovoce.plan.catalog import names_encoder

IMAGE, TEXT = "image", "text"
KINDS = (IMAGE, TEXT)
NETWORKS = ("efficientnet-lite0", "bert", "onnx", "transformers")
"""How weights are run: by a network of ours, by ONNX Runtime, or by transformers."""
MOST_NUMBERS, MOST_SIDE, MOST_TOKENS, MOST_FILES = 2**14, 4096, 2**13, 100
DIGEST = 32
"""Letters of a digest: 128 bits."""
NAME, FORMAT = "encoder.toml", 1
WEIGHTS, TOKENIZER, CONFIG, GRAPH = "model.safetensors", "tokenizer.json", "config.json", "model.onnx"
"""What files of an encoder are called."""
_NAMED = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_VERSION = re.compile(r"[0-9A-Za-z._-]{1,20}")
_TILE = 64
"""Records of a tile on a GPU."""
_PART = 256
"""Records that are prepared together."""

Progress = Callable[[int, int], None]
Prepared = tuple[Tensor, ...]
"""A record as its network takes it, of a shape that follows from the record alone."""


class EncoderError(SottovoceError):
    """An encoder that cannot be opened, or is not the one that was meant."""


def sha256(content: bytes) -> str:
    """The SHA-256 of a file's content, in hex."""
    return hashlib.sha256(content).hexdigest()


def check_name(name: str) -> str:
    """The name of an encoder, or one line that says what names look like."""
    if not names_encoder(name) or name == "own" or "+" in name:
        raise EncoderError(
            f"'{name}' cannot name an encoder: take small letters, digits and . _ -, and no name of a map"
        )
    return name


@dataclass(frozen=True)
class Preparation:
    """What becomes of a raw record first: a square picture of `side` pixels, or at most so many `tokens`."""

    side: int = 0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    """Of pixels from 0 to 1: one number, or one for each color."""
    tokens: int = 0
    pooling: str = "mean"
    """What stands for a text: the mean of its tokens' vectors, or the first of them."""

    def fields(self, kind: str) -> dict[str, object]:
        known: dict[str, object] = asdict(self)
        return {
            key: known[key] for key in (("side", "mean", "std") if kind == IMAGE else ("tokens", "pooling"))
        }

    @classmethod
    def parse(cls, section: Section, kind: str) -> Self:
        if kind == IMAGE:
            found = cls(
                section.whole("side", MOST_SIDE), section.numbers("mean", 3), section.numbers("std", 3)
            )
            if min(found.std) <= 0:
                raise section.error("std", "is not positive: give positive numbers")
        else:
            pooling = section.choice("pooling", ("mean", "first"), default="mean")
            found = cls(tokens=section.whole("tokens", MOST_TOKENS), pooling=pooling)
        section.end()
        return found


@dataclass(frozen=True)
class Reference:
    """An encoder as an agreement, a model or a result names it.

    >>> Reference.parse("minilm 1 384 " + "0" * 32).size
    384
    """

    name: str
    version: str
    size: int
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.size} {self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From another party: typed and bounded, or refused."""
        name, version, size, digest = [*text.split(" "), *[""] * 4][:4]
        fits = _NAMED.fullmatch(name) and _VERSION.fullmatch(version) and re.fullmatch("[0-9a-f]{32}", digest)
        if not fits or not re.fullmatch(r"[1-9][0-9]{0,4}", size) or int(size) > MOST_NUMBERS:
            raise EncoderError("that does not say which encoder is meant: ask for the file again")
        return cls(name, version, int(size), digest)


@dataclass(frozen=True)
class Description:
    """What `encoder.toml` says."""

    name: str
    kind: str
    size: int
    network: str
    preparation: Preparation
    files: Mapping[str, str]
    """SHA-256 of each file, by name."""
    version: str = "1"
    licence: str = "not stated"
    origin: str = "not stated"
    trained_on: str = "not stated"
    folder: Path = field(default=Path(), compare=False)

    @property
    def digest(self) -> str:
        """A fingerprint of all that decides its numbers; names, versions and licences do not."""
        decides = {
            "format": FORMAT,
            "kind": self.kind,
            "size": self.size,
            "network": self.network,
            "preparation": self.preparation.fields(self.kind),
            "files": dict(self.files),
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:DIGEST]

    @property
    def reference(self) -> Reference:
        return Reference(self.name, self.version, self.size, self.digest)

    def to_toml(self) -> str:
        """The file; `parse` of it gives the same back."""
        said = ("name", "version", "kind", "size", "network", "licence", "origin", "trained_on")
        lines = [f"format = {FORMAT}", *(f"{key} = {written(getattr(self, key))}" for key in said)]
        for table, values in (("preparation", self.preparation.fields(self.kind)), ("files", self.files)):
            lines += [
                "",
                f"[{table}]",
                *(f"{written(key)} = {written(value)}" for key, value in values.items()),
            ]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str, where: str, folder: Path = Path()) -> Self:
        """From the text of such a file: typed and bounded."""
        top = document(text, where)
        if top.whole("format", 10**6) != FORMAT:
            raise DescriptionError(f"{where} was written by a later version: update sottovoce")
        kind, files = top.choice("kind", KINDS), top.section("files")
        held = {name: files.text(name) for name in files.keys[: MOST_FILES + 1]}
        for name, digest in held.items():
            if not re.fullmatch(r"\w[\w.-]{0,99}", name) or not re.fullmatch("[0-9a-f]{64}", digest):
                raise files.error(name, "is not a file's name and its SHA-256: add the encoder again")
        files.end()
        version = top.text("version")
        if not _VERSION.fullmatch(version):
            raise top.error("version", "is not a version: take letters, digits and . _ -")
        found = cls(
            check_name(top.text("name")),
            kind,
            top.whole("size", MOST_NUMBERS),
            top.choice("network", NETWORKS),
            Preparation.parse(top.section("preparation"), kind),
            held,
            version,
            top.text("licence"),
            top.text("origin"),
            top.text("trained_on"),
            folder,
        )
        top.end()
        return found


class Network(ABC):
    """What turns raw records into numbers: `prepare` one, `run` a tile of them."""

    def __init__(self, described: Description, device: str) -> None:
        self.described, self.device = described, device

    @abstractmethod
    def prepare(self, item: Any) -> Prepared | None:
        """A raw record as the network takes it; None where it cannot be read."""

    @abstractmethod
    def run(self, *tile: Tensor) -> Tensor:
        """Prepared records (b, …) to numbers (b, size)."""


class Encoder:
    """An open encoder: raw records to rows of `size` numbers, each record alone."""

    def __init__(self, network: Network, tile: int = 0) -> None:
        self._network = network
        self.described, self.device = network.described, network.device
        self.tile = tile or self._largest()

    @property
    def size(self) -> int:
        return self.described.size

    def __call__(self, items: Sequence[Any], progress: Progress = lambda done, of: None) -> Tensor:
        """Numbers (n, size), float32; a row of NaN for a record that cannot be read.

        Items are pictures (C, H, W), values in [0, 1] or bytes, or the contents of their files; or texts, or
        their tokens (L,).
        """
        out = torch.full((len(items), self.size), torch.nan)
        done = 0
        for part in batched(enumerate(items), max(_PART, 4 * self.tile) if self.tile > 1 else 32):
            places = [place for place, _ in part]
            prepared = side_by_side(self._network.prepare, [item for _, item in part])
            self._encode([(place, one) for place, one in zip(places, prepared, strict=True) if one], out)
            done += len(part)
            progress(done, len(items))
        return out

    def _encode(self, prepared: Sequence[tuple[int, Prepared]], out: Tensor) -> None:
        shapes: dict[object, list[tuple[int, Prepared]]] = {}
        for place, one in prepared:
            shapes.setdefault(tuple(part.shape for part in one), []).append((place, one))
        tiles = [tile for alike in shapes.values() for tile in batched(alike, self.tile)]
        run = side_by_side(self._rows, tiles) if self.device == "cpu" else map(self._rows, tiles)
        for tile, rows in zip(tiles, run, strict=True):
            out[[place for place, _ in tile]] = rows

    @torch.no_grad()
    def _rows(self, tile: Sequence[tuple[int, Prepared]]) -> Tensor:
        """The rows of at most a tile's records, which zeros fill up."""
        columns = zip(*(one for _, one in tile), strict=True)
        stacked = [torch.stack(column) for column in columns]
        full = [torch.cat([part, part.new_zeros(self.tile - len(part), *part.shape[1:])]) for part in stacked]
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            rows = self._network.run(*(part.to(self.device) for part in full))
        if rows.shape != (self.tile, self.size):
            raise EncoderError(
                f"{self.described.name} gave numbers of shape {tuple(rows.shape)}, and {self.size} for each "
                "record were agreed on: add it again"
            )
        return rows[: len(tile)].float().cpu()

    def _largest(self) -> int:
        """The records of a tile: one, or on a GPU more, where made-up ones come out alike in any place."""
        if self.device == "cpu":
            return 1
        self.tile = _TILE
        return _TILE if self._alike() else 1

    def _alike(self) -> bool:
        """Returns whether public, made-up records are encoded alike, bit for bit, in two orders and alone."""
        made = _made_up(self.described, self.tile + 3)
        first, second = self(made), self(made[::-1]).flip(0)
        return torch.equal(first, second) and torch.equal(first[:1], self(made[:1]))


def _made_up(described: Description, count: int) -> list[Any]:
    rng = torch.Generator().manual_seed(0)
    if described.kind == IMAGE:
        return list(torch.rand(count, 3, 32, 32, generator=rng))
    return ["word " * (1 + place % 40) for place in range(count)]
