"""The clipped sum where the whole model adapts (k = d): norms by layer, then one weighted sum of gradients.

A linear layer's record gradient δ ⊗ x has the norm ‖δ‖‖x‖, and the sum of all clipped ones is a single matrix
product, so that only the small gradients of other layers are written out per record. Norms and sums are in
float64, which numbers become as they are read: on a CPU a block of records at a time, while caches hold them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.gradients import gpu
from sottovoce.gradients.clipping import blank, clip_scales
from sottovoce.gradients.layers import Capture, Convolution, Linear, Parameters, by_client, written

_IN_CACHE = 160 * 2**11
"""Numbers of a block: so many in float64 are read again from a CPU's caches."""


def clipped_sum(
    parameters: Parameters,
    captures: list[Capture],
    losses: Tensor,
    clip: float,
    known: Tensor | None = None,
    bias_scale: float = 1.0,
) -> Tensor:
    """Σ clip_C(Pᵀ∇_θ ℓ) of the records of a chunk that have losses (clients, records): float64 (clients, d).

    `parameters` are those of the captures, in the order of θ; P scales the last of them, a bias.
    `known` (clients, records) are `squares` of the inputs of the first layer with parameters, if linear.
    """
    scaled = [*parameters][-1]

    def mine(values: Tensor) -> Tensor:
        return by_client(values, len(losses))[:, : losses.shape[1]]

    outer: list[_Outer] = []
    others = {name: mine(values) for name, values in written_out(captures).items()}
    for seen in captures:
        layer = seen.layer
        if isinstance(layer, Linear):
            constant = bias_scale if layer.bias == scaled else 1.0
            outer.append(_Outer(layer, mine(seen.deltas), mine(seen.inputs), constant))
    if scaled in others and bias_scale != 1.0:
        others[scaled] = bias_scale * others[scaled]
    first = {} if known is None else {captures[0].layer.weight: known}
    flat = _sums(outer, others, losses, clip, first)
    for seen in captures:
        if isinstance(seen.layer, Convolution):
            flat[seen.layer.weight] = _by_filter(flat[seen.layer.weight], parameters[seen.layer.weight])
    return torch.cat([flat[name] for name in parameters], dim=1)


def written_out(captures: list[Capture]) -> dict[str, Tensor]:
    """Gradients (n, size) by name, of the small parameters: every record's own one is written out."""
    small = [seen for seen in captures if not isinstance(seen.layer, Linear)]
    return {name: values for seen in small for name, values in written(seen)}


def rows(parameters: Parameters, captures: list[Capture]) -> Tensor:
    """∇_θ ℓ of every record of a chunk, (n, d)."""
    flat = {name: values for seen in captures for name, values in written(seen)}
    for seen in captures:
        if isinstance(seen.layer, Convolution):
            flat[seen.layer.weight] = _by_filter(flat[seen.layer.weight], parameters[seen.layer.weight])
    return torch.cat([flat[name] for name in parameters], dim=1)


class _Outer(NamedTuple):
    """A linear layer's δ (clients, records, outputs) and x: its gradient is δ ⊗ (x, c), the bias included.

    c is the `constant` input, 1 unless P scales the bias.
    """

    layer: Linear
    deltas: Tensor
    inputs: Tensor
    constant: float

    def squares(self, of_deltas: Tensor, of_inputs: Tensor) -> Tensor:
        """‖δ‖²(‖x‖² + c²), of the squares of both."""
        return of_deltas * (of_inputs if self.layer.bias is None else of_inputs + self.constant**2)

    def sums(self, rows: Tensor, outer: Tensor) -> dict[str, Tensor]:
        """By name, of scaled δ and their sum of products with x."""
        bias = {} if self.layer.bias is None else {self.layer.bias: self.constant * rows.sum(1)}
        return {self.layer.weight: outer.flatten(1), **bias}


def _sums(
    outer: list[_Outer], others: dict[str, Tensor], losses: Tensor, clip: float, known: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The sums (clients, size) by name; `known` are squares of the norms of inputs."""
    on_gpu = gpu.on_gpu(losses)
    square = partial(gpu.squares, dim=2) if on_gpu else squares
    total = torch.zeros_like(losses, dtype=torch.float64)
    for gradients in others.values():
        total = total + square(gradients)
    for one in outer:
        of_inputs = known.get(one.layer.weight)
        of_inputs = square(one.inputs) if of_inputs is None else of_inputs
        total = total + one.squares(square(one.deltas), of_inputs)
    each = clip_scales(total.sqrt(), losses, clip)
    scales = each.unsqueeze(2)
    if on_gpu:  # takes all records at once, and what it reads for itself
        sums = {name: gpu.weighted_sum(gradients.mT, each) for name, gradients in others.items()}
        for one in outer:
            rows = gpu.exact(one.deltas, scales) * scales
            sums |= one.sums(rows, torch.bmm(rows.mT, gpu.exact(one.inputs, scales)))
        return sums
    if not float(scales.min()) > 0:  # asking costs less than blanking
        others = {name: blank(gradients, scales) for name, gradients in others.items()}
        outer = [_Outer(layer, blank(d, scales), blank(x, scales), c) for layer, d, x, c in outer]
    sums = {name: (gradients * scales).sum(1) for name, gradients in others.items()}
    for one in outer:
        rows = one.deltas * scales
        sums |= one.sums(rows, torch.stack(list(map(_outer_sum, rows, one.inputs))))
    return sums


def _outer_sum(deltas: Tensor, inputs: Tensor) -> Tensor:
    """Σ δ ⊗ x of one client's δ (records, rows) and x (records, size), block by block."""
    total = deltas.new_zeros(deltas.shape[1], inputs.shape[1])
    each = _records(inputs)
    memory = torch.empty_like(inputs[:each], dtype=torch.float64)
    for rows, x in zip(torch.split(deltas, each), torch.split(inputs, each), strict=True):
        total.addmm_(rows.T, memory[: len(x)].copy_(x))
    return total


def squares(values: Tensor) -> Tensor:
    """‖v‖² in float64 of every record of (clients, records, size), on a CPU block by block.

    >>> squares(torch.tensor([[[3.0, 4.0], [1.0, 0.0]]]))
    tensor([[25.,  1.]], dtype=torch.float64)
    """
    blocks = torch.split(values, _records(values), dim=1)
    return torch.cat([torch.linalg.vector_norm(block.double(), dim=2) for block in blocks], dim=1).square()


def _records(values: Tensor) -> int:
    """Returns how many records of (…, records, size) make a block."""
    return max(1, _IN_CACHE // values.shape[-1])


def _by_filter(summed: Tensor, parameter: Tensor) -> Tensor:
    """From the order of `Convolution.weight_gradients`, (n, size), to that of the parameter (…, *shape)."""
    _, filters, channels, *window = parameter.shape
    return summed.reshape(-1, *window, channels, filters).permute(0, 4, 3, 1, 2).flatten(1)
