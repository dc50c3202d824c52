"""Scattering against convolutions written out as sums, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sottovoce.models.features.fixed import COEFFICIENTS, Scattering, extended, gaussian, mirrored, morlet


def _convolved(values: Tensor, kernel: Tensor) -> Tensor:
    """Σ over input places of kernel[out…, in…]·values[in…]."""
    return torch.einsum("abij,ij->ab", kernel, values.to(kernel.dtype))


def _kernel(outs: tuple[Tensor, Tensor], ins: tuple[Tensor, Tensor], scale: int, orientation: int) -> Tensor:
    """ψ between places of a torus, as (out row, out column, in row, in column)."""
    lengths = [len(axis) for axis in ins]
    wave = torch.zeros(*(len(a) for a in outs), *lengths, dtype=torch.complex128)
    window = torch.zeros_like(wave)
    for down in range(-2, 3):
        for right in range(-2, 3):
            dy = (outs[0][:, None] - ins[0])[:, None, :, None] + down * lengths[0]
            dx = (outs[1][:, None] - ins[1])[None, :, None, :] + right * lengths[1]
            parts = morlet(dy, dx, scale, orientation)
            wave += parts[0]
            window += parts[1]
    return wave - wave[0, 0].sum() / window[0, 0].sum() * window


def _smooth(
    values: Tensor, places: tuple[Tensor, Tensor], grid: tuple[Tensor, Tensor], spacing: int
) -> Tensor:
    for axis, (here, there) in enumerate(zip(places, grid, strict=True)):
        period = len(here) * spacing
        weights = sum(gaussian(there[:, None] - here + turn * period) for turn in range(-2, 3))
        values = torch.tensordot(spacing * weights, values, dims=([1], [axis])).movedim(0, axis)
    return values


@pytest.mark.parametrize("shape", [(8, 12), (9, 7)])
def test_scattering_is_the_convolutions_of_its_definition(shape: tuple[int, int]) -> None:
    picture = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    padded = picture[extended(shape[0])][:, extended(shape[1])]
    full = tuple(torch.arange(n, dtype=torch.float64) for n in padded.shape)
    half = tuple(torch.arange(n // 2, dtype=torch.float64) * 2 + 0.5 for n in padded.shape)
    coarse = tuple(torch.arange((n - 8) // 4, dtype=torch.float64) * 4 + 5.5 for n in padded.shape)
    ours = Scattering(*shape, dtype=torch.float64)(picture[None, None])[0, 0]

    at_half = [_kernel(half, full, 1, o) for o in range(8)]  # type: ignore[arg-type]
    torch.testing.assert_close(ours[0, 0], _smooth(padded, full, coarse, 1))  # type: ignore[arg-type]
    for first in range(8):
        inner = _convolved(padded, _kernel(full, full, 0, first)).abs()  # type: ignore[arg-type]
        torch.testing.assert_close(ours[0, 1 + first], _smooth(inner, full, coarse, 1))  # type: ignore[arg-type]
        outer = _convolved(padded, at_half[first]).abs()
        torch.testing.assert_close(ours[1 + first, 0], _smooth(outer, half, coarse, 2))  # type: ignore[arg-type]
        for second in range(8):
            outer = _convolved(inner, at_half[second]).abs()
            expected = _smooth(outer, half, coarse, 2)  # type: ignore[arg-type]
            torch.testing.assert_close(ours[1 + first, 1 + second], expected)


@pytest.mark.parametrize("shape", [(32, 32), (28, 28), (5, 18)])
def test_a_mirror_image_needs_no_transform_of_its_own(shape: tuple[int, int]) -> None:
    x = torch.rand(2, 3, *shape, dtype=torch.float64)
    scatter = Scattering(*shape, dtype=torch.float64)
    assert scatter.mirrors
    torch.testing.assert_close(mirrored(scatter(x)), scatter(x.flip(-1)))


def test_float32_is_close_to_float64() -> None:
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    exact = Scattering(32, 32, dtype=torch.float64)(x)
    torch.testing.assert_close(Scattering(32, 32)(x.float()).double(), exact, atol=2e-6, rtol=1e-4)


def test_a_flat_picture_excites_no_wavelet() -> None:
    out = Scattering(28, 28, dtype=torch.float64)(torch.full((1, 1, 28, 28), 0.7, dtype=torch.float64))
    torch.testing.assert_close(
        out[0, 0, 0, 0], torch.full((7, 7), 0.7, dtype=torch.float64), atol=1e-5, rtol=0
    )
    assert out.flatten()[49:].abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (17, 40)])
def test_every_size_gives_a_quarter_of_it_rounded_up(shape: tuple[int, int]) -> None:
    out = Scattering(*shape)(torch.rand(2, 1, *shape))
    assert out.shape == (2, 1, 9, 9, -(-shape[0] // 4), -(-shape[1] // 4))
    assert out[0, 0, :, :, 0, 0].numel() == COEFFICIENTS
    assert torch.isfinite(out).all()
