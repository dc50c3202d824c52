"""Records in tiles: the same bits in every place, beside anything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.tiles import TILE, by_tiles, even, tiles


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 64, 100])
def test_tiles_hold_all_records_in_one_shape_and_nothing_else_but_zeros(
    count: int, dtype: torch.dtype
) -> None:
    x = torch.arange(1, 1 + 3 * count).to(dtype).view(count, 3)
    cut = tiles(x)
    assert len(cut) == -(-count // TILE)
    assert all(tile.shape == (TILE, 3) and tile.dtype == dtype for tile in cut)
    found = torch.cat([torch.empty(0, 3, dtype=dtype), *cut])
    assert torch.equal(found[:count], x)
    assert not found[count:].any()


@pytest.mark.parametrize("first", [0, 1, 3, 16])
def test_every_tile_begins_where_memory_is_aligned(first: int) -> None:
    rows = torch.randn(200, 5)[first:]
    assert all(tile.data_ptr() % 64 == 0 and tile.is_contiguous() for tile in tiles(rows) + tiles(rows, 1))
    assert all(tile.is_contiguous() for tile in tiles(torch.randn(5, 64).T))


def test_a_whole_and_aligned_tile_is_not_copied() -> None:
    x = torch.randn(2 * TILE, 16)
    assert [tile.data_ptr() for tile in tiles(x)] == [x.data_ptr(), x[TILE:].data_ptr()]


def wide(x: Tensor) -> Tensor:
    return torch.tanh(x @ _weights(x.shape[1], 48))


def narrow(x: Tensor) -> Tensor:
    return x @ _weights(x.shape[1], 10)


def _weights(inputs: int, outputs: int) -> Tensor:
    return torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("function", [wide, narrow])
@pytest.mark.parametrize("inputs", [5, 33, 300])
def test_neither_place_nor_company_changes_a_bit_of_a_row(function: object, inputs: int) -> None:
    x = torch.randn(300, inputs, generator=torch.Generator().manual_seed(0))
    size = TILE if even(lambda tile: [function(tile)], x[:TILE]) else 1  # type: ignore[operator]
    rows = by_tiles(function, x, size)  # type: ignore[arg-type]
    for places in (
        torch.arange(300).roll(1),
        torch.arange(300).flip(0),
        torch.arange(7),
        torch.tensor([299]),
    ):
        assert torch.equal(by_tiles(function, x[places], size), rows[places])  # type: ignore[arg-type]


def test_what_rounds_by_place_is_found_out() -> None:
    """Only the last row is rounded elsewhere, by one bit, as a loop's rest is."""

    def rest(x: Tensor) -> list[Tensor]:
        out = x * 1.1
        out[-1] = torch.nextafter(out[-1], out.new_tensor(torch.inf))
        return [x, out]

    x = torch.randn(TILE, 4)
    assert not even(rest, x)
    assert even(lambda tile: [tile, tile * 1.1], x)


def test_what_mixes_records_is_found_out() -> None:
    x = torch.randn(TILE, 4)
    assert not even(lambda tile: [tile - 1e-3 * tile.mean(0)], x)
    assert not even(lambda tile: [F.softmax(tile, dim=0)], x)


def test_what_has_no_number_for_a_record_is_even_all_the_same() -> None:
    assert even(lambda tile: [tile.log()], torch.linspace(-1, 1, TILE)[:, None])
