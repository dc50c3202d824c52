"""What a GPU does in its own way: float64 sums of float32 gradients without a copy of them, and patches.

Where Triton is installed, which CUDA builds of torch bring along, kernels of ours (`kernels`) read what torch
would copy first. Each function gives what torch's own operations give, and is tested against them; without
kernels it is those operations. With patches X (taps × positions) of a convolution's `Window` the weight
gradient of one record is δXᵀ, and a convolution with a weight of its own for each client is one batched
matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        pairs = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return cls(*cast(tuple[tuple[int, int], ...], pairs))

    def places(self, height: int, width: int) -> tuple[int, int]:
        """Returns how many positions it takes in an image, down and across."""
        down, across = (
            (side + 2 * p - d * (s - 1) - 1) // step + 1
            for side, p, d, s, step in zip(
                (height, width), self.padding, self.dilation, self.size, self.stride, strict=True
            )
        )
        return down, across

    def patches(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, taps·channels, positions)."""
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
        n, _, height, width = taps.shape[:4]
        if by_channel:
            return taps.permute(0, 2, 3, 4, 5, 1).reshape(n, height * width, -1).transpose(1, 2)
        return taps.permute(0, 4, 5, 1, 2, 3).reshape(n, -1, height * width)


def on_gpu(values: Tensor) -> bool:
    """Returns whether this is worked on as a GPU likes it."""
    return values.device.type != "cpu"


@cache
def kernels(device: str) -> ModuleType | None:
    """Our kernels, for devices that have them."""
    if device != "cuda":
        return None
    try:
        from sottovoce.gradients import kernels as found
    except ImportError:
        return None
    return found


def squares(values: Tensor, dim: int) -> Tensor:
    """Σ v² along an axis, in float64."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=dim, dtype=torch.float64)
    return norms.square()


def exact(values: Tensor, scales: Tensor) -> Tensor:
    """`values` in float64, with zeros where the scale is zero, so that nothing non-finite meets a product."""
    return torch.where(scales > 0, values, values.new_zeros(1, dtype=torch.float64))


def weighted_sum(values: Tensor, scales: Tensor) -> Tensor:
    """Σ scale·value over records with a scale above zero: float64 (clients, size).

    `values` are (clients, size, records) of any strides, `scales` float64 (clients, records).
    """
    found = kernels(values.device.type)
    if found is None:
        return torch.bmm(exact(values, scales[:, None]), scales[:, :, None]).squeeze(2)
    total: Tensor = found.weighted_sum(values, scales)
    return total


def patches(window: Window, images: Tensor) -> Tensor:
    """`Window.patches`, (n, taps·channels, positions); not for images that a gradient is asked of."""
    found = kernels(images.device.type)
    taken: Tensor = window.patches(images) if found is None else found.patches(window, images)
    return taken


def convolved(window: Window, images: Tensor, weights: Tensor) -> Tensor:
    """A convolution of each image with weights of its own (n, filters, taps·channels), by patches."""
    if kernels(images.device.type) is None:
        size = window.places(*images.shape[2:])
        return torch.bmm(weights, window.patches(images)).reshape(len(images), -1, *size)
    out: Tensor = _Convolved.apply(images, weights, window)  # type: ignore[no-untyped-call]
    return out


class _Convolved(torch.autograd.Function):
    """Keeps no patches: the gradient of images needs the weights alone."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weights: Tensor, window: Window) -> Tensor:
        ctx.window, ctx.size = window, images.shape
        ctx.save_for_backward(weights)
        size = window.places(*images.shape[2:])
        return torch.bmm(weights, patches(window, images)).reshape(len(images), -1, *size)

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (weights,) = ctx.saved_tensors
        found = kernels(deltas.device.type)
        assert found is not None
        return found.fold(ctx.window, torch.bmm(weights.mT, deltas.flatten(2)), ctx.size), None, None


def pooled(pool: nn.MaxPool2d, images: Tensor) -> Tensor | None:
    """Returns what the module gives, by a kernel; None where there is none for such windows."""
    side = pool.kernel_size
    apart = (pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
    if not isinstance(side, int) or apart != (side, 0, 1, False) or kernels(images.device.type) is None:
        return None
    out: Tensor = _Pooled.apply(images, side)  # type: ignore[no-untyped-call]
    return out


class _Pooled(torch.autograd.Function):
    """Windows that do not overlap: a gradient has one place to go, in a byte beside every output."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, side: int) -> Tensor:
        found = kernels(images.device.type)
        assert found is not None
        out, which = found.pool(images, side)
        ctx.side, ctx.size = side, images.shape
        ctx.save_for_backward(which)
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor, None]:
        found = kernels(deltas.device.type)
        assert found is not None
        (which,) = ctx.saved_tensors
        return found.unpool(deltas, which, ctx.side, ctx.size), None
