"""Records before they belong to anyone: the public facts about them, a dataset, and tensors made from it.

A dataset keeps its records as they came (bytes stay bytes, a quarter of the memory of float32) and
normalizes only the ones asked for. The normalization constants are public values that travel with it;
nothing here computes a statistic of the records, because that would be an uncharged release.

`Facts` say what a record is, and are agreed on before anybody looks at one. They travel through datasets,
agreements, specifications and model files in this one object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import units
from sottovoce.data.section import MOST_TEXT, DescriptionError, Section
from sottovoce.errors import shown
from sottovoce.plan.catalog import TASKS

MOST_CLASSES = 2**16


@dataclass(frozen=True)
class Facts:
    """Shape of one record, number of classes, and one normalization constant, or one for each channel.

    `mean` and `std` are on the scale where bytes have been divided by 255. `classes` is the number of a
    model's outputs: classes, labels, or 1 for a number; `class_names` names them where names are known.
    `columns` is the text of `records.toml` where one was agreed on (`description.of` reads it): with it a
    model file says by itself how a row of a table becomes a record.

    >>> Facts((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,)).fields()["shape"]
    [1, 28, 28]
    """

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    source: Facts | None = None
    """What a record was before a public feature map described it; None where the model sees it itself."""
    task: str = "classes"
    class_names: tuple[str, ...] = ()
    columns: str = ""

    def normalize(self, x: Tensor) -> Tensor:
        """Stored values (n, channels, ...) to float32 (x − mean)/std, bytes divided by 255 first.

        Tokens (int64) stay what they are.
        """
        if x.dtype == torch.int64:
            return x
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        mean = torch.tensor(self.mean, device=x.device).view(per_channel)
        std = torch.tensor(self.std, device=x.device).view(per_channel)
        scaled = x / 255 if x.dtype == torch.uint8 else x.float()
        return (scaled - mean).div_(std)

    def fields(self) -> dict[str, Any]:
        """As plain values, for TOML, JSON and model files; what is not known is left out."""
        lists = {name: list(getattr(self, name)) for name in ("shape", "mean", "std")}
        source = {} if self.source is None else {"source": self.source.fields()}
        named = {"task": self.task, "class_names": list(self.class_names), "columns": self.columns}
        known = {name: value for name, value in named.items() if value not in ("classes", [], "")}
        return {**lists, "classes": self.classes, **known, **source}

    def metadata(self) -> dict[str, str]:
        """As texts, for the header of a model file."""
        return {name: json.dumps(value) for name, value in self.fields().items()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """From `fields()` of another party: typed and bounded, or refused."""
        top = Section("the description of records", "", fields)
        shape, classes = top.shape("shape"), top.whole("classes", MOST_CLASSES)
        mean, std = (top.numbers(name, shape[0]) for name in ("mean", "std"))
        if min(std) <= 0:
            raise top.error("std", f"is {min(std)}: give positive numbers")
        task = top.choice("task", tuple(TASKS), default="classes")
        names, columns = fields.get("class_names", []), fields.get("columns", "")
        if not isinstance(names, list) or len(names) not in (0, classes):
            raise top.error("class_names", f"are not {classes} names: ask for the file again")
        if not all(isinstance(name, str) and len(name) <= MOST_TEXT and name.isprintable() for name in names):
            raise top.error("class_names", "are not names of one line: ask for the file again")
        if not isinstance(columns, str) or len(columns) > MOST_TEXT:
            raise top.error("columns", "is not a text of a sensible length: ask for the file again")
        source = top.section("source", optional=True)
        before = None if source is None else cls.parse({**fields["source"], "source": None})
        return cls(shape, classes, mean, std, before, task, tuple(names), columns)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self:
        """From `metadata()`."""
        known = [name for name in cls.__dataclass_fields__ if name in metadata]
        try:
            return cls.parse({name: json.loads(metadata[name]) for name in known})
        except (ValueError, RecursionError) as error:
            reason = shown(repr(error))
            raise DescriptionError(f"that file does not say what its records are ({reason})") from None


@dataclass(frozen=True)
class Records:
    """Labelled examples, ready for a model: `x` float32 (n, ...), normalized; `y` int64 (n,).

    Tokens are int64; labels of which several may hold are float32 (n, labels), numbers float32 (n,).
    """

    x: Tensor
    y: Tensor
    unit: Tensor | None = None
    """Which protected unit each record belongs to, int64 (n,), where that is not the record itself."""
    identity: Tensor | None = None
    """What each record's unit is, int64 (n, 2) (`units`); None where its place says so."""
    contents: Mapping[bytes, str | Path] = field(default_factory=dict, repr=False)
    """Texts and files of pictures that records hold as digests, until an encoder describes them."""
    copied: bool = False
    """The tensors are copies made here: nobody else holds their memory, and it is never written to again."""

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def units(self) -> int:
        """How many units these records are of: what denominators count."""
        return len(self) if self.unit is None else len(torch.unique(self.unit))

    def of_units(self, places: Tensor) -> Records:
        """All records of the units at these places (int64) among those here, unit by unit in this order."""
        if self.unit is None:
            return self[places]
        dense = torch.unique(self.unit, return_inverse=True)[1]
        rank = torch.full((self.units,), -1).scatter_(0, places, torch.arange(len(places)))[dense]
        rows = rank.argsort(stable=True)[int((rank < 0).sum()) :]
        return replace(self[rows], unit=rank[rows])

    def order(self, seed: int) -> Tensor:
        """The places of all units, for `of_units`, in an order that no unit changes for the others.

        By what units are, so that replacing one exchanges at most one of the first; or by their places.
        """
        if self.identity is None:
            return torch.from_numpy(np.random.default_rng(seed).permutation(self.units))
        if self.unit is None:
            return units.order(self.identity, seed)
        dense = torch.unique(self.unit, return_inverse=True)[1]
        row = torch.zeros(self.units, dtype=torch.int64).scatter_(0, dense, torch.arange(len(self)))
        return units.order(self.identity[row], seed)

    def rows_of(self, units: int) -> int:
        """Returns how many records the first units have, in an order of `of_units`."""
        return units if self.unit is None else int((self.unit < units).sum())

    @property
    def usable(self) -> Tensor:
        """Which records can be used, bool (n,): all numbers finite, all tokens of the vocabulary."""
        flat = self.x.flatten(1)
        return (flat >= 0 if flat.dtype == torch.int64 else flat.isfinite()).all(dim=1)

    def __getitem__(self, index: Tensor | slice) -> Records:
        """The chosen records; a slice shares memory with these."""
        picked = self.copied or isinstance(index, Tensor)
        unit, identity = _at(self.unit, index), _at(self.identity, index)
        return Records(self.x[index], self.y[index], unit, identity, copied=picked)


