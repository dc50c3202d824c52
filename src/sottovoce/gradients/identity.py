"""The clipped sum where the whole model adapts (k = d): norms by layer, then one weighted sum of gradients.

A linear layer's record gradient δ ⊗ x has the norm ‖δ‖‖x‖, and the sum of all clipped ones is a single matrix
product, so that only the small gradients of other layers are written out per record. All of it is in float64;
on a CPU, inputs of linear layers become so a block of records at a time, while the caches hold them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sottovoce.gradients import card
from sottovoce.gradients.clipping import blank, clip_scales
from sottovoce.gradients.layers import Convolution, Linear, by_client
from sottovoce.gradients.stack import Capture
from sottovoce.models import Place, places

_IN_CACHE = 128
"""Records of a block."""


def clipped_sum(module: nn.Module, captures: list[Capture], losses: Tensor, clip: float) -> Tensor:
    """Σ clip_C(∇_θ ℓ) of a chunk with losses (clients, records): float64 (clients, d)."""
    order, count = places(module), len(losses)
    outer: dict[str, tuple[Tensor, Tensor]] = {}
    written: dict[str, Tensor] = {}
    for seen in captures:
        layer = seen.layer
        if isinstance(layer, Linear):
            outer[layer.weight] = (_grouped(seen.deltas, count), by_client(seen.inputs, count))
        elif isinstance(layer, Convolution):
            written[layer.weight] = _grouped(layer.weight_gradients(seen.inputs, seen.deltas), count)
        else:
            written[layer.weight] = _grouped(layer.flat_gradients(seen.inputs, seen.deltas), count)
        if layer.bias is not None:
            written[layer.bias] = _grouped(layer.bias_gradients(seen.deltas), count)
    flat = (_on_card if card.on_card(losses) else _in_blocks)(outer, written, losses, clip)
    for seen in captures:
        if isinstance(seen.layer, Convolution):
            flat[seen.layer.weight] = _by_filter(flat[seen.layer.weight], order[seen.layer.weight])
    return torch.cat([flat[name] for name in order], dim=1)


def _on_card(
    outer: dict[str, tuple[Tensor, Tensor]], written: dict[str, Tensor], losses: Tensor, clip: float
) -> dict[str, Tensor]:
    """The sums (clients, size) by name: a GPU takes all records at once, and what it reads for itself."""
    total = torch.zeros_like(losses, dtype=torch.float64)
    for gradients in written.values():
        total = total + card.squares(gradients, 2)
    for deltas, inputs in outer.values():
        total = total + card.squares(deltas, 2) * card.squares(inputs, 2)
    scales = clip_scales(total.sqrt(), losses, clip)
    sums = {name: card.weighted_sum(gradients.mT, scales) for name, gradients in written.items()}
    scales = scales.unsqueeze(2)
    for name, (deltas, inputs) in outer.items():
        rows = (card.exact(deltas, scales) * scales).mT
        sums[name] = torch.bmm(rows, card.exact(inputs, scales)).flatten(1)
    return sums


def _in_blocks(
    outer: dict[str, tuple[Tensor, Tensor]], written: dict[str, Tensor], losses: Tensor, clip: float
) -> dict[str, Tensor]:
    """The sums (clients, size) by name, on a CPU."""
    squares = sum((_squares(g) for g in written.values()), torch.zeros_like(losses, dtype=torch.float64))
    sums = {name: d.new_zeros(len(d), d.shape[2], x.shape[2]) for name, (d, x) in outer.items()}
    scales = torch.cat(list(_add_outer(sums, outer, squares, losses, clip)), dim=1)
    flat = {name: (blank(g, scales) * scales).sum(1) for name, g in written.items()}
    return flat | {name: total.flatten(1) for name, total in sums.items()}


def _add_outer(
    sums: dict[str, Tensor],
    outer: dict[str, tuple[Tensor, Tensor]],
    squares: Tensor,
    losses: Tensor,
    clip: float,
) -> Iterator[Tensor]:
    """Adds the clipped δ ⊗ x of linear layers, block by block, and gives the scales (clients, records, 1).

    `squares` are those of the norms of all other layers' gradients.
    """
    records = losses.shape[1]
    of_deltas = {name: _squares(deltas) for name, (deltas, _) in outer.items()}
    kept = {name: torch.empty_like(x[:, :_IN_CACHE], dtype=torch.float64) for name, (_, x) in outer.items()}
    for start in range(0, records, _IN_CACHE):
        part = slice(start, start + _IN_CACHE)
        total = squares[:, part]
        for name, (_, inputs) in outer.items():
            x = kept[name] = kept[name][:, : records - start].copy_(inputs[:, part])
            total = total + of_deltas[name][:, part] * _squares(x)
        scales = clip_scales(total.sqrt(), losses[:, part], clip).unsqueeze(2)
        for name, (deltas, _) in outer.items():
            rows = (blank(deltas[:, part], scales) * scales).transpose(1, 2)
            _add_product(sums[name], rows, blank(kept[name], scales))
        yield scales


def _add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    if len(sums) == 1:  # twice as fast as a batch of one, on a CPU
        sums[0].addmm_(left[0], right[0])
    else:
        sums.baddbmm_(left, right)


def _by_filter(summed: Tensor, place: Place) -> Tensor:
    """From the order of `Convolution.weight_gradients` to that of the parameter."""
    filters, channels, *window = place.shape
    return summed.reshape(-1, *window, channels, filters).permute(0, 4, 3, 1, 2).flatten(1)


def _grouped(values: Tensor, clients: int) -> Tensor:
    """(clients·records, ...) to (clients, records, size): float64, to which a GPU converts as it reads."""
    return by_client(values if card.on_card(values) else values.double(), clients).flatten(2)


def _squares(values: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(values, dim=2)
    return norms.square()
