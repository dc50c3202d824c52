"""A model as a stack of layers that each keep records apart, run once to capture what gradients are made of.

One forward and one backward pass over a batch give, for every layer, its inputs and the loss gradients of its
outputs; each record's parameter gradient is a product of the two. Only nested `nn.Sequential`s of well-known
layers, each used once, are taken for a stack: everything else is left to `vmap`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from sottovoce.gradients.layers import (
    Convolution,
    Layer,
    Linear,
    Parameters,
    Parametric,
    Plain,
    Scale,
    Window,
)
from sottovoce.models import trainable
from sottovoce.tasks import Losses

_RECORDWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip


@dataclass(frozen=True)
class Capture:
    """What one layer with parameters saw of n = clients × records, and the loss gradients of its outputs."""

    layer: Parametric
    inputs: Tensor
    deltas: Tensor


def capture(
    layers: tuple[Layer, ...], parameters: Parameters, x: Tensor, y: Tensor, loss: Losses
) -> tuple[list[Capture], Tensor]:
    """Captures of all layers with parameters for records x (n, ...), y (n, ...), and the losses (n,).

    Parameters are (clients, *shape), and n = clients × records, client by client.
    """
    h, seen, outputs = x, [], []
    with torch.enable_grad():
        for layer in layers:
            if isinstance(layer, Plain):
                h = layer.forward(h)
                continue
            h, inputs = layer.forward(h, parameters)
            seen.append((layer, inputs.detach()))
            outputs.append(h if h.requires_grad else h.requires_grad_())
        losses = loss(h, y)
        deltas = torch.autograd.grad(losses, outputs, torch.ones_like(losses))
    return [Capture(*pair, delta) for pair, delta in zip(seen, deltas, strict=True)], losses.detach()


def stack(module: nn.Module) -> tuple[Layer, ...] | None:
    """The layers of `module` in order, or None where it is no such stack."""
    flat = list(_flattened(module, ""))
    parameters = [id(p) for layer, _ in flat for p in layer.parameters()]
    once = sorted(parameters) == sorted(id(p) for p in trainable(module))  # none tied, none frozen
    if not once or any(_hooked(m) for m in module.modules()):
        return None
    layers = [_layer(layer, prefix) for layer, prefix in flat]
    known = tuple(layer for layer in layers if layer is not None)
    return _pool_before_relu(known) if len(known) == len(layers) else None


def _flattened(module: nn.Module, prefix: str) -> Iterator[tuple[nn.Module, str]]:
    if type(module) is not nn.Sequential:
        yield module, prefix
        return
    for name, child in module._modules.items():  # named_children() leaves out the second use of a layer
        assert child is not None
        yield from _flattened(child, f"{prefix}{name}.")


def _hooked(module: nn.Module) -> bool:
    """Returns whether a module was made to do something else than its class says."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return bool(hooks) or "forward" in vars(module)


def _layer(module: nn.Module, prefix: str) -> Layer | None:
    """Exact types only: a subclass may do anything in its forward."""
    weight = f"{prefix}weight"
    bias = f"{prefix}bias" if getattr(module, "bias", None) is not None else None
    kind = type(module)
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        return Linear(weight, bias)
    if isinstance(module, nn.Conv2d) and kind is nn.Conv2d:
        odd = module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str)
        return None if odd else Convolution(weight, bias, Window.of(module))
    if isinstance(module, nn.GroupNorm | nn.LayerNorm) and kind in (nn.GroupNorm, nn.LayerNorm):
        return Plain(module) if module.weight is None else Scale(module, weight, bias)
    if isinstance(module, nn.Flatten) and kind is nn.Flatten:
        return Plain(module) if (module.start_dim, module.end_dim) == (1, -1) else None
    if kind is nn.Dropout and not module.training:
        return Plain(nn.Identity())
    if kind in _RECORDWISE and not getattr(module, "return_indices", False):
        return Plain(_not_in_place(module))
    return None


def _not_in_place(module: nn.Module) -> nn.Module:
    """In-place activations would overwrite what was captured."""
    if not getattr(module, "inplace", False):
        return module
    quiet = copy.copy(module)
    quiet.inplace = False  # type: ignore[assignment]
    return quiet


def _pool_before_relu(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Max-pooling commutes with ReLU, values and gradients alike, and leaves it a quarter of the work."""
    order = list(layers)
    for i, (first, second) in enumerate(pairwise(layers)):
        if (
            isinstance(first, Plain)
            and isinstance(second, Plain)
            and isinstance(first.module, nn.ReLU)
            and isinstance(second.module, nn.MaxPool2d)
        ):
            order[i], order[i + 1] = second, first
    return tuple(order)
