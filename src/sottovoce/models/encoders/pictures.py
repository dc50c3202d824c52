"""Pictures for an encoder: the middle square, scaled by bicubic interpolation; and EfficientNet-Lite0.

The network (Tan and Le 2019, in its Lite form: no squeeze, ReLU6, fixed normalization) runs as published,
with normalization folded into its convolutions. Padding is TensorFlow's: at a stride of two it is one-sided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sottovoce.data.pictures import pixels
from sottovoce.data.section import DataError
from sottovoce.models.encoders import Description, EncoderError, Network, Preparation, Prepared

STAGES = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
"""Blocks of each stage, the size of their filters, and the stride of the first."""
_EPSILON = 1e-3


def picture(item: Any, told: Preparation) -> Prepared | None:
    """A picture (C, H, W), its values in [0, 1] or bytes, or its file's content, as (3, side, side)."""
    if isinstance(item, bytes):
        try:
            item = torch.from_numpy(pixels(item, told.side))
        except DataError:
            return None
    if item.shape[0] not in (1, 3):
        raise EncoderError(f"a picture has 1 or 3 colors, not {item.shape[0]}: give (C, H, W)")
    if not bool(torch.isfinite(item).all()):
        return None
    height, width = item.shape[1:]
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = item[:, top : top + short, left : left + short]
    x = square.float() / 255 if item.dtype == torch.uint8 else square.float()
    if short != told.side:
        size = (told.side, told.side)
        x = functional.interpolate(x[None], size, mode="bicubic", align_corners=False, antialias=True)[0]
        x = x.clamp(0, 1)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (told.mean, told.std))
    return (((x.expand(3, -1, -1) - mean) / std).contiguous(),)


class Lite0(Network):
    """EfficientNet-Lite0 without its classifier: pictures (b, 3, side, side) to 1,280 numbers."""

    def __init__(self, described: Description, device: str, weights: Mapping[str, Tensor]) -> None:
        super().__init__(described, device)

        def folded(convolution: str, norm: str) -> tuple[Tensor, Tensor]:
            scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _EPSILON).sqrt()
            kernel = weights[f"{convolution}.weight"] * scale.view(-1, 1, 1, 1)
            kernel = kernel.contiguous(memory_format=torch.channels_last)
            return kernel.to(device), (weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale).to(
                device
            )

        try:
            self._stem, self._head = folded("_conv_stem", "_bn0"), folded("_conv_head", "_bn1")
            self._blocks = []
            strides = [stride if first == 0 else 1 for n, _, stride in STAGES for first in range(n)]
            for place, stride in enumerate(strides):
                at = f"_blocks.{place}."
                expand = folded(f"{at}_expand_conv", f"{at}_bn0") if place else None
                depth = folded(f"{at}_depthwise_conv", f"{at}_bn1")
                self._blocks.append((expand, depth, folded(f"{at}_project_conv", f"{at}_bn2"), stride))
        except (KeyError, RuntimeError):
            raise EncoderError(f"{described.name} is no EfficientNet-Lite0: add it again") from None

    def prepare(self, item: Any) -> Prepared | None:
        return picture(item, self.described.preparation)

    def run(self, *tile: Tensor) -> Tensor:
        [x] = tile
        x = functional.relu6(_convolved(x.contiguous(memory_format=torch.channels_last), *self._stem, 2))
        for expand, depth, project, stride in self._blocks:
            y = x if expand is None else functional.relu6(functional.conv2d(x, *expand))
            y = functional.relu6(_convolved(y, *depth, stride, groups=len(depth[0])))
            y = functional.conv2d(y, *project)
            x = x + y if stride == 1 and x.shape == y.shape else y
        return functional.relu6(functional.conv2d(x, *self._head)).mean(dim=(2, 3))


def _convolved(x: Tensor, kernel: Tensor, bias: Tensor, stride: int, groups: int = 1) -> Tensor:
    """A convolution that keeps ⌈size/stride⌉ places; where the padding is odd, more of it lies behind."""
    width = kernel.shape[-1]
    pads = []
    for size in (x.shape[3], x.shape[2]):
        missing = max(0, (-(-size // stride) - 1) * stride + width - size)
        pads += [missing // 2, missing - missing // 2]
    return functional.conv2d(functional.pad(x, pads), kernel, bias, stride, groups=groups)
