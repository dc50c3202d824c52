"""Coefficient gradients for a partition of parameters into signed groups, structured or the paper's own.

Structured, each layer goes straight to its groups: with its own partition T_r of the inputs for each row r,
a linear layer's coefficient gradient is δ_r·(T_r x); with its channels partitioned, a convolution's is that
of a convolution with fewer channels. No record's full gradient is ever written out, which makes this the
cheapest path: less than an ordinary training step.

For the paper's partition a chunk's full gradients are written out and summed by group. They lie with the
record index last, (clients, d, records), so that the signed sums run over contiguous rows. On a GPU nothing
of size d is written: every entry of a record's gradient is a product of two rows of a small table, of δ and
x for the weight of a linear layer, of itself and one for what has to be computed anyway (convolutions,
biases, norms).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.gradients import gpu
from sottovoce.gradients.clipping import Sums
from sottovoce.gradients.layers import (
    Capture,
    Convolution,
    Linear,
    Parametric,
    Plain,
    record_last,
    stack,
    written,
)
from sottovoce.models.bases import Share, SignedPartition, StructuredPartition
from sottovoce.models.parameters import places, trainable

_ALIGNED = 32
"""Records that a GPU reads at once: rows begin at multiples of it."""
_ONE = 0
"""The row of ones."""


@dataclass(frozen=True, eq=False)
class _Channels:
    """A convolution: its input channels mixed into fewer, and which of the resulting taps are groups."""

    mix: Tensor  # (clients, channels, blocks)
    taps: Tensor | None  # int64 (groups,) among blocks·taps·filters; None where all are


_Sketch = Sums | _Channels | Tensor
"""The sums T x of a linear weight's rows, or the signs (clients, size) of a parameter that is not shared."""


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
                signs, gradients = self._sketches[number], seen.layer.bias_gradients(seen.deltas)
                assert isinstance(signs, Tensor)
                parts[number] = _signed(signs[clients], gradients)
        return [parts[number] for number in range(len(parts))]

    def _weight(self, sketch: _Sketch, seen: Capture, clients: slice) -> Tensor:
        count, layer = clients.stop - clients.start, seen.layer
        if isinstance(sketch, Tensor):
            return _signed(sketch[clients], layer.flat_gradients(seen.inputs, seen.deltas))
        if isinstance(sketch, Sums):
            sketched = sketch(record_last(seen.inputs, count).contiguous(), clients)
            _scale_rows(sketched, record_last(seen.deltas, count).contiguous())
            return sketched
        assert isinstance(layer, Convolution)
        mixed = _mix(seen.inputs, sketch.mix[clients])
        by_tap = layer.weight_gradients(mixed, seen.deltas)
        by_block = by_tap.reshape(len(mixed), -1, mixed.shape[1], by_tap.shape[2]).transpose(1, 2)
        gradients = record_last(by_block.reshape(len(mixed), -1), count)
        return gradients if sketch.taps is None else gradients.index_select(1, sketch.taps)


def _signed(signs: Tensor, gradients: Tensor) -> Tensor:
    """Gradients (n, size) of a parameter that is not shared to (clients, size, records)."""
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
        groups, weights = _stacked(bases, device, span)
        found.append(_sketch(share, groups - first, weights))
        start, first = start + share.size, first + share.groups
    return tuple(found)


