"""Triton kernels behind `gpu`: each reads its input once, where torch's operations would copy it first.

Group sums are those of `Sums`, with every entry a product of two rows: a record's gradient of a linear layer
is δ ⊗ x, and is never written out. Float32 goes in, squares and weighted sums are float64, and the order of
every sum is fixed.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from sottovoce.gradients.gpu import Window


def group_sums(
    rows: Tensor, first: Tensor, second: Tensor, weights: Tensor, starts: Tensor, longest: int, records: int
) -> tuple[Tensor, Tensor]:
    """Σ weight·row·row over the entries of each group, (clients, groups, records), and Σ g² in float64.

    `rows` is (clients, height, stride ≥ records); `first`, `second` and `weights` are (clients, entries), the
    entries sorted by group; `starts` (groups + 1,) says where each group begins.
    """
    clients, height, stride = rows.shape
    groups, entries = len(starts) - 1, first.shape[1]
    blocks = triton.cdiv(groups, 64)
    sums = torch.empty(clients, groups, stride, device=rows.device)
    squares = torch.empty(clients, blocks, records, device=rows.device, dtype=torch.float64)
    grid = (blocks, triton.cdiv(records, 32), clients)
    sizes = (entries, height, groups, blocks, records, stride)
    _group_sums[grid](
        rows, first, second, weights, starts, sums, squares, *sizes, LONGEST=longest, GROUPS=64, RECORDS=32
    )
    return sums[:, :, :records], squares.sum(1)


def weighted_sum(values: Tensor, scales: Tensor) -> Tensor:
    """Σ scale·value over the records of (clients, size, records) with a scale above zero."""
    clients, size, records = values.shape
    total = torch.empty(clients, size, device=values.device, dtype=torch.float64)
    grid = (triton.cdiv(size, 64), clients)
    _weighted_sum[grid](
        values, scales.contiguous(), total, size, records, *values.stride(), SIZE=64, RECORDS=32
    )
    return total


def patches(window: Window, images: Tensor) -> Tensor:
    """(n, channels, height, width) to (n, taps·channels, positions)."""
    n, channels, height, width = images.shape
    down, across = window.places(height, width)
    rows = window.size[0] * window.size[1] * channels
    out = torch.empty(n, rows, down * across, device=images.device, dtype=images.dtype)
    tile = (16, 128)
    blocks = triton.cdiv(rows, tile[0])
    grid = (n * blocks, triton.cdiv(down * across, tile[1]))
    _patches[grid](
        images,
        out,
        *images.stride(),
        BLOCKS=blocks,
        CHANNELS=channels,
        HEIGHT=height,
        WIDTH=width,
        ROWS=rows,
        POSITIONS=down * across,
        ACROSS=across,
        **_steps(window),
        TILE=tile[0],
        LONG=tile[1],
    )
    return out


def fold(window: Window, values: Tensor, size: torch.Size) -> Tensor:
    """The transpose of `patches`: (n, taps·channels, positions) to (n, channels, height, width)."""
    n, channels, height, width = size
    down, across = window.places(height, width)
    values = values.contiguous()
    out = torch.empty(size, device=values.device, dtype=values.dtype)
    tile = (16, 128)
    blocks = triton.cdiv(channels, tile[0])
    grid = (n * blocks, triton.cdiv(height * width, tile[1]))
    _fold[grid](
        values,
        out,
        BLOCKS=blocks,
        CHANNELS=channels,
        HEIGHT=height,
        WIDTH=width,
        TAPS=window.size[0] * window.size[1],
        BELOW=down,
        ACROSS=across,
        **_steps(window),
        TILE=tile[0],
        LONG=tile[1],
    )
    return out


def _steps(window: Window) -> dict[str, int]:
    """Returns how a window goes over an image, as a kernel's constants."""
    return {
        "SIZE": window.size[1],
        "DOWN": window.stride[0],
        "RIGHT": window.stride[1],
        "TOP": window.padding[0],
        "LEFT": window.padding[1],
        "APART": window.dilation[0],
        "ASIDE": window.dilation[1],
    }


