"""Coefficient gradients for a structured partition: each layer goes straight to its groups.

With its own partition T_r of the inputs for each row r, a linear layer's coefficient gradient is δ_r·(T_r
x); with its channels partitioned, a convolution's is that of a convolution with fewer channels. No
record's full gradient is ever written out, which makes this the cheapest path: less than an ordinary
training step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.gradients.clipping import Sums
from sottovoce.gradients.layers import Capture, Convolution, record_last
from sottovoce.models import places
from sottovoce.subspace import Share, StructuredPartition


@dataclass(frozen=True, eq=False)
class _Rows:
    """A linear weight: T x for all rows at once."""

    sums: Sums


@dataclass(frozen=True, eq=False)
class _Channels:
    """A convolution: its input channels mixed into fewer, and which of the resulting taps are groups."""

    mix: Tensor  # (clients, channels, blocks)
    taps: Tensor | None  # int64 (groups,) among blocks·taps·filters; None where all are


@dataclass(frozen=True, eq=False)
class _Signs:
    """A parameter that is not shared."""

    signs: Tensor  # (clients, size)


_Sketch = _Rows | _Channels | _Signs


class Structured:
    """Pᵀ∇_θ ℓ of every record of a chunk, for clients that each have a partition of their own."""

    def __init__(
        self, module: nn.Module, bases: tuple[StructuredPartition, ...], device: torch.device
    ) -> None:
        self._numbers = {name: place.number for name, place in places(module).items()}
        self._sketches = _sketches(bases, device)

    def __call__(self, captures: list[Capture], clients: slice) -> list[Tensor]:
        """(clients, k, records), in a part for each parameter."""
        parts: dict[int, Tensor] = {}
        for seen in captures:
            number = self._numbers[seen.layer.weight]
            parts[number] = self._weight(self._sketches[number], seen, clients)
            if seen.layer.bias is not None:
                number = self._numbers[seen.layer.bias]
                gradients = seen.layer.bias_gradients(seen.deltas)
                parts[number] = self._direct(self._sketches[number], gradients, clients)
        return [parts[number] for number in range(len(parts))]

    def _weight(self, sketch: _Sketch, seen: Capture, clients: slice) -> Tensor:
        count, layer = clients.stop - clients.start, seen.layer
        if isinstance(sketch, _Signs):
            return self._direct(sketch, layer.flat_gradients(seen.inputs, seen.deltas), clients)
        if isinstance(sketch, _Rows):
            sketched = sketch.sums(record_last(seen.inputs, count).contiguous(), clients)
            _scale_rows(sketched, record_last(seen.deltas, count).contiguous())
            return sketched
        assert isinstance(layer, Convolution)
        mixed = _mix(seen.inputs, sketch.mix[clients])
        by_tap = layer.weight_gradients(mixed, seen.deltas)
        by_block = by_tap.reshape(len(mixed), -1, mixed.shape[1], by_tap.shape[2]).transpose(1, 2)
        gradients = record_last(by_block.reshape(len(mixed), -1), count)
        return gradients if sketch.taps is None else gradients.index_select(1, sketch.taps)

    def _direct(self, sketch: _Sketch, gradients: Tensor, clients: slice) -> Tensor:
        assert isinstance(sketch, _Signs)
        signs = sketch.signs[clients]
        return record_last(gradients, len(signs)) * signs.unsqueeze(2).to(gradients.dtype)


def _mix(images: Tensor, mix: Tensor) -> Tensor:
    """(n, channels, height, width) to (n, blocks, height, width)."""
    pixels = images.permute(0, 2, 3, 1)
    mixed = torch.bmm(pixels.reshape(len(mix), -1, pixels.shape[3]), mix.to(images.dtype))
    return mixed.reshape(*pixels.shape[:3], -1).permute(0, 3, 1, 2)


def _scale_rows(sketched: Tensor, deltas: Tensor) -> None:
    """Multiply group g·rows + r in (clients, groups, records) by δ_r of (clients, rows, records)."""
    rows = deltas.shape[1]
    each, more = divmod(sketched.shape[1], rows)
    sketched[:, : each * rows].view(len(deltas), each, rows, -1).mul_(deltas.unsqueeze(1))
    sketched[:, each * rows :].mul_(deltas[:, :more])


@lru_cache(maxsize=8)
def _sketches(bases: tuple[StructuredPartition, ...], device: torch.device) -> tuple[_Sketch, ...]:
    found: list[_Sketch] = []
    start = first = 0
    for share in bases[0].shares:
        span = slice(start, start + share.size)
        groups = torch.stack([basis.index[span] for basis in bases]).to(device) - first
        weights = torch.stack([basis.weight[span] for basis in bases]).to(device)
        found.append(_sketch(share, groups, weights))
        start, first = start + share.size, first + share.groups
    return tuple(found)


def _sketch(share: Share, groups: Tensor, weights: Tensor) -> _Sketch:
    if share.role == "unshared":
        return _Signs(weights)
    if share.role == "linear":
        rows = torch.arange(share.inputs, device=groups.device).repeat(share.rows)
        return _Rows(Sums.of(groups, weights, rows, share.groups, share.inputs))
    return _channels(share, groups, weights)


def _channels(share: Share, groups: Tensor, weights: Tensor) -> _Channels:
    """The first rows have the finer partition of channels, the others the coarser, if there are two."""
    each, more = divmod(share.groups, share.rows)
    by_filter = (len(groups), *share.shape)
    levels, signed = groups.reshape(by_filter) // share.rows, weights.reshape(by_filter)
    # Rows are (taps, filters), so the first is the first filter's first tap, the last the last one's last.
    coarser = _one_hot(levels[:, -1, :, -1, -1], signed[:, -1, :, -1, -1], each)
    if not more:
        return _Channels(coarser, None)
    finer = _one_hot(levels[:, 0, :, 0, 0], signed[:, 0, :, 0, 0], each + 1)
    level, row = np.divmod(np.arange(share.groups), share.rows)
    block = np.where(row < more, level, each + 1 + level)
    taps = torch.from_numpy(block * share.rows + row).to(groups.device)
    return _Channels(torch.cat([finer, coarser], dim=2), taps)


def _one_hot(groups: Tensor, weights: Tensor, count: int) -> Tensor:
    """(clients, channels) groups to (clients, channels, count) with the weight at the group."""
    return weights.new_zeros(*groups.shape, count).scatter_(2, groups.unsqueeze(2), weights.unsqueeze(2))
