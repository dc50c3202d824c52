"""Where each parameter lies in the flat vector θ, in the order of `torch.nn.utils.parameters_to_vector`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """A parameter's shape, its slice of θ, and its number among the parameters."""

    number: int
    span: slice
    shape: torch.Size


def places(module: nn.Module) -> dict[str, Place]:
    """By name.

    >>> places(nn.Linear(4, 3))["bias"].span
    slice(12, 15, None)
    """
    found, start = {}, 0
    for number, (name, parameter) in enumerate(module.named_parameters()):
        found[name] = Place(number, slice(start, start + parameter.numel()), parameter.shape)
        start += parameter.numel()
    return found


def unflatten(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """Views of flat parameters (..., d) by name, each (..., *shape); a tied parameter under all its owners'
    names.

    With `functional_call` pass `tie_weights=False`: its own way of tying leaves a layer that is used
    twice with tensors in the place of its parameters (torch 2.13).
    """
    by_parameter = {id(module.get_parameter(name)): place for name, place in places(module).items()}
    views = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            place = by_parameter[id(parameter)]
            shape = (*theta.shape[:-1], *place.shape)
            views[f"{prefix}.{name}" if prefix else name] = theta[..., place.span].reshape(shape)
    return views
