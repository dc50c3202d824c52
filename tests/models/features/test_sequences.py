"""Series and tokens: bounded descriptions of one record alone, which say what a linear model cannot."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sottovoce.models.features import open_features
from sottovoce.models.features.fixed import SIZE


def described(name: str, x: Tensor) -> Tensor:
    return open_features(name, tuple(x.shape[1:]))(x)


@pytest.mark.parametrize("shape", [(64, 3), (1, 1), (7, 1), (9, 80), (1001, 2)])
def test_series_of_any_length_have_unit_norm(shape: tuple[int, int]) -> None:
    out = described("spectrum", torch.randn(4, *shape, generator=torch.Generator().manual_seed(1)))
    assert out.shape == (4, SIZE)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e6, 1e15])
def test_numbers_of_any_size_are_bounded(size: float) -> None:
    out = described("spectrum", size * torch.randn(3, 32, 2))
    torch.testing.assert_close(out.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("name", ["spectrum", "ngrams"])
def test_a_description_is_of_one_record_alone(name: str) -> None:
    rng = torch.Generator().manual_seed(2)
    x = (
        torch.randn(300, 40, 3, generator=rng)
        if name == "spectrum"
        else torch.randint(90, (300, 40), generator=rng)
    )
    torch.testing.assert_close(
        described(name, x)[[0, 299]], described(name, x[[0, 299]]), atol=1e-5, rtol=1e-4
    )


def test_a_series_that_is_not_finite_and_a_token_outside_the_vocabulary_make_a_record_unusable() -> None:
    series, tokens = torch.randn(3, 16, 2), torch.randint(9, (3, 16))
    series[1, 4, 0], tokens[1, 4] = math.inf, -1
    for out in (described("spectrum", series), described("ngrams", tokens)):
        assert out.isfinite().all(dim=1).tolist() == [True, False, True]


def waves(hertz: float, starts: Tensor) -> Tensor:
    """Windows of one wave that begin anywhere in it."""
    t = torch.arange(64) / 20
    return torch.sin(2 * math.pi * hertz * t + starts[:, None]).unsqueeze(2)


def test_when_a_window_begins_says_little_and_its_rhythm_much() -> None:
    starts = 2 * math.pi * torch.rand(20, generator=torch.Generator().manual_seed(3))
    slow, fast = (described("spectrum", waves(hertz, starts)) for hertz in (1.5, 3.5))
    assert (slow[:10] @ slow[10:].T).mean() > (slow @ fast.T).mean() + 0.1
    slow, fast = slow[:, SIZE // 2 :], fast[:, SIZE // 2 :]  # the rhythm
    assert (slow[:10] @ slow[10:].T).min() > (slow @ fast.T).max()


def test_one_value_of_a_large_scale_does_not_hide_another() -> None:
    """Heart rate beside acceleration: what changes in the small one is seen as if both were alike."""
    starts = torch.zeros(1)
    small = [torch.cat([waves(hertz, starts), waves(2.0, starts)], dim=2) for hertz in (1.5, 3.5)]
    large = [torch.cat([one[..., :1], 1000 * one[..., 1:]], dim=2) for one in small]
    distances = [
        float((described("spectrum", a) - described("spectrum", b)).norm()) for a, b in (small, large)
    ]
    assert distances[1] > 0.7 * distances[0] > 0.1


def test_tokens_are_described_by_which_and_beside_which_not_where() -> None:
    base = torch.tensor([[5, 6, 7, 8, 0, 0, 0, 0]])
    moved, turned, other = (
        torch.tensor([row])
        for row in ([0, 0, 0, 0, 5, 6, 7, 8], [8, 7, 6, 5, 0, 0, 0, 0], [1, 2, 3, 4, 0, 0, 0, 0])
    )
    same, order, words = (
        float(described("ngrams", base) @ described("ngrams", x).T) for x in (moved, turned, other)
    )
    assert same > order > words


def test_hashes_are_the_same_on_every_machine_and_spread() -> None:
    out = described("ngrams", torch.arange(30_000).view(-1, 1))
    places = out.abs().argmax(dim=1)
    assert places[:4].tolist() == [860, 448, 1179, 528]
    counts = torch.bincount(places, minlength=SIZE).float()
    # 30,000 balls in 2,048 bins: a chi-square of 2,047 degrees has deviation 64.
    assert abs((counts - counts.mean()).square().sum() / counts.mean() - (SIZE - 1)) < 5 * 64
    assert abs(out.sum(dim=1).mean()) < 5 / 30_000**0.5
