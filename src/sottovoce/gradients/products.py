"""Coefficient gradients for the paper's partition on a GPU: sums of products, nothing of size d is written.

Every entry of a record's gradient is a product of two rows of a small table: of δ and x for the weight of a
linear layer, of itself and one for what has to be computed anyway (convolutions, biases, norms).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from sottovoce.gradients import gpu
from sottovoce.gradients.layers import Convolution, Linear, Parametric, Plain, record_last
from sottovoce.gradients.stack import Capture, stack
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
