"""What the kernels of `sottovoce.gradients.kernels` compute, in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.gradients.gpu import Window


def group_sums(
    rows: Tensor, first: Tensor, second: Tensor, weights: Tensor, starts: Tensor, longest: int, records: int
) -> tuple[Tensor, Tensor]:
    counts = starts.diff().long()
    assert int(counts.max()) == longest
    group = torch.arange(len(counts), device=rows.device).repeat_interleave(counts)
    table = rows[:, :, :records]
    entries = weights[:, :, None] * torch.stack(
        [mine[a.long()] * mine[b.long()] for mine, a, b in zip(table, first, second, strict=True)]
    )
    sums = table.new_zeros(len(rows), len(counts), records).index_add_(1, group, entries).float()
    return sums, sums.double().square().sum(1)


def weighted_sum(values: Tensor, scales: Tensor) -> Tensor:
    kept = torch.where(scales[:, None] > 0, values, 0.0).double()
    return (kept * scales[:, None]).sum(2)


def patches(window: Window, images: Tensor) -> Tensor:
    found = F.unfold(images, window.size, window.dilation, window.padding, window.stride)
    n, _, positions = found.shape
    return found.view(n, images.shape[1], -1, positions).transpose(1, 2).reshape(n, -1, positions)


def fold(window: Window, values: Tensor, size: torch.Size) -> Tensor:
    n, channels, *sides = size
    by_channel = values.view(n, -1, channels, values.shape[2]).transpose(1, 2).reshape(values.shape)
    return F.fold(by_channel, sides, window.size, window.dilation, window.padding, window.stride)


def pool(images: Tensor, side: int) -> tuple[Tensor, Tensor]:
    out, at = F.max_pool2d(images, side, return_indices=True)
    y, x = at // images.shape[3], at % images.shape[3]
    return out, (y % side * side + x % side).to(torch.uint8)


def unpool(deltas: Tensor, which: Tensor, side: int, size: torch.Size) -> Tensor:
    y = torch.arange(deltas.shape[2], device=deltas.device)[:, None] * side + which // side
    x = torch.arange(deltas.shape[3], device=deltas.device) * side + which % side
    out = deltas.new_zeros(size)
    return out.flatten(2).scatter_(2, (y * size[3] + x).flatten(2).long(), deltas.flatten(2)).view(size)
