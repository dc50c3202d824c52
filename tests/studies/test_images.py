"""Generated pictures are a function of the seed, in range, and different from one another."""

from __future__ import annotations

import pytest
import torch
from studies.images import (
    filter_stacks,
    generate,
    gratings,
    scenes,
    sine_networks,
    spectra,
    textures,
)
from torch import Tensor


def _rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_seed_alone_decides_the_pictures() -> None:
    first = generate(6, 24, _rng(1))
    assert torch.equal(first, generate(6, 24, _rng(1)))
    assert not torch.equal(first, generate(6, 24, _rng(2)))


def test_pictures_are_in_range_and_none_is_flat() -> None:
    pictures = generate(32, 24, _rng(3))
    assert pictures.shape == (32, 3, 24, 24)
    assert pictures.min() >= 0
    assert pictures.max() <= 1
    assert pictures.std((1, 2, 3)).min() > 0.01


@pytest.mark.parametrize("kind", [spectra, filter_stacks, sine_networks, gratings, textures])
def test_textures_are_standardized(kind: object) -> None:
    made: Tensor = kind(16, 20, _rng(4))  # type: ignore[operator]
    assert made.shape == (16, 3, 20, 20)
    torch.testing.assert_close(made.mean((1, 2, 3)), torch.zeros(16), atol=1e-3, rtol=0)
    torch.testing.assert_close(made.std((1, 2, 3)), torch.ones(16), atol=1e-2, rtol=0)


def test_leaves_hide_what_is_behind_them() -> None:
    fills = textures(16, 24, _rng(5))
    assert (scenes(fills, _rng(6)) - fills).abs().flatten(1).max(1).values.min() > 0.1


def test_the_share_of_scenes_is_the_one_asked_for() -> None:
    assert torch.equal(generate(8, 16, _rng(7), share=1.0), generate(8, 16, _rng(7), share=1.1))
    assert not torch.equal(generate(8, 16, _rng(7), share=1.0), generate(8, 16, _rng(7), share=0.0))
