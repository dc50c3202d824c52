"""The layers of which the fast paths know how a record's gradient is made, each for many clients at once.

Inputs are flat over n = clients × records; parameters have a leading axis of clients. A layer's `forward`
gives its output and what to capture of its input; what a record's gradient is, given the loss gradients δ
of the output: δ ⊗ x for `Linear`, δXᵀ with patches X for `Convolution`, δ·x̂ summed over positions for
`Scale`, δ for a bias.

Convolutions are matrix products with the patches of an image (`Window`), one copy of a view and no per-record
kernel. With patches X (taps × positions) the weight gradient of one record is δXᵀ, and a convolution with a
weight of its own for each client is one batched matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.gradients import gpu

_MANY_CHANNELS = 8


@dataclass(frozen=True)
class Window:
    """How a convolution slides over its input; pairs are (height, width)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(cls, layer: nn.Conv2d) -> Window:
        padding = layer.padding
        assert not isinstance(padding, str)
        return cls(_pair(layer.kernel_size), _pair(layer.stride), _pair(padding), _pair(layer.dilation))

    def places(self, height: int, width: int) -> tuple[int, int]:
        """Returns how many positions it takes in an image, down and across."""
        down, across = (
            (side + 2 * p - d * (s - 1) - 1) // step + 1
            for side, p, d, s, step in zip(
                (height, width), self.padding, self.dilation, self.size, self.stride, strict=True
            )
        )
        return down, across

    def patches(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(n, channels, height, width) to (n, taps·channels, positions), with the positions' height and
        width.
        """
        (vertical, horizontal), (down, across) = self.padding, self.stride
        if vertical or horizontal:
            images = F.pad(images, (horizontal, horizontal, vertical, vertical))
        # The longer of positions and channels should run along memory: copying the view is faster so.
        by_channel = images.shape[1] >= _MANY_CHANNELS
        layout = torch.channels_last if by_channel else torch.contiguous_format
        spans = [d * (s - 1) + 1 for d, s in zip(self.dilation, self.size, strict=True)]
        windows = (
            images.contiguous(memory_format=layout).unfold(2, spans[0], down).unfold(3, spans[1], across)
        )
        taps = windows[..., :: self.dilation[0], :: self.dilation[1]]
        n, _, *size = taps.shape[:4]
        if by_channel:
            found = taps.permute(0, 2, 3, 4, 5, 1).reshape(n, size[0] * size[1], -1).transpose(1, 2)
        else:
            found = taps.permute(0, 4, 5, 1, 2, 3).reshape(n, -1, size[0] * size[1])
        return found, (size[0], size[1])


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    first, second = value
    return first, second


Parameters = dict[str, Tensor]

# Bytes of patches that a CPU's caches hold, as they are written and read again at once.
_IN_CACHE = 3 * 2**20


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
        weight = parameters[self.weight].transpose(1, 2)
        out = product(by_client(h, len(weight)), weight)
        if self.bias is not None:
            out = out + parameters[self.bias].unsqueeze(1)
        return out.flatten(0, 1), h

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
            return self._one_client(h, weight[0], None if bias is None else bias[0])
        taps = weight.movedim(2, -1).flatten(2).unsqueeze(1)
        each = taps.expand(-1, len(h) // len(weight), -1, -1).flatten(0, 1)  # a weight for every record
        out = gpu.convolved(self.window, h, each)
        if bias is not None:
            out = by_client(out, len(weight)) + bias[:, None, :, None, None]
            out = out.flatten(0, 1)
        return out, h

    def _one_client(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        window = self.window
        h = channels_last(h)
        out = F.conv2d(h, channels_last(weight), bias, window.stride, window.padding, window.dilation)
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
            torch.bmm(self.window.patches(images[part])[0], by_position[part], out=out[part])
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


def product(left: Tensor, right: Tensor) -> Tensor:
    """The products of two batches of matrices; that of a batch of one is twice as fast without the batch."""
    return (left[0] @ right[0]).unsqueeze(0) if len(left) == 1 else torch.bmm(left, right)


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