def pool(images: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The largest of each window of side × side, and which of the window it is, as a byte."""
    images = images.contiguous()
    height, width = images.shape[2] // side, images.shape[3] // side
    out = images.new_empty(*images.shape[:2], height, width)
    which = torch.empty_like(out, dtype=torch.uint8)
    sizes = {"ACROSS": width, "WIDTH": images.shape[3], "OUT": height * width}
    whole = images.shape[2] * images.shape[3]
    grid = (triton.cdiv(out.numel(), 1024),)
    _pool[grid](images, out, which, out.numel(), **sizes, IN=whole, SIDE=side, LONG=1024)
    return out, which


def unpool(deltas: Tensor, which: Tensor, side: int, size: torch.Size) -> Tensor:
    """The gradient of `pool`: δ at the place of the largest, 0 elsewhere."""
    out = torch.empty(size, device=deltas.device, dtype=deltas.dtype)
    height, width = deltas.shape[2:]
    sizes = {"BELOW": height, "ACROSS": width, "WIDTH": size[3], "IN": size[2] * size[3]}
    grid = (triton.cdiv(out.numel(), 1024),)
    _unpool[grid](deltas.contiguous(), which, out, out.numel(), **sizes, SIDE=side, LONG=1024)
    return out


@triton.jit
def _group_sums(
    rows, first, second, weights, starts, sums, squares, entries, height, groups, blocks, records, stride,
    LONGEST: tl.constexpr, GROUPS: tl.constexpr, RECORDS: tl.constexpr,
):  # fmt: skip
    block, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    group = block * GROUPS + tl.arange(0, GROUPS)
    record = part * RECORDS + tl.arange(0, RECORDS)
    inside, known = group < groups, record < records
    start = tl.load(starts + group, mask=inside, other=0)
    stop = tl.load(starts + group + 1, mask=inside, other=0)
    table = rows + client * height * stride
    total = tl.zeros((GROUPS, RECORDS), tl.float32)
    for step in range(LONGEST):
        entry = start + step
        live = entry < stop
        place = client * entries + entry
        both = live[:, None] & known[None, :]
        a = tl.load(first + place, mask=live, other=0)
        b = tl.load(second + place, mask=live, other=0)
        weight = tl.load(weights + place, mask=live, other=0.0)
        x = tl.load(table + a[:, None] * stride + record[None, :], mask=both, other=0.0)
        y = tl.load(table + b[:, None] * stride + record[None, :], mask=both, other=0.0)
        total += weight[:, None] * (x * y)
    out = sums + client * groups * stride + group[:, None] * stride + record[None, :]
    tl.store(out, total, mask=inside[:, None] & known[None, :])
    wide = total.to(tl.float64)
    tl.store(squares + (client * blocks + block) * records + record, tl.sum(wide * wide, axis=0), mask=known)


@triton.jit
def _weighted_sum(
    values, scales, out, size, records, by_client, by_size, by_record,
    SIZE: tl.constexpr, RECORDS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    place = (tl.program_id(0) * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    total = tl.zeros((SIZE,), tl.float64)
    for start in range(0, records, RECORDS):
        record = (start + tl.arange(0, RECORDS)).to(tl.int64)
        scale = tl.load(scales + client * records + record, mask=record < records, other=0.0)
        live = (place < size)[:, None] & (scale > 0)[None, :]
        at = values + client * by_client + place[:, None] * by_size + record[None, :] * by_record
        value = tl.load(at, mask=live, other=0.0)
        total += tl.sum(value.to(tl.float64) * scale[None, :], axis=1)
    tl.store(out + client * size + place, total, mask=place < size)


@triton.jit
def _patches(
    images, out, by_image, by_channel, by_row, by_column,
    BLOCKS: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, POSITIONS: tl.constexpr, ACROSS: tl.constexpr, SIZE: tl.constexpr,
    DOWN: tl.constexpr, RIGHT: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    APART: tl.constexpr, ASIDE: tl.constexpr, TILE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    image = (tl.program_id(0) // BLOCKS).to(tl.int64)
    row = (tl.program_id(0) % BLOCKS) * TILE + tl.arange(0, TILE)
    position = tl.program_id(1) * LONG + tl.arange(0, LONG)
    tap, channel = row // CHANNELS, row % CHANNELS
    y = (position // ACROSS * DOWN - TOP)[None, :] + (tap // SIZE * APART)[:, None]
    x = (position % ACROSS * RIGHT - LEFT)[None, :] + (tap % SIZE * ASIDE)[:, None]
    wanted = (row < ROWS)[:, None] & (position < POSITIONS)[None, :]
    inside = wanted & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    at = images + image * by_image + channel[:, None] * by_channel + y * by_row + x * by_column
    value = tl.load(at, mask=inside, other=0.0)
    tl.store(
        out + image * ROWS * POSITIONS + row[:, None] * POSITIONS + position[None, :], value, mask=wanted
    )


@triton.jit
def _fold(
    values, out,
    BLOCKS: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TAPS: tl.constexpr, BELOW: tl.constexpr, ACROSS: tl.constexpr, SIZE: tl.constexpr,
    DOWN: tl.constexpr, RIGHT: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    APART: tl.constexpr, ASIDE: tl.constexpr, TILE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    image = (tl.program_id(0) // BLOCKS).to(tl.int64)
    channel = (tl.program_id(0) % BLOCKS) * TILE + tl.arange(0, TILE)
    place = tl.program_id(1) * LONG + tl.arange(0, LONG)
    wanted = (channel < CHANNELS)[:, None] & (place < HEIGHT * WIDTH)[None, :]
    total = tl.zeros((TILE, LONG), out.dtype.element_ty)
    for tap in range(TAPS):
        y = place // WIDTH + TOP - tap // SIZE * APART
        x = place % WIDTH + LEFT - tap % SIZE * ASIDE
        here = (y >= 0) & (y % DOWN == 0) & (y // DOWN < BELOW)
        here = here & (x >= 0) & (x % RIGHT == 0) & (x // RIGHT < ACROSS)
        row = (image * TAPS + tap) * CHANNELS + channel
        at = values + row[:, None] * (BELOW * ACROSS) + (y // DOWN * ACROSS + x // RIGHT)[None, :]
        total += tl.load(at, mask=wanted & here[None, :], other=0.0)
    at = out + (image * CHANNELS + channel)[:, None] * (HEIGHT * WIDTH) + place[None, :]
    tl.store(at, total, mask=wanted)


@triton.jit
def _pool(
    images, out, which, count,
    ACROSS: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, SIDE: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * LONG + tl.arange(0, LONG)
    known = place < count
    at = images + place // OUT * IN + place % OUT // ACROSS * (SIDE * WIDTH) + place % ACROSS * SIDE
    largest = tl.load(at, mask=known, other=0.0)
    found = tl.zeros((LONG,), tl.uint8)
    for step in tl.static_range(1, SIDE * SIDE):
        value = tl.load(at + (step // SIDE) * WIDTH + step % SIDE, mask=known, other=0.0)
        better = (value > largest) | (value != value)
        largest = tl.where(better, value, largest)
        found = tl.where(better, tl.full((LONG,), step, tl.uint8), found)
    tl.store(out + place, largest, mask=known)
    tl.store(which + place, found, mask=known)


@triton.jit
def _unpool(
    deltas, which, out, count,
    BELOW: tl.constexpr, ACROSS: tl.constexpr, WIDTH: tl.constexpr, IN: tl.constexpr, SIDE: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * LONG + tl.arange(0, LONG)
    y, x = place % IN // WIDTH, place % WIDTH
    inside = (place < count) & (y // SIDE < BELOW) & (x // SIDE < ACROSS)
    window = place // IN * (BELOW * ACROSS) + y // SIDE * ACROSS + x // SIDE
    chosen = tl.load(which + window, mask=inside, other=255).to(tl.int32)
    delta = tl.load(deltas + window, mask=inside, other=0.0)
    mine = (y % SIDE) * SIDE + x % SIDE
    tl.store(out + place, tl.where(inside & (chosen == mine), delta, 0.0), mask=place < count)
