"""The clipped mean of per-record coefficient gradients, which a client computes before the channel.

`clipped_mean` implements the sum of Eq. 5 of the paper by the fastest of several paths that all agree with
the per-record reference; none of them lets a record contribute more than `clip` in norm, measured in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from sottovoce.errors import SottovoceError
from sottovoce.gradients import gpu, identity, vmap
from sottovoce.gradients.clipping import (
    check_outputs,
    check_recordwise,
    recordwise_logits,
    refuse_unclippable,
    sensitivity,
    sum_clipped,
    sum_squared,
)
from sottovoce.gradients.layers import Convolution, Layer, Linear, Plain, by_client, capture, stack, steps
from sottovoce.gradients.partitions import Structured, Unstructured
from sottovoce.machine.determinism import one_core, side_by_side
from sottovoce.models.bases import Basis, Identity, SignedPartition, StructuredPartition
from sottovoce.models.parameters import parameters_at
from sottovoce.models.tasks import Losses, cross_entropy
from sottovoce.models.tiles import TILE, drawn_parameters, tile_of, tiles, whole

__all__ = [
    "check_outputs",
    "check_recordwise",
    "clipped_mean",
    "clipped_means",
    "recordwise_logits",
    "sensitivity",
]


# What a chunk may take in memory: on a CPU little more than its caches, on a GPU enough to fill the gpu. It
# depends on nothing else, since the sum over chunks is rounded differently for chunks of another size.
_CPU_BYTES, _GPU_BYTES = 60 * 2**20, 4 * 2**30
_Gradients = Structured | Unstructured | None


@one_core()
def clipped_mean(
    module: nn.Module,
    theta: Tensor,
    basis: Basis,
    x: Tensor,
    y: Tensor,
    *,
    clip: float,
    denominator: int,
    loss: Losses = cross_entropy,
    unit: Tensor | None = None,
    remember: bool = False,
) -> Tensor:
    """Σ_z clip_C(Pᵀ∇_θ ℓ(θ; z)) / m over the records (x, y) with a task's `loss` ℓ: float64 (k,).

    `theta` (d,) is in the order of `parameters_to_vector`; `x` is (m, ...), `y` (m, ...) their targets.
    `denominator` is fixed in advance and need not equal the number of records. The norm of no record's
    contribution exceeds clip/denominator, in float64; a record whose loss or gradient is not finite
    contributes zero. The parameters of `module` are neither read nor changed. Where several records are of
    one `unit` (m,), a unit takes the place of a record: its gradients are averaged, and then clipped.
    `remember` keeps norms of records for the next round: only of an `x` whose memory nobody else holds, since
    a write behind torch (a NumPy view, another process) would leave norms, and so the bound, untrue.

    >>> from sottovoce.models.bases import Identity
    >>> net, x, y = nn.Linear(2, 3), torch.ones(4, 2), torch.tensor([0, 1, 2, 0])
    >>> mean = clipped_mean(net, torch.zeros(9), Identity(9), x, y, clip=0.1, denominator=4)
    >>> bool(mean.norm() <= 0.1)
    True
    """
    if unit is not None:
        _check(theta[None], [basis], x[None], y[None], clip, denominator)
        refuse_unclippable(module)
        each = partial(_record_gradients, module, theta.detach(), basis.to(theta.device), loss)
        return vmap.clipped_unit_sum(each, x, y, unit, clip, basis.coefficients) / denominator
    one = (module, theta[None], [basis], x[None], y[None])
    squares = partial(_remembered_squares, x) if remember else None
    return clipped_means(*one, clip=clip, denominator=denominator, loss=loss, squares=squares)[0]


@one_core()
def clipped_means(
    module: nn.Module,
    thetas: Tensor,
    bases: Sequence[Basis],
    x: Tensor,
    y: Tensor,
    *,
    clip: float,
    denominator: int,
    loss: Losses = cross_entropy,
    squares: Callable[[], Tensor] | None = None,
) -> Tensor:
    """The clipped means of c clients, each with parameters, basis and records of its own: float64 (c, k).

    `thetas` is (c, d), `x` (c, m, ...), `y` (c, m, ...); the bases are of one kind and shape. Row i equals
    `clipped_mean` of client i, on a CPU bit for bit and with any number of cores, on a GPU up to rounding.
    Pass the same `bases` objects every round: what is prepared from them is remembered. `squares` gives ‖x‖²
    of all records, float64 (c, m), where they are known.
    """
    refuse_unclippable(module)
    _check(thetas, bases, x, y, clip, denominator)
    thetas, first = thetas.detach(), bases[0]
    if not x.shape[1]:
        return torch.zeros(len(thetas), first.coefficients, dtype=torch.float64, device=thetas.device)
    found = _remembered_stack(module, thetas, x, first)
    if found is None:
        each = zip(thetas, bases, x, y, strict=True)
        sums = [vmap.clipped_sum(module, *client, clip, loss) for client in each]
        return torch.stack(sums) / denominator
    layers, floats = found
    gradients = _coefficient_gradients(module, tuple(bases), thetas.device)
    on_cpu = not gpu.on_gpu(thetas)
    scale, known = first.bias_scale if isinstance(first, Identity) else 1.0, None
    if squares is not None and on_cpu and first.kind == "identity" and _linear_in_records(layers):
        known = squares()

    def work(chunk: _Chunk) -> Tensor:
        clients, records = chunk.clients, chunk.records
        parameters, ys = parameters_at(module, thetas[clients]), y[clients, records]
        captures, losses = capture(layers, parameters, chunk.filled(x), chunk.filled(y), loss)
        losses = by_client(losses, len(ys))[:, : ys.shape[1]]
        if gradients is None:
            mine = None if known is None else known[clients, records]
            return identity.clipped_sum(parameters, captures, losses, clip, mine, scale)
        if isinstance(gradients, Unstructured) and gradients.products and thetas.dtype == torch.float32:
            sums, squared = gradients.products(captures, clients)
            return sum_squared([sums[:, :, : ys.shape[1]]], squared[:, : ys.shape[1]], losses, clip)
        parts = gradients(captures, clients)
        return sum_clipped([part[:, :, : ys.shape[1]] for part in parts], losses, clip)

    cut = partial(_chunks, len(x), x.shape[1], floats * thetas.element_size(), layers, on_cpu=on_cpu)
    chunks = list(cut(TILE))
    if _tile(module, layers, first, gradients, (thetas[0], x[0], y[0]), loss, chunks) == 1:
        chunks = list(cut(1))
    parts = side_by_side(work, chunks) if on_cpu else map(work, chunks)
    if len(chunks) == 1:
        return next(iter(parts)).div_(denominator)
    total = torch.zeros(len(thetas), first.coefficients, dtype=torch.float64, device=thetas.device)
    for chunk, part in zip(chunks, parts, strict=True):
        total[chunk.clients] += part
    return total.div_(denominator)


def _check(
    thetas: Tensor, bases: Sequence[Basis], x: Tensor, y: Tensor, clip: float, denominator: int
) -> None:
    if not clip > 0 or denominator < 1:
        raise SottovoceError(f"clip={clip} and denominator={denominator} must both be positive")
    kinds = {
        basis if isinstance(basis, Identity) else (basis.kind, basis.size, basis.coefficients)
        for basis in bases
    }
    if len(kinds) != 1 or not len(thetas) == len(bases) == len(x) == len(y):
        raise SottovoceError("clients together need bases of one kind and size, and one of each input")
    if bases[0].size != thetas.shape[1]:
        raise SottovoceError(
            f"a basis for {bases[0].size} parameters does not fit a model of {thetas.shape[1]}"
        )


def _linear_in_records(layers: Sequence[Layer]) -> bool:
    """Returns whether the first layer with parameters is linear and sees the records as they are."""
    before = list(takewhile(lambda layer: isinstance(layer, Plain), layers))
    flat = all(isinstance(layer, Plain) and type(layer.module) is nn.Flatten for layer in before)
    return flat and isinstance(layers[len(before)], Linear)


def _remembered_squares(x: Tensor) -> Tensor:
    """‖x‖² (1, m) of one client's records, computed once while the tensor lives and is not written to."""
    if x.is_inference():
        return identity.squares(x[None].flatten(2))
    known = _squares.get(x)
    if known is None or known[0] != x._version:
        known = _squares[x] = (x._version, identity.squares(x[None].flatten(2)))
    return known[1]


