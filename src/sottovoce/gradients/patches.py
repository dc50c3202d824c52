"""Convolutions as matrix products: the patches of an image, one copy of a view and no per-record kernel.

With patches X (taps × positions) the weight gradient of one record is δXᵀ, and a convolution with a weight of
its own for each client is one batched matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F


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

    def patches(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(n, channels, height, width) to (n, channels·taps, positions), and the (height, width) of
        positions.
        """
        (vertical, horizontal), (down, across) = self.padding, self.stride
        if vertical or horizontal:
            images = F.pad(images, (horizontal, horizontal, vertical, vertical))
        spans = [d * (s - 1) + 1 for d, s in zip(self.dilation, self.size, strict=True)]
        # Contiguous rows make the copy of the overlapping view run along positions, several times faster.
        windows = images.contiguous().unfold(2, spans[0], down).unfold(3, spans[1], across)
        taps = windows[..., :: self.dilation[0], :: self.dilation[1]]
        n, _, height, width = taps.shape[:4]
        return taps.permute(0, 1, 4, 5, 2, 3).reshape(n, -1, height * width), (height, width)


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    first, second = value
    return first, second
