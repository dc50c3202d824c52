"""Records stay apart: a record's output is its own, whatever lies beside it in a batch.

Every bound on what one record can do to a release counts on that. Known stacks of layers keep records apart
by construction; any other module is evaluated record by record, and one that gives a record another output
beside other records is refused before anything is charged.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sottovoce.data.description import random_records
from sottovoce.data.facts import Facts
from sottovoce.errors import SottovoceError
from sottovoce.gradients.clipping import refuse_unclippable
from sottovoce.gradients.stack import stack
from sottovoce.models import flat_parameters, logits, output_at, parameters_at, reason
from sottovoce.seeding import seeded
from sottovoce.tasks import Task

_CHUNK = 64
_TRIED = 4  # records side by side
_SCALES = (1.0, 30.0)  # of the records that are tried
_SHIFTS = (0.0, 0.3)  # of the parameters: what mixes records may be switched off at the reference
_TOLERANCE = 1e-3  # relative; float32 sums differ by 1e-6 between batches of different sizes


def recordwise_logits(module: nn.Module, theta: Tensor, x: Tensor) -> Tensor:
    """The outputs (m, classes) on records x (m, …) at `theta`, each a function of its own record alone."""
    if stack(module) is not None:
        return logits(module, theta, x)
    parameters = parameters_at(module, theta)

    def alone(xi: Tensor) -> Tensor:
        return output_at(module, parameters, xi.unsqueeze(0))[0]

    tokens = x.dtype == torch.int64
    seen = x.clamp_min(0) if tokens else x  # −1 is outside the vocabulary: its record cannot be used
    outputs = torch.cat([vmap(alone)(seen[i : i + _CHUNK]) for i in range(0, len(seen), _CHUNK)])
    return (
        torch.where((x >= 0).flatten(1).all(dim=1, keepdim=True), outputs, torch.nan) if tokens else outputs
    )


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
