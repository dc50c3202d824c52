"""The layers of which the fast paths know how a record's gradient is made, each for many clients at once.

Inputs are flat over n = clients × records; parameters have a leading axis of clients. A layer's `forward`
gives its output and what to capture of its input; what a record's gradient is, given the loss gradients δ
of the output: δ ⊗ x for `Linear`, δXᵀ with patches X for `Convolution`, δ·x̂ summed over positions for
`Scale`, δ for a bias.

A model is a stack of such layers, run once to capture what gradients are made of: one forward and one
backward pass over a batch give, for every layer, its inputs and the loss gradients of its outputs, and each
record's parameter gradient is a product of the two. Only nested `nn.Sequential`s of well-known
layers, each used once, are taken for a stack: everything else is left to `vmap`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.gradients import gpu
from sottovoce.gradients.gpu import Window
from sottovoce.models.parameters import trainable
from sottovoce.models.tasks import Losses
from sottovoce.models.tiles import TILE, WHOLE

Parameters = dict[str, Tensor]

# Bytes of patches that a CPU's caches hold, as they are written and read again at once.
_IN_CACHE = 3 * 2**20
_RECORDWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip


@dataclass(frozen=True)
class Plain:
    """A layer without parameters that keeps records apart."""

    module: nn.Module

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor | None = gpu.pooled(self.module, h) if isinstance(self.module, nn.MaxPool2d) else None
        return self.module(h) if out is None else out


@dataclass(frozen=True)
class Linear:
    """z = W x + b for inputs (n, inputs)."""

    weight: str
    bias: str | None

    def forward(self, h: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
        weight = parameters[self.weight]
        outputs, inputs = weight.shape[1:]
        more = -inputs % WHOLE if h.requires_grad else 0  # columns of the product that goes back
        right = F.pad(weight, (0, more, 0, -outputs % WHOLE)).transpose(1, 2)
        out = product(F.pad(h, (0, more)) if more else h, right)[:, :outputs]
        if self.bias is not None:
            out = by_client(out, len(weight)) + parameters[self.bias].unsqueeze(1)
            out = out.flatten(0, 1)
        return out, h

    def flat_gradients(self, inputs: Tensor, deltas: Tensor) -> Tensor:
        """Of the weight, (n, outputs·inputs)."""
        return (deltas.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)

    def bias_gradients(self, deltas: Tensor) -> Tensor:
        """(n, outputs)."""
        return deltas


@dataclass(frozen=True)
class Convolution:
    """z = W ⋆ x + b for images (n, channels, height, width)."""

    weight: str
    bias: str | None
    window: Window

    def forward(self, h: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
        weight = parameters[self.weight]
        bias = None if self.bias is None else parameters[self.bias]
        if len(weight) == 1 and not gpu.on_gpu(h):
            h, own = channels_last(h), None if bias is None else bias[0]
            steps = self.window.stride, self.window.padding, self.window.dilation
            return F.conv2d(h, channels_last(weight[0]), own, *steps), h
        taps = weight.movedim(2, -1).flatten(2).unsqueeze(1)
        each = taps.expand(-1, len(h) // len(weight), -1, -1).flatten(0, 1)  # a weight for every record
        out = gpu.convolved(self.window, h, each)
        if bias is not None:
            out = by_client(out, len(weight)) + bias[:, None, :, None, None]
            out = out.flatten(0, 1)
        return out, h

    def weight_gradients(self, images: Tensor, deltas: Tensor) -> Tensor:
        """(n, taps·channels, filters) for input images, captured or sketched; filters last, as in δ."""
        n, by_position = len(images), deltas.flatten(2).transpose(1, 2)
        if gpu.on_gpu(images):
            return torch.bmm(gpu.patches(self.window, images), by_position)
        window = self.window.size
        out = deltas.new_empty(n, window[0] * window[1] * images.shape[1], deltas.shape[1])
        each = max(1, _IN_CACHE // (out.shape[1] * by_position.shape[1] * images.element_size()))
        for start in range(0, n, each):
            part = slice(start, start + each)
            torch.bmm(self.window.patches(images[part]), by_position[part], out=out[part])
        return out

    def flat_gradients(self, inputs: Tensor, deltas: Tensor) -> Tensor:
        """Of the weight, (n, filters·channels·taps)."""
        by_tap = self.weight_gradients(inputs, deltas)
        n, filters, channels = len(inputs), deltas.shape[1], inputs.shape[1]
        return by_tap.reshape(n, -1, channels, filters).permute(0, 3, 2, 1).reshape(n, -1)

    def bias_gradients(self, deltas: Tensor) -> Tensor:
        """(n, filters)."""
        return deltas.sum((2, 3))


@dataclass(frozen=True)
class Scale:
    """z = γ·x̂ + β for normalized x̂: GroupNorm (channels first) or LayerNorm (the parameter's axes last)."""

    norm: nn.GroupNorm | nn.LayerNorm
    weight: str
    bias: str | None

    def forward(self, h: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
        if isinstance(self.norm, nn.GroupNorm):
            normalized = F.group_norm(h, self.norm.num_groups, eps=self.norm.eps)
        else:
            normalized = F.layer_norm(h, self.norm.normalized_shape, eps=self.norm.eps)
        grouped = by_client(normalized, len(parameters[self.weight]))
        out = grouped * self._spread(parameters[self.weight], grouped.ndim)
        if self.bias is not None:
            out = out + self._spread(parameters[self.bias], grouped.ndim)
        return out.flatten(0, 1), normalized.detach()

    def _spread(self, parameter: Tensor, ndim: int) -> Tensor:
        """(clients, *shape) made broadcastable to (clients, records, ...)."""
        missing = (1,) * (ndim - parameter.ndim - 1)
        clients, *shape = parameter.shape
        if isinstance(self.norm, nn.GroupNorm):
            return parameter.reshape(clients, 1, *shape, *missing)
        return parameter.reshape(clients, 1, *missing, *shape)

    def flat_gradients(self, inputs: Tensor, deltas: Tensor) -> Tensor:
        """Of the weight, (n, size of the parameter)."""
        return self.bias_gradients(inputs * deltas)

    def bias_gradients(self, deltas: Tensor) -> Tensor:
        """(n, size of the parameter)."""
        if isinstance(self.norm, nn.GroupNorm):
            return deltas.flatten(2).sum(2) if deltas.ndim > 2 else deltas
        size = int(torch.Size(self.norm.normalized_shape).numel())
        return deltas.reshape(len(deltas), -1, size).sum(1)


Parametric = Linear | Convolution | Scale
Layer = Parametric | Plain


def product(rows: Tensor, right: Tensor) -> Tensor:
    """Rows (n, inputs) times the matrices (clients, inputs, outputs) of their clients: (n, outputs).

    On a CPU there is one client, and each tile is a product by itself, all of one shape.
    """
    if len(right) == 1 and len(rows) % TILE == 0 and not gpu.on_gpu(rows):
        right = right.expand(len(rows) // TILE, -1, -1)
    return torch.bmm(by_client(rows, len(right)), right).flatten(0, 1)


def by_client(values: Tensor, clients: int) -> Tensor:
    """(clients·records, ...) to (clients, records, ...), as a view."""
    return values.view(clients, -1, *values.shape[1:])


def record_last(values: Tensor, clients: int) -> Tensor:
    """(clients·records, ...) to (clients, ..., records), as a view."""
    return by_client(values, clients).movedim(1, -1)


def channels_last(images: Tensor) -> Tensor:
    """The same images with channels fastest in memory: pooling is six times faster so, on a CPU."""
    n, channels, height, width = images.shape
    if channels > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts look contiguous, and torch would fall back to the slow one downstream.
    return images.contiguous().as_strided((n, 1, height, width), (height * width, 1, width, 1))


@dataclass(frozen=True)
class Capture:
    """What one layer with parameters saw of n = clients × records, and the loss gradients of its outputs."""

    layer: Parametric
    inputs: Tensor
    deltas: Tensor


def written(seen: Capture) -> Iterator[tuple[str, Tensor]]:
    """A layer's gradients (n, size of the parameter) by name; a convolution's weight is written by taps."""
    layer = seen.layer
    if isinstance(layer, Convolution):
        yield layer.weight, layer.weight_gradients(seen.inputs, seen.deltas).flatten(1)
    else:
        yield layer.weight, layer.flat_gradients(seen.inputs, seen.deltas)
    if layer.bias is not None:
        yield layer.bias, layer.bias_gradients(seen.deltas)


def steps(layers: tuple[Layer, ...], parameters: Parameters, x: Tensor) -> list[Tensor] | None:
    """What each layer makes of records x (n, …); None where their shape does not fit a stack.

    Parameters are (clients, *shape).
    """
    h, found = x, []
    for layer in layers:
        if (isinstance(layer, Linear) and h.ndim != 2) or (isinstance(layer, Convolution) and h.ndim != 4):
            return None
        h = layer.forward(h) if isinstance(layer, Plain) else layer.forward(h, parameters)[0]
        found.append(h)
    return found if h.ndim == 2 else None


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