def _stacked(
    bases: tuple[SignedPartition, ...], device: torch.device, span: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Groups and weights (clients, parameters) of a span of the parameters."""
    groups = torch.stack([basis.index[span] for basis in bases]).to(device)
    return groups, torch.stack([basis.weight[span] for basis in bases]).to(device)


def _sketch(share: Share, groups: Tensor, weights: Tensor) -> _Sketch:
    if share.role == "unshared":
        return weights
    if share.role == "linear":
        rows = torch.arange(share.inputs, device=groups.device).repeat(share.rows)
        return Sums.of(groups, weights, rows, share.groups, share.inputs)
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


@dataclass(frozen=True, eq=False)
class Products:
    """Group j of a client is the sum of weight·row·row over its entries, from `starts[j]` on."""

    first: Tensor  # int32 (clients, entries): rows of the table, sorted by group
    second: Tensor
    weights: Tensor  # (clients, entries)
    starts: Tensor  # int32 (groups + 1,), the same for all clients
    longest: int  # entries of the largest group
    rows: dict[str, int]  # where the rows of a parameter begin
    height: int  # rows of one client's table

    def __call__(self, captures: list[Capture], clients: slice) -> tuple[Tensor, Tensor]:
        """Coefficient gradients (clients, k, records) and their ‖g‖², float64 (clients, records)."""
        count = clients.stop - clients.start
        records = len(captures[0].deltas) // count
        stride = -(-records // _ALIGNED) * _ALIGNED
        table = captures[0].deltas.new_empty(count, self.height, stride)
        table[:, _ONE] = 1.0
        for seen in captures:
            for name, values in _rows(seen):
                start, mine = self.rows[name], record_last(values, count)
                table[:, start : start + mine.shape[1], :records] = mine
        kernels = gpu.kernels(table.device.type)
        assert kernels is not None
        found: tuple[Tensor, Tensor] = kernels.group_sums(
            table,
            self.first[clients],
            self.second[clients],
            self.weights[clients],
            self.starts,
            self.longest,
            records,
        )
        return found


def _rows(seen: Capture) -> Iterable[tuple[str, Tensor]]:
    """The rows that a layer adds to the table, (n, rows), by name; the bias of a linear layer has its δ."""
    if isinstance(seen.layer, Linear):
        return (f"{seen.layer.weight}.x", seen.inputs), (seen.layer.weight, seen.deltas)
    return written(seen)


def products(module: nn.Module, bases: tuple[SignedPartition, ...], device: torch.device) -> Products | None:
    """The tables behind the clients' partitions; None where there is no kernel for them."""
    if gpu.kernels(device.type) is None:
        return None
    layers = tuple(layer for layer in stack(module) or () if not isinstance(layer, Plain))
    return _products(layers, tuple(p.shape for p in trainable(module)), tuple(places(module)), bases, device)


@lru_cache(maxsize=8)
def _products(
    layers: tuple[Parametric, ...],
    shapes: tuple[torch.Size, ...],
    names: tuple[str, ...],
    bases: tuple[SignedPartition, ...],
    device: torch.device,
) -> Products:
    sizes = dict(zip(names, shapes, strict=True))
    rows: dict[str, int] = {}
    first, second = dict[str, Tensor](), dict[str, Tensor]()
    height = 1
    for layer in layers:
        shape = sizes[layer.weight]
        rows[layer.weight] = height
        if isinstance(layer, Linear):
            outputs, inputs = shape
            rows[f"{layer.weight}.x"] = height + outputs
            first[layer.weight] = height + torch.arange(outputs).repeat_interleave(inputs)
            second[layer.weight] = height + outputs + torch.arange(inputs).repeat(outputs)
            if layer.bias is not None:
                first[layer.bias] = height + torch.arange(outputs)
            height += outputs + inputs
            continue
        first[layer.weight] = height + _written_order(shape, by_tap=isinstance(layer, Convolution))
        height += shape.numel()
        if layer.bias is not None:
            rows[layer.bias] = height
            first[layer.bias] = height + torch.arange(sizes[layer.bias].numel())
            height += sizes[layer.bias].numel()
    one = {name: torch.full_like(row, _ONE) for name, row in first.items()}
    left, right = (
        torch.cat([side[name] for name in names]).to(device) for side in (first, {**one, **second})
    )
    groups, weights = _stacked(bases, device)
    order = groups.argsort(dim=1, stable=True)
    counts = torch.bincount(groups[0], minlength=bases[0].coefficients)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    sorted_weights = weights.gather(1, order).float()
    return Products(
        left[order].int(), right[order].int(), sorted_weights, starts, int(counts.max()), rows, height
    )


class Unstructured:
    """Pᵀ∇_θ ℓ of every record of a chunk, for clients that each have a partition of their own."""

    def __init__(self, module: nn.Module, bases: tuple[SignedPartition, ...], device: torch.device) -> None:
        self._places = places(module)
        convolutions = {id(m.weight) for m in module.modules() if isinstance(m, nn.Conv2d)}
        order = tuple((p.shape, id(p) in convolutions) for p in trainable(module))
        self._sums = _sums(bases, order, device)
        self._local = threading.local()  # chunks may be worked on in threads
        self.products = products(module, bases, device)
        """The same on a GPU that has a kernel for it."""

    def __call__(self, captures: list[Capture], clients: slice) -> list[Tensor]:
        """(clients, k, records), in one part."""
        count = clients.stop - clients.start
        deltas = captures[0].deltas
        shape = (count, self._sums.size, len(deltas) // count)
        # Kept between chunks: the pages of a fresh one would cost as much as the sums.
        buffer = getattr(self._local, "buffer", None)
        if buffer is None or buffer.numel() < math.prod(shape):
            buffer = self._local.buffer = deltas.new_empty(math.prod(shape))
        table = buffer[: math.prod(shape)].view(shape)
        for seen in captures:
            self._write(table, seen)
        return [self._sums(table, clients)]

    def _write(self, table: Tensor, seen: Capture) -> None:
        layer, count = seen.layer, len(table)
        rest: Iterable[tuple[str, Tensor]] = written(seen)
        if isinstance(layer, Linear):
            place = self._places[layer.weight]
            deltas, inputs = (record_last(t, count).contiguous() for t in (seen.deltas, seen.inputs))
            out = table[:, place.span].view(count, *place.shape, -1)
            torch.mul(deltas.unsqueeze(2), inputs.unsqueeze(1), out=out)
            rest = [] if layer.bias is None else [(layer.bias, seen.deltas)]
        for name, gradients in rest:
            out = table[:, self._places[name].span]
            if count == 1:  # transposing a matrix is twice as fast as permuting a batch of one
                out[0].copy_(gradients.T)
            else:
                out.copy_(record_last(gradients, count))


@lru_cache(maxsize=8)
def _sums(
    bases: tuple[SignedPartition, ...], order: tuple[tuple[torch.Size, bool], ...], device: torch.device
) -> Sums:
    """`order` has the shape of every parameter, and whether a convolution writes it, by taps."""
    rows, start = [], 0
    for shape, by_tap in order:
        rows.append(start + _written_order(shape, by_tap=by_tap))
        start += shape.numel()
    written = torch.cat(rows).to(device)
    return Sums.of(*_stacked(bases, device), written, bases[0].coefficients, bases[0].size)


def _written_order(shape: torch.Size, *, by_tap: bool) -> Tensor:
    """Returns where entries of a parameter stand among its gradients; a convolution writes them by taps."""
    order = torch.arange(shape.numel())
    if by_tap:
        filters, channels, *window = shape
        order = order.reshape(*window, channels, filters).permute(3, 2, 0, 1).reshape(-1)
    return order
