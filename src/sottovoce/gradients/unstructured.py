"""Coefficient gradients for the paper's partition: a chunk's full gradients are written out and summed by
group.

Gradients lie with the record index last, (clients, d, records), so that the signed sums run over
contiguous rows.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import torch
from torch import Tensor, nn

from sottovoce.gradients.layers import Convolution, Linear, record_last
from sottovoce.gradients.products import products
from sottovoce.gradients.stack import Capture
from sottovoce.gradients.sums import Sums
from sottovoce.models import places, trainable
from sottovoce.subspace import SignedPartition


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
