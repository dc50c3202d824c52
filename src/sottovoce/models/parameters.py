"""The trainable parameters of any module as one flat vector, and its outputs there."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sottovoce.machine.determinism import beside_others
from sottovoce.models.imports import ModelError


@dataclass(frozen=True)
class Place:
    """A trainable parameter's shape, its slice of θ, and its number among them."""

    number: int
    span: slice
    shape: torch.Size


def places(module: nn.Module) -> dict[str, Place]:
    """Returns the place of each trainable parameter in θ, by first name, as `module.parameters()` go.

    A tied parameter has one place; one that is frozen (`requires_grad=False`) has none: it is part of the
    public reference.

    >>> places(nn.Linear(4, 3))["bias"].span
    slice(12, 15, None)
    """
    found, start = {}, 0
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for number, (name, parameter) in enumerate(trainable):
        found[name] = Place(number, slice(start, start + parameter.numel()), parameter.shape)
        start += parameter.numel()
    return found


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that θ is made of, in its order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def flat_parameters(module: nn.Module) -> Tensor:
    """All trainable parameters as one vector θ (d,)."""
    parameters = trainable(module)
    if not parameters:
        raise ModelError("every parameter of the model is frozen: leave at least one to be trained")
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def parameters_at(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """The one view of θ (..., d): parameters (..., *shape) by name, tied ones under all their names.

    Tied by us, because the way of `functional_call` leaves a layer that is used twice with tensors in the
    place of its parameters (torch 2.13).
    """
    by_parameter = dict(zip(map(id, trainable(module)), places(module).values(), strict=True))
    views = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) in by_parameter:
                place = by_parameter[id(parameter)]
                shape = (*theta.shape[:-1], *place.shape)
                views[f"{prefix}.{name}" if prefix else name] = theta[..., place.span].reshape(shape)
    return views


def state_dict_at(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """The state dict of the model at θ (d,): trainable parameters read from it, all else the module's own."""
    return {**module.state_dict(), **parameters_at(module, theta)}


def logits(module: nn.Module, theta: Tensor, x: Tensor) -> Tensor:
    """The module's output (m, classes) on records x (m, …) at the flat parameters `theta`."""
    return output_at(module, parameters_at(module, theta), x)


def output_at(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The module's output on records x with these parameters (of `parameters_at`) in the place of its own."""
    # While it runs the module holds them as its own: a thread beside others needs a module for itself.
    if beside_others():
        if module not in _copies.of:
            _copies.of[module] = copy.deepcopy(module)
        module = _copies.of[module]
    output: Tensor = functional_call(module, dict(parameters), (x,), tie_weights=False)
    return output


class _Copies(threading.local):
    """A thread's own copies of modules, for as long as those live."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


_copies = _Copies()
