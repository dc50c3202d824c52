"""What a unit is, apart from its place in a file: the order in which a client's units are drawn follows it.

A client's file may be sorted by any column, and sorted again when one record is replaced. So the units that
train, that are held out, that are behind a context or a round are the first in the order of a hash, keyed
with the public seed, of what each unit is: replacing one unit exchanges at most one in each such set. A unit
is known by its name, a record that is a unit of its own by its content; equal records are interchangeable,
and counted: the second of them is another unit than the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.machine.determinism import derived_seed

_PART = 2**22
"""Numbers of records that are looked at together."""


def of_names(names: Iterable[str]) -> Tensor:
    """Identities (n, 2), int64, of units that have names."""
    return _hashes(name.encode(errors="surrogatepass") for name in names)


def of_records(x: Tensor, y: Tensor, client: Tensor | None = None) -> Tensor:
    """Identities (n, 2), int64, of records as they are stored; bytes count as numbers from 0 to 1.

    `client` (n,) says whose each record is, where they are of several: others' records count nothing.

    >>> x, y = torch.tensor([[0, 255], [1, 0], [0, 255]], dtype=torch.uint8), torch.tensor([1, 1, 1])
    >>> len(of_records(x, y).unique(dim=0)), torch.equal(of_records(x, y)[:2], of_records(x / 255, y)[:2])
    (3, True)
    """
    none = torch.zeros(len(x), dtype=torch.int64)
    return _counted(contents(x, y), none if client is None else client)


def contents(x: Tensor, y: Tensor) -> Tensor:
    """The same, (n, 2), of what records hold alone: those of equal records are equal."""
    rows = max(1, _PART // max(1, x[0].numel())) if len(x) else 1
    parts = [
        _rows(x[start : start + rows].cpu(), y[start : start + rows].cpu())
        for start in range(0, len(x), rows)
    ]
    return torch.cat([*parts, torch.zeros(0, 2, dtype=torch.int64)])


def order(identity: Tensor, seed: int) -> Tensor:
    """All places of `identity` (n, 2), by a hash that is keyed with a public seed: int64 (n,).

    Identities are uniform already; what orders them is their first half, mixed with the seed one to one (the
    finalizer of SplitMix64: Steele, Lea and Flood, 2014), and then the other half. Only equal ones are ties.
    """
    first, second = identity.cpu().numpy().view(np.uint64).T
    mixed = first ^ np.uint64(derived_seed(seed, "order"))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy(np.lexsort((second, mixed ^ (mixed >> np.uint64(31)))))


def _rows(x: Tensor, y: Tensor) -> Tensor:
    """Identities of a few records."""
    if x.dtype == torch.uint8:
        x = x / 255
    content = np.concatenate([_bytes(x), _bytes(y)], axis=1)
    width, data = content.shape[1], content.tobytes()
    return _hashes(data[start : start + width] for start in range(0, len(data), width))


def _counted(identity: Tensor, client: Tensor) -> Tensor:
    """Identities in which the first, second, third of a client's equal records differ: they are drawn apart.

    Replacing a record takes the last of those that equal it, and adds one to those that equal the new one.
    """
    found, owner = identity.numpy(), client.cpu().numpy()
    by = np.lexsort((*found.T, owner))
    again = np.zeros(len(by), bool)
    again[1:] = (found[by[1:]] == found[by[:-1]]).all(axis=1) & (owner[by[1:]] == owner[by[:-1]])
    places = np.arange(len(by))
    number = places - np.maximum.accumulate(np.where(again, 0, places))
    repeated = by[again]
    if len(repeated):
        pairs = zip(found[repeated], number[again].tolist(), strict=True)
        found[repeated] = _hashes(one.tobytes() + place.to_bytes(8, "big") for one, place in pairs).numpy()
    return identity


def _bytes(values: Tensor) -> npt.NDArray[Any]:
    flat = values.reshape(len(values), -1).contiguous().numpy()
    return flat.view(np.uint8).reshape(len(values), -1)


def _hashes(contents: Iterable[bytes]) -> Tensor:
    digests = b"".join([hashlib.blake2b(content, digest_size=16).digest() for content in contents])
    return torch.from_numpy(np.frombuffer(bytearray(digests), np.int64).reshape(-1, 2))