_squares: MutableMapping[Tensor, tuple[int, Tensor]] = WeakTensorKeyDictionary()


def _coefficient_gradients(
    module: nn.Module, bases: tuple[Basis, ...], device: torch.device
) -> Structured | Unstructured | None:
    """Returns how to come from captures to coefficient gradients; None for the identity, which needs none."""
    if bases[0].kind == "structured":
        return Structured(module, cast(tuple[StructuredPartition, ...], bases), device)
    if bases[0].kind == "unstructured":
        return Unstructured(module, cast(tuple[SignedPartition, ...], bases), device)
    return None


def _remembered_stack(
    module: nn.Module, thetas: Tensor, x: Tensor, basis: Basis
) -> tuple[tuple[Layer, ...], int] | None:
    """A stack's layers and `_floats_per_record`; None where module and records of this shape are none."""
    layers = stack(module)
    if layers is None:
        return None
    known = _floats.setdefault(module, {})
    key = (*x.shape[2:], str(x.device), basis.kind, basis.coefficients)
    if key not in known:
        known[key] = _floats_per_record(layers, module, thetas, x, basis)
    floats = known[key]
    return None if floats is None else (layers, floats)


_floats: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], int | None]] = WeakKeyDictionary()


def _floats_per_record(
    layers: tuple[Layer, ...], module: nn.Module, thetas: Tensor, x: Tensor, basis: Basis
) -> int | None:
    """Roughly what a record takes while its chunk is worked on; None where shapes do not fit a stack."""
    parameters, record = parameters_at(module, thetas[:1]), x[0, :1]
    made = steps(layers, parameters, record)
    if made is None:
        return None
    patches, written, on_gpu = 0, 0, gpu.on_gpu(record)
    for layer, seen in zip(layers, [record, *made], strict=False):
        if isinstance(layer, Convolution):
            patches = max(patches, gpu.patches(layer.window, seen).numel() if on_gpu else 0)
            written += 6 * parameters[layer.weight].numel()
        elif isinstance(layer, Linear) and on_gpu:
            written += 6 * seen.numel()  # in float64
    if basis.kind != "identity":
        written = 3 * basis.coefficients + (basis.size if basis.kind == "unstructured" else 0)
    return 2 * sum(h.numel() for h in made) + patches + written


