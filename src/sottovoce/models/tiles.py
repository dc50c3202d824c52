"""Tiles: records are computed in blocks of one shape, so that neither place nor company decides about one.

A product of matrices rounds a row by where it lies and by how many there are, differently for each shape,
library and CPU; at weights that somebody chose, such a rounding decides about a whole gradient. So whatever
is computed of records before a release is computed in tiles of `TILE` of them, the last one filled up with
zeros. Whether a function may see tiles is tried on this machine with public records: each must get the same
bits in every place, beside itself and beside others (`even`). A function that fails sees one record at a
time: tiles of one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sottovoce.machine.determinism import one_core, side_by_side

TILE = 32
"""Records of a tile: a multiple of what a CPU's vectors hold, so that no operation has a rest."""
WHOLE = 16
"""Columns of a product, forward and backward: with fewer a CPU rounds places differently, and records would
have to be computed one by one."""
_ALIGNED = 64
"""Bytes: rows of an array begin anywhere, and where they do may decide how a library reads them."""
_TRIED = {0: 1.0, 1: 1e-40, 14: 30.0, TILE - 1: 1.0}
"""The records that are tried, by their places, and of what size their numbers are."""

log = logging.getLogger("sottovoce.tiles")

Rows = Callable[[Tensor], Tensor]
"""From records (n, …) to a row for each, (n, …)."""


def tiles(x: Tensor, size: int = TILE) -> list[Tensor]:
    """Records (m, …) in tiles of exactly `size`, the last one filled up with zeros.

    >>> [tile.tolist() for tile in tiles(torch.tensor([1.0, 2.0, 3.0]), 2)]
    [[1.0, 2.0], [3.0, 0.0]]
    """
    return [_filled(part, size) for part in torch.split(x, size)] if len(x) else []


def by_tiles(function: Rows, x: Tensor, size: int = TILE) -> Tensor:
    """The rows that `function` gives to records x (m, …), computed tile by tile and side by side.

    >>> by_tiles(lambda tile: 2 * tile, torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [2.0, 4.0, 6.0]
    """
    if not len(x):
        return function(_filled(x, size))[:0]
    share = side_by_side if x.device.type == "cpu" else map
    return torch.cat(list(share(function, tiles(x, size))))[: len(x)]


def whole(x: Tensor, size: int = TILE) -> Tensor:
    """Records (m, …) and zeros behind them, in whole tiles: x itself where nothing is missing.

    >>> whole(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 2.0, 3.0, 0.0]
    """
    return _filled(x, len(x) + -len(x) % size)


def tile_of(owner: object, use: Hashable, function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> int:
    """How many records like x (m, …) a use of its owner may see at once: `TILE`, or one; found out once."""
    known = _known.setdefault(owner, {})
    key = (use, x.shape[1:], x.dtype, str(x.device))
    if key not in known:
        known[key] = TILE if even(function, drawn(x)) else 1
        if known[key] == 1:
            log.warning("%s rounds by place on this machine: one record at a time", type(owner).__name__)
    return known[key]


_known: WeakKeyDictionary[object, dict[Hashable, int]] = WeakKeyDictionary()


def drawn(x: Tensor) -> Tensor:
    """`TILE` public records of the shape and type of x (m, …)."""
    generator = torch.Generator().manual_seed(0)
    if x.dtype == torch.int64:
        return torch.randint(2, (TILE, *x.shape[1:]), generator=generator).to(x.device)
    records = torch.randn(TILE, *x.shape[1:], generator=generator)
    for place, scale in _TRIED.items():
        records[place] *= scale
    return records.to(x)


def drawn_parameters(theta: Tensor) -> Tensor:
    """Public parameters like θ (d,)."""
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(theta.shape, generator=generator).to(theta)


@one_core()
def even(function: Callable[[Tensor], Sequence[Tensor]], records: Tensor) -> bool:
    """Returns whether each of `TILE` public records gets the same bits in every place of a tile.

    `function` gives any number of tensors with a row for each record. In which order it sums does not depend
    on numbers, so those of a few records, drawn at random, tell for all.
    """
    together = function(records)
    for place in _TRIED:
        alike = function(records[place : place + 1].repeat_interleave(len(records), 0))
        if not all(_same(rows, of_all[place]) for rows, of_all in zip(alike, together, strict=True)):
            return False
    return True


def _same(rows: Tensor, row: Tensor) -> bool:
    return bool(((rows == row) | (rows.isnan() & row.isnan())).all())


def _filled(part: Tensor, count: int) -> Tensor:
    if len(part) == count and part.is_contiguous() and part.data_ptr() % _ALIGNED == 0:
        return part
    tile = part.new_zeros(count, *part.shape[1:])
    tile[: len(part)] = part
    return tile