@dataclass(frozen=True)
class Dataset:
    """N records and the public facts about them.

    `x` is uint8 or float32 of shape (N, channels, ...), `y` int64 (N,) with values below the number of
    classes; `client` is the natural owner of each record, 0 ≤ client < number of clients, or None, and
    `clients` are their names where they have some. `unit` says which person (or other protected unit) each
    record belongs to, 0 ≤ unit < number of units, if that is not the record itself; units of two clients are
    never the same. A record that cannot be used is a row of NaN (tokens: of −1).

    >>> import torch
    >>> gray = Dataset("gray", torch.full((2, 1, 4, 4), 255, dtype=torch.uint8), torch.zeros(2).long(),
    ...                Facts((1, 4, 4), classes=10, mean=(0.5,), std=(0.25,)))
    >>> gray.records(torch.tensor([1])).x.unique()
    tensor([2.])
    """

    name: str
    x: Tensor
    y: Tensor
    facts: Facts
    client: Tensor | None = None
    clients: tuple[str, ...] = ()
    unit: Tensor | None = None
    home: Path | None = None
    """The folder of the clients' files, where the ledger of all of them lies."""
    public: bool = False
    """Published by name: nobody is promised that its records stay private."""
    identity: Tensor | None = None
    """What each record's unit is, int64 (N, 2), where that decides what it is used for (`identified`)."""
    contents: Mapping[bytes, str | Path] = field(default_factory=dict, repr=False)
    """Texts and files of pictures that records hold as digests (`tables.held`)."""

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the records and their natural owners; it stays where they are."""
        digest = hashlib.blake2b(self.x.cpu().numpy().data, digest_size=16)
        digest.update(self.y.cpu().numpy().data)
        digest.update(repr((tuple(self.x.shape), self.x.dtype)).encode())
        for owner in (self.client, self.unit):
            if owner is not None:
                digest.update(owner.cpu().numpy().data)
        return digest.hexdigest()

    def to(self, device: str) -> Dataset:
        """The same dataset with its records on a device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def records(self, index: Tensor) -> Records:
        """The records at `index` (int64, any order), normalized: a copy of their size, nothing larger."""
        x = self.facts.normalize(self.x[index])
        return Records(x, self.y[index], _at(self.unit, index), _at(self.identity, index))

    def units(self, index: Tensor) -> int:
        """Returns how many protected units the records at `index` are of."""
        return len(index) if self.unit is None else len(torch.unique(self.unit[index]))

    def identified(self) -> Dataset:
        """The same dataset with the identity of each record's unit: of records as they are stored here."""
        if self.identity is not None:
            return self
        if self.unit is None:
            return replace(self, identity=units.of_records(self.x, self.y, self.client))
        return replace(self, identity=units.of_names(map(str, self.unit.tolist())))


def joined(name: str, clients: Mapping[str, Dataset]) -> Dataset:
    """The records of several clients, by name, that agree on what a record is; units stay their client's."""
    each = list(clients.values())
    xs, units, first = [one.x for one in each], [], 0
    if len({x.dtype for x in xs}) > 1:  # bytes stay bytes if all of them are
        xs = [x / 255 if x.dtype == torch.uint8 else x for x in xs]
    for one in each:
        if one.unit is not None:
            units.append(one.unit + first)
            first += int(one.unit.max()) + 1
    identities = [one.identity for one in each if one.identity is not None]
    return Dataset(
        name,
        torch.cat(xs),
        torch.cat([one.y for one in each]),
        each[0].facts,
        torch.repeat_interleave(torch.arange(len(each)), torch.tensor([len(one) for one in each])),
        tuple(clients),
        torch.cat(units) if units else None,
        identity=torch.cat(identities) if len(identities) == len(each) else None,
        contents={digest: content for one in each for digest, content in one.contents.items()},
    )


def _at(values: Tensor | None, index: Tensor | slice) -> Tensor | None:
    return None if values is None else values[index]
