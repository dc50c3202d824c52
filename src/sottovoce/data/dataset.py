"""Records before they belong to anyone: a dataset, and the normalized tensors made from it.

A dataset keeps its records as they came (bytes stay bytes, a quarter of the memory of float32) and
normalizes only the ones asked for. The normalization constants are public values that travel with the
dataset; nothing here computes a statistic of the records, because that would be an uncharged release.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import identity
from sottovoce.data.facts import Facts


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
    """What each record's unit is, int64 (n, 2) (`identity`); None where its place says so."""
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
            return identity.order(self.identity, seed)
        dense = torch.unique(self.unit, return_inverse=True)[1]
        row = torch.zeros(self.units, dtype=torch.int64).scatter_(0, dense, torch.arange(len(self)))
        return identity.order(self.identity[row], seed)

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
        return Records(self.x[index], self.y[index], _at(self.unit, index), _at(self.identity, index), picked)


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

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the records and their natural owners; it stays where they are."""
        digest = hashlib.blake2b(self.x.cpu().numpy().data, digest_size=16)
        digest.update(self.y.cpu().numpy().data)
        digest.update(repr((tuple(self.x.shape), self.x.dtype)).encode())
        if self.client is not None:
            digest.update(self.client.cpu().numpy().data)
        if self.unit is not None:
            digest.update(self.unit.cpu().numpy().data)
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
            return replace(self, identity=identity.of_records(self.x, self.y, self.client))
        return replace(self, identity=identity.of_names(map(str, self.unit.tolist())))


def _at(values: Tensor | None, index: Tensor | slice) -> Tensor | None:
    return None if values is None else values[index]
