"""The bound on what one record can do to a release: clip, then divide by a fixed denominator.

A record's coefficient gradient g(z) enters the mean as clip_C(g) = g·min{1, C/‖g‖₂} (before Eq. 5 of the
paper), so replacing one record moves the mean by at most 2C/m. Everything here is float64: float32 norms
leave about half of the clipped records above the bound.

The bound counts on records that stay apart: a record's output is its own, whatever lies beside it in a batch.
Known stacks of layers keep records apart by construction; any other module is evaluated record by record, and
one that gives a record another output beside other records is refused before anything is charged.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from sottovoce.data.dataset import Facts
from sottovoce.data.tables.schema import random_records
from sottovoce.errors import SottovoceError
from sottovoce.gradients import gpu
from sottovoce.gradients.layers import stack, steps
from sottovoce.machine.determinism import seeded
from sottovoce.models.imports import reason
from sottovoce.models.parameters import flat_parameters, logits, output_at, parameters_at
from sottovoce.models.tasks import Task
from sottovoce.models.tiles import by_tiles, drawn, drawn_parameters, tile_of

# Room for the last roundings of scale times gradient in float64, so that ‖·‖₂ ≤ C holds without exception.
_ROOM = 1.0 - 1e-12
_ROWS = 2048
_TRIED = 4  # records side by side
_SCALES = (1.0, 30.0)  # of the records that are tried
_SHIFTS = (0.0, 0.3)  # of the parameters: what mixes records may be switched off at the reference
_TOLERANCE = 1e-3  # relative; float32 sums differ by 1e-6 between batches of different sizes


def sensitivity(clip: float, denominator: int) -> float:
    """The most, in ‖·‖₂, by which replacing any one record can move a clipped mean: 2C/m.

    >>> sensitivity(1.0, 400)
    0.005
    """
    return 2.0 * clip / denominator


def clip_scales(norms: Tensor, losses: Tensor, clip: float) -> Tensor:
    """min{1, C/‖g‖₂} for float64 `norms`, of any shape; 0 where the norm or the loss is not finite.

    A scale of 0 is no licence to multiply: 0·∞ is not 0. Callers blank such records with `torch.where`.

    >>> clip_scales(torch.tensor([0.5, 4.0, torch.inf]).double(), torch.zeros(3), clip=1.0).tolist()
    [1.0, 0.24999999999975, 0.0]
    """
    norms = norms + 0.0 * losses  # nothing, or NaN where a loss is not finite
    return (clip * _ROOM / norms).clamp_(max=1.0).nan_to_num_(nan=0.0)  # C/∞ is 0


def sum_clipped(parts: Sequence[Tensor], losses: Tensor, clip: float) -> Tensor:
    """Σ clip_C(g) over records, for gradients g given in parts (clients, part of k, records).

    Losses are (clients, records); the result is float64 (clients, k).

    >>> g = torch.tensor([[[3.0, 0.3, torch.nan], [4.0, 0.4, 0.0]]])
    >>> sum_clipped([g], torch.zeros(1, 3), clip=1.0).round(decimals=6).tolist()
    [[0.9, 1.2]]
    """
    if gpu.on_gpu(losses):
        return sum_squared(parts, torch.stack([gpu.squares(part, 1) for part in parts]).sum(0), losses, clip)
    # In float64 a large part leaves a CPU's caches between two operations.
    blocks = [part[:, i : i + _ROWS] for part in parts for i in range(0, part.shape[1], _ROWS)]
    squares = torch.stack([block.to(torch.float64, copy=True).square_().sum(1) for block in blocks]).sum(0)
    scales = clip_scales(squares.sqrt(), losses, clip)
    if not bool((scales > 0).all()):  # blanking costs a tenth of the whole
        blocks = [blank(block, scales[:, None]) for block in blocks]
    return torch.cat([torch.bmm(block.double(), scales[:, :, None]) for block in blocks], dim=1).squeeze(2)


def sum_squared(parts: Sequence[Tensor], squares: Tensor, losses: Tensor, clip: float) -> Tensor:
    """As `sum_clipped` on a GPU, for gradients whose ‖g‖² (clients, records) is known."""
    scales = clip_scales(squares.sqrt(), losses, clip)
    return torch.cat([gpu.weighted_sum(part, scales) for part in parts], dim=1)


def blank(values: Tensor, scales: Tensor) -> Tensor:
    """`values` with zeros where the scale is zero, so that nothing non-finite meets a product."""
    return torch.where(scales > 0, values, 0.0)


def refuse_unclippable(module: nn.Module) -> None:
    """Raises where a layer lets one record change another record's gradient, or draws unseeded randomness.

    A batch norm with statistics of its own that is in eval mode is a fixed affine map, and may stay.
    """
    for name, layer in module.named_modules():
        kind = f"layer '{name}' ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm | _InstanceNorm) and _mixes(layer):
            raise SottovoceError(
                f"{kind} mixes records, which no clipping bounds: call eval() on it if its statistics are "
                "public and fixed, or use GroupNorm or LayerNorm instead"
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise SottovoceError(
                f"{kind} draws random numbers: call eval() on the model, or leave the layer out"
            )


def _mixes(norm: _BatchNorm | _InstanceNorm) -> bool:
    """Returns whether a layer computes or keeps statistics over several records."""
    if isinstance(norm, _BatchNorm):
        return norm.training or norm.running_mean is None or norm.running_var is None
    return norm.training and norm.track_running_stats


@dataclass(frozen=True, eq=False)
class Sums:
    """Group j of a client is the sum of weight·row over the group's entries in the client's table."""

    rows: Tensor  # int32 (clients, entries): which row of the table, sorted by group
    weights: Tensor  # (clients, entries)
    starts: Tensor  # int32 (groups,): the first entry of each group, the same for all clients
    size: int  # rows of one client's table

    @classmethod
    def of(cls, groups: Tensor, weights: Tensor, rows: Tensor, count: int, size: int) -> Sums:
        """Entry e of a client adds weights[e]·table[rows[e]] to group groups[e] < count.

        `groups` and `weights` are (clients, entries), `rows` (entries,). Group sizes agree between clients.
        """
        order = groups.argsort(dim=1, stable=True)
        sizes = torch.bincount(groups[0], minlength=count)
        starts = sizes.cumsum(0) - sizes
        return cls(rows[order].int(), weights.gather(1, order), starts.int(), size)

    def __call__(self, table: Tensor, clients: slice) -> Tensor:
        """From (clients, size, records) to (clients, groups, records)."""
        rows, weights, starts = self.rows[clients], self.weights[clients], self.starts
        count, entries = rows.shape
        if count > 1:
            client = torch.arange(count, device=rows.device, dtype=torch.int32)[:, None]
            rows, starts = rows + client * self.size, starts + client * entries
        # A bag of embeddings is a weighted sum of rows: vectorized over records, one launch for all clients.
        sums = F.embedding_bag(
            rows.reshape(-1),
            table.reshape(count * self.size, -1),
            starts.reshape(-1),
            mode="sum",
            per_sample_weights=weights.reshape(-1).to(table.dtype),
        )
        return sums.reshape(count, -1, table.shape[2])


def recordwise_logits(module: nn.Module, theta: Tensor, x: Tensor) -> Tensor:
    """The outputs (m, classes) on records x (m, …) at `theta`, each a function of its own record alone."""
    layers = stack(module)
    if layers is not None and steps(layers, parameters_at(module, theta[None]), drawn(x)[:1]) is None:
        layers = None

    @torch.no_grad()  # of the thread that works on it
    def outputs(flat: Tensor, seen: Tensor) -> Tensor:
        if layers is not None and (made := steps(layers, parameters_at(module, flat[None]), seen)):
            return made[-1]
        each: Tensor = vmap(partial(_alone, module))(flat.expand(len(seen), -1), seen)
        return each

    tokens = x.dtype == torch.int64
    seen = x.clamp_min(0) if tokens else x  # −1 is outside the vocabulary: its record cannot be used
    size = tile_of(module, ("outputs", theta.dtype), lambda each: [outputs(drawn_parameters(theta), each)], x)
    found = by_tiles(partial(outputs, theta), seen, size)
    return torch.where((x >= 0).flatten(1).all(dim=1, keepdim=True), found, torch.nan) if tokens else found


def _alone(module: nn.Module, theta: Tensor, record: Tensor) -> Tensor:
    return output_at(module, parameters_at(module, theta), record.unsqueeze(0))[0]


def check_outputs(module: nn.Module, task: Task) -> None:
    """Refuses a module that cannot take such records, or gives another number of outputs, in one line."""
    name = type(module).__name__
    generator = torch.Generator().manual_seed(0)
    x = random_records(task.facts, 2, generator).to(flat_parameters(module).device)
    try:
        with torch.no_grad():
            outputs = module(x)
    except Exception as error:  # whatever a stranger's forward raises
        if x.dtype == torch.int64:
            why = "takes numbers" if "dtype" in str(error) else f"fails ({reason(error)})"
            raise SottovoceError(
                f"{name} {why}, and these records are tokens: choose a model that embeds them, or features",
                "model",
                "features",
            ) from None
        raise SottovoceError(
            f"{_culprit(module, error)} fails on records of shape {task.facts.shape}: {reason(error)}"
        ) from None
    if not isinstance(outputs, Tensor):
        raise SottovoceError(f"{name} returns {type(outputs).__name__}: return one tensor (records, outputs)")
    task.check_outputs(outputs, name)


def check_recordwise(module: nn.Module, facts: Facts) -> None:
    """Refuses a module that mixes the records of a batch, tried on public random records of these facts."""
    refuse_unclippable(module)
    if stack(module) is not None:
        return
    reference = flat_parameters(module)
    with torch.no_grad(), seeded(0):
        for shift in _SHIFTS:
            theta = reference + shift * torch.randn(len(reference)).to(reference)
            for scale in _SCALES:
                records = random_records(facts, _TRIED, scale=scale)
                others = random_records(facts, _TRIED, scale=scale)
                others[0] = records[0]
                _compare(module, theta, records.to(reference.device), others.to(reference.device))
        _differentiate(module, reference, random_records(facts, 2).to(reference.device))


def _differentiate(module: nn.Module, theta: Tensor, x: Tensor) -> None:
    """Refuses a module of which torch.func cannot take the gradient of each record by itself."""

    def total(flat: Tensor, xi: Tensor) -> Tensor:
        return output_at(module, parameters_at(module, flat), xi.unsqueeze(0)).sum()

    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that something is slower than it might be
            vmap(grad(total), in_dims=(None, 0))(theta, x)
    except Exception as error:
        raise SottovoceError(
            f"torch.func cannot differentiate {_culprit(module, error)} record by record, and no clipping "
            f"bounds anything else ({reason(error)}): replace it, or give what it computes as records"
        ) from None


def _culprit(module: nn.Module, error: BaseException) -> str:
    """The innermost layer of a module that was running when it failed."""
    names = {id(layer): name for name, layer in module.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        running = trace.tb_frame.f_locals.get("self")
        if isinstance(running, nn.Module) and names.get(id(running)):
            found = f"layer '{names[id(running)]}' ({type(running).__name__})"
        trace = trace.tb_next
    return found or type(module).__name__


def _compare(module: nn.Module, theta: Tensor, records: Tensor, others: Tensor) -> None:
    """The first record beside different companions, and every record alone and beside the others."""
    together = logits(module, theta, records)
    alone = [logits(module, theta, record[None]) for record in records]
    if together.ndim != 2 or any(one.shape != together[:1].shape for one in alone):
        shapes = f"{tuple(together.shape)} for {len(records)} records and {tuple(alone[0].shape)} for one"
        raise SottovoceError(
            f"{type(module).__name__} gives outputs of shape {shapes}: return (records, classes) for any "
            "batch"
        )
    beside = logits(module, theta, others)[:1]
    for one, other in ((together, torch.cat(alone)), (together[:1], beside)):
        if not torch.allclose(one, other, _TOLERANCE, _TOLERANCE * _largest(one), equal_nan=True):
            raise SottovoceError(
                f"{type(module).__name__} mixes records: its output for one depends on those beside it in a "
                "batch (or on chance), which no clipping bounds; compute each record by itself"
            )


def _largest(output: Tensor) -> float:
    finite = output[output.isfinite()]
    return float(finite.abs().max()) if len(finite) else 1.0
