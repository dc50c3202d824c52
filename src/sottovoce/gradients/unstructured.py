"""Coefficient gradients for the paper's partition: a chunk's full gradients are written out and summed by
group.

Gradients lie with the record index last, (clients, d, records), so that the signed sums run over
contiguous rows.

Coefficient gradients for the paper's partition on a GPU: sums of products, nothing of size d is written.

Every entry of a record's gradient is a product of two rows of a small table: of δ and x for the weight of a
linear layer, of itself and one for what has to be computed anyway (convolutions, biases, norms).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from sottovoce.gradients import gpu
from sottovoce.gradients.clipping import Sums
from sottovoce.gradients.layers import Capture, Convolution, Linear, Parametric, Plain, record_last, stack
from sottovoce.models import places, trainable
from sottovoce.subspace import SignedPartition

_ALIGNED = 32
"""Records that a GPU reads at once: rows begin at multiples of it."""
_ONE = 0
"""The row of ones."""


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
            for name, values in _written(seen):
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


def _written(seen: Capture) -> Iterator[tuple[str, Tensor]]:
    """The rows that a layer adds to the table, (n, rows), by name; the bias of a linear layer has its δ."""
    layer = seen.layer
    if isinstance(layer, Linear):
        yield f"{layer.weight}.x", seen.inputs
        yield layer.weight, seen.deltas
        return
    if isinstance(layer, Convolution):
        yield layer.weight, layer.weight_gradients(seen.inputs, seen.deltas).flatten(1)
    else:
        yield layer.weight, layer.flat_gradients(seen.inputs, seen.deltas)
    if layer.bias is not None:
        yield layer.bias, layer.bias_gradients(seen.deltas)


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
        own = torch.arange(shape.numel())
        if isinstance(layer, Convolution):  # written by taps
            filters, channels, *window = shape
            own = own.reshape(*window, channels, filters).permute(3, 2, 0, 1).reshape(-1)
        first[layer.weight] = height + own
        height += shape.numel()
        if layer.bias is not None:
            rows[layer.bias] = height
            first[layer.bias] = height + torch.arange(sizes[layer.bias].numel())
            height += sizes[layer.bias].numel()
    one = {name: torch.full_like(row, _ONE) for name, row in first.items()}
    left, right = (
        torch.cat([side[name] for name in names]).to(device) for side in (first, {**one, **second})
    )
    groups = torch.stack([basis.index for basis in bases]).to(device)
    weights = torch.stack([basis.weight for basis in bases]).to(device)
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
        written = buffer[: math.prod(shape)].view(shape)
        for seen in captures:
            self._write(written, seen)
        return [self._sums(written, clients)]

    def _write(self, written: Tensor, seen: Capture) -> None:
        layer, place, count = seen.layer, self._places[seen.layer.weight], len(written)
        out = written[:, place.span]
        if isinstance(layer, Linear):
            deltas, inputs = (record_last(t, count).contiguous() for t in (seen.deltas, seen.inputs))
            torch.mul(deltas.unsqueeze(2), inputs.unsqueeze(1), out=out.view(count, *place.shape, -1))
        elif isinstance(layer, Convolution):
            gradients = layer.weight_gradients(seen.inputs, seen.deltas).flatten(1)
            if count == 1:  # transposing a matrix is twice as fast as permuting a batch of one
                out[0].copy_(gradients.T)
            else:
                out.copy_(record_last(gradients, count))
        else:
            out.copy_(record_last(layer.flat_gradients(seen.inputs, seen.deltas), count))
        if layer.bias is not None:
            bias = written[:, self._places[layer.bias].span]
            bias.copy_(record_last(layer.bias_gradients(seen.deltas), count))


@lru_cache(maxsize=8)
def _sums(
    bases: tuple[SignedPartition, ...], order: tuple[tuple[torch.Size, bool], ...], device: torch.device
) -> Sums:
    """`order` has the shape of every parameter, and whether a convolution writes it, by taps."""
    rows, start = [], 0
    for shape, by_tap in order:
        row = torch.arange(start, start + shape.numel())
        if by_tap:
            filters, channels, *window = shape
            row = row.reshape(*window, channels, filters).permute(3, 2, 0, 1).reshape(-1)
        rows.append(row)
        start += shape.numel()
    groups = torch.stack([basis.index for basis in bases]).to(device)
    weights = torch.stack([basis.weight for basis in bases]).to(device)
    return Sums.of(groups, weights, torch.cat(rows).to(device), bases[0].coefficients, bases[0].size)
