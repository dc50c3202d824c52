"""Pictures for an encoder: the middle square, one way for arrays and files, and Lite0's layers."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import Description, Preparation
from sottovoce.models.encoders.pictures import STAGES, Lite0, picture

TOLD = Preparation(side=16, mean=(0.5,), std=(0.25,))


def _file(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_bytes_numbers_and_a_file_of_one_picture_are_one() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    array = torch.from_numpy(pixels).permute(2, 0, 1)
    [wanted] = picture(array, TOLD) or ()
    assert torch.allclose(wanted, (array / 255 - 0.5) / 0.25)
    for other in (array / 255, _file(pixels)):
        [found] = picture(other, TOLD) or ()
        assert torch.equal(found, wanted)


def test_the_middle_square_counts_whatever_the_sides_are() -> None:
    wide = torch.rand(3, 16, 40)
    assert torch.equal((picture(wide, TOLD) or ())[0], (picture(wide[:, :, 12:28], TOLD) or ())[0])
    assert (picture(torch.rand(1, 1, 5000), TOLD) or ())[0].shape == (3, 16, 16)


def test_gray_is_three_colors_alike_and_four_are_refused() -> None:
    gray = torch.rand(1, 20, 20)
    assert torch.equal((picture(gray, TOLD) or ())[0], (picture(gray.expand(3, -1, -1), TOLD) or ())[0])
    with pytest.raises(SottovoceError, match="1 or 3 colors, not 4"):
        picture(torch.rand(4, 20, 20), TOLD)


def test_what_is_no_picture_is_none() -> None:
    assert picture(b"", TOLD) is None
    assert picture(torch.full((3, 4, 4), torch.nan), TOLD) is None


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """Weights of the shapes that the published ones have."""
    rng = torch.Generator().manual_seed(0)
    widths, filters = (16, 24, 40, 80, 112, 192, 320), iter(range(10**6))
    found: dict[str, Tensor] = {}

    def layer(name: str, norm: str, *shape: int) -> None:
        scale = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        found[f"{name}.weight"] = scale * torch.randn(shape, generator=rng)
        found[f"{norm}.weight"] = 1 + 0.1 * torch.randn(shape[0], generator=rng)
        found[f"{norm}.bias"] = 0.1 * torch.randn(shape[0], generator=rng)
        found[f"{norm}.running_mean"] = 0.1 * torch.randn(shape[0], generator=rng)
        found[f"{norm}.running_var"] = 0.5 + torch.rand(shape[0], generator=rng)

    layer("_conv_stem", "_bn0", 32, 3, 3, 3)
    inputs = 32
    for (count, width, _), outputs in zip(STAGES, widths, strict=True):
        for _ in range(count):
            place = next(filters)
            at, inner = f"_blocks.{place}.", inputs * (6 if place else 1)
            if place:
                layer(f"{at}_expand_conv", f"{at}_bn0", inner, inputs, 1, 1)
            layer(f"{at}_depthwise_conv", f"{at}_bn1", inner, 1, width, width)
            layer(f"{at}_project_conv", f"{at}_bn2", outputs, inner, 1, 1)
            inputs = outputs
    layer("_conv_head", "_bn1", 1280, 320, 1, 1)
    return found


def _described() -> Description:
    return Description("lite", "image", 1280, "efficientnet-lite0", Preparation(side=32), {})


def test_lite0_is_its_layers_one_by_one_with_normalization_unfolded(weights: dict[str, Tensor]) -> None:
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def step(x: Tensor, name: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        width, total = kernel.shape[-1], -(-x.shape[-1] // stride)
        missing = max((total - 1) * stride + width - x.shape[-1], 0)
        padded = torch.zeros(*x.shape[:2], x.shape[2] + missing, x.shape[3] + missing)
        first = missing // 2  # TensorFlow's "same"
        padded[:, :, first : first + x.shape[2], first : first + x.shape[3]] = x
        found = torch.conv2d(padded, kernel, stride=stride, groups=groups)
        told = [weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return torch.nn.functional.batch_norm(found, *told, eps=1e-3)

    y = step(x, "_conv_stem", "_bn0", 2).clamp(0, 6)
    place = 0
    for count, _, stride in STAGES:
        for first in range(count):
            at, before = f"_blocks.{place}.", y
            if place:
                y = step(y, f"{at}_expand_conv", f"{at}_bn0").clamp(0, 6)
            here = stride if first == 0 else 1
            y = step(y, f"{at}_depthwise_conv", f"{at}_bn1", here, y.shape[1]).clamp(0, 6)
            y = step(y, f"{at}_project_conv", f"{at}_bn2")
            y, place = (y + before if first else y), place + 1
    wanted = step(y, "_conv_head", "_bn1").clamp(0, 6).mean(dim=(2, 3))
    found = Lite0(_described(), "cpu", weights).run(x)
    assert found.shape == (2, 1280)
    assert float(wanted.std()) > 0.01
    assert torch.allclose(found, wanted, atol=1e-4)


def test_other_weights_are_refused(weights: dict[str, Tensor]) -> None:
    with pytest.raises(SottovoceError, match="no EfficientNet-Lite0"):
        Lite0(_described(), "cpu", {name: weights[name] for name in list(weights)[:-1]})
