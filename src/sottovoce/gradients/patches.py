"""Convolutions as matrix products: the patches of an image, one copy of a view and no per-record kernel.

With patches X (taps × positions) the weight gradient of one record is δXᵀ, and a convolution with a weight of
its own for each client is one batched matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

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