class _Chunk(NamedTuple):
    """Records of clients that are computed together, filled up with zeros to so many of each client."""

    clients: slice
    records: slice
    length: int

    def filled(self, values: Tensor) -> Tensor:
        """Its part of (clients, records, …), flat."""
        part = values[self.clients, self.records]
        if len(part) == 1:
            return whole(part[0], self.length)
        missing = part.new_zeros(len(part), self.length - part.shape[1], *part.shape[2:])
        return torch.cat([part, missing], dim=1).flatten(0, 1)


def _chunks(
    clients: int, records: int, bytes_each: int, layers: Sequence[Layer], tile: int, *, on_cpu: bool
) -> Iterator[_Chunk]:
    """Chunks of whole tiles that fit into memory: of whole clients together on a GPU, or of parts of one.

    On a CPU a chunk is of one client, which so gets what it would get alone, and of one tile, unless all
    products are of linear layers, which make them tile by tile. On a GPU all chunks of a client are alike.
    """
    most = max(tile, (_CPU_BYTES if on_cpu else _GPU_BYTES) // bytes_each // tile * tile)
    filled, edge, together = _up(records, tile), records // tile * tile, 1
    if not on_cpu:
        edge, together, most = records, max(1, most // filled), _up(-(-filled // -(-filled // most)), tile)
    elif tile == 1 or not all(isinstance(layer, Linear | Plain) for layer in layers):
        most = tile
    for client in range(0, clients, together):
        who = slice(client, min(client + together, clients))
        # The rest is by itself on a CPU: to fill it up must not copy all others.
        for start in [*range(0, edge, most), *range(edge, records, tile)]:
            stop = min(start + most, edge if start < edge else records)
            yield _Chunk(who, slice(start, stop), _up(stop - start, tile) if on_cpu else most)


def _up(count: int, tile: int) -> int:
    return -(-count // tile) * tile


def _tile(
    module: nn.Module,
    layers: tuple[Layer, ...],
    basis: Basis,
    gradients: _Gradients,
    like: tuple[Tensor, Tensor, Tensor],
    loss: Losses,
    chunks: Sequence[_Chunk],
) -> int:
    """How many records of a client the layers may see at once, tried in the shapes of these chunks.

    `like` are θ (d,), records (m, …) and targets (m, …): what they hold is not looked at.
    """
    theta, x, y = like
    shapes: set[tuple[int, tuple[int, ...]]]
    if gpu.on_gpu(theta):
        shapes = {(chunk.clients.stop - chunk.clients.start, (chunk.length,)) for chunk in chunks}
    else:  # one tile by itself, and three in a chunk
        shapes = {(1, (TILE, 3 * TILE) if max(chunk.length for chunk in chunks) > TILE else (TILE,))}

    def rows(clients: int, counts: tuple[int, ...], records: Tensor) -> list[Tensor]:
        found, parameters = [], parameters_at(module, drawn_parameters(theta).expand(clients, -1))
        for count in counts:
            many = records.repeat(clients * count // TILE, *[1] * (records.ndim - 1))
            captures, losses = capture(layers, parameters, many, y.new_zeros(len(many), *y.shape[1:]), loss)
            seen = [losses, *(values for one in captures for values in (one.inputs, one.deltas))]
            seen += identity.written_out(captures).values() if gradients is None else []
            parts = [] if gradients is None else gradients(captures, slice(0, clients))
            each = [by_client(values, clients).transpose(0, 1) for values in seen]
            found.append([*each, *(part.movedim(2, 0) for part in parts)])
        return [torch.cat(same) for same in zip(*found, strict=True)]

    kind = type(gradients), basis.coefficients, theta.dtype, loss
    return min(tile_of(module, (kind, *shape), partial(rows, *shape), x) for shape in shapes)


def _record_gradients(
    module: nn.Module, theta: Tensor, basis: Basis, loss: Losses, x: Tensor, y: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Coefficient gradients (n, k) and losses (n,) of a few records (m, …) at a time, in order."""
    found = _remembered_stack(module, theta[None], x[None], basis) if len(x) else None
    if found is None:
        yield from vmap.record_gradients(module, theta, basis, x, y, loss=loss)
        return
    layers, parameters = found[0], parameters_at(module, theta[None])
    gradients = _coefficient_gradients(module, (basis,), theta.device)
    alone = [_Chunk(slice(0, 1), slice(0, 1), TILE)]
    tile = _tile(module, layers, basis, gradients, (theta, x, y), loss, alone)
    for xs, ys, left in zip(tiles(x, tile), tiles(y, tile), range(len(x), 0, -tile), strict=True):
        captures, losses = capture(layers, parameters, xs, ys, loss)
        if gradients is None:
            rows = basis.project(identity.rows(parameters, captures))
        else:
            rows = torch.cat(gradients(captures, slice(0, 1)), dim=1)[0].T
        yield rows[:left], losses[:left]
