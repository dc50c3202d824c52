"""The decoded error is N(0, σ²I) and independent of the statistic, for every channel and every statistic.

Seeds are fixed. Each test looks at about 25 z-scores (twice for `polar`) and fails above 5: with other seeds
an exact channel would fail once in some 30,000 runs. `make exactness` repeats this with 10⁸ samples.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from studies.exactness import STATISTICS

from sottovoce.channel import SeededRandomness, polar
from sottovoce.channel.polar.model import scale_number

from .cases import EXACT, SECRET, SIGMA, opened, worst

LIMIT = 5.0


def _assert_exact(name: str, kind: str, size: int, messages: int, sigma: float = SIGMA) -> None:
    what, z = worst(opened(name, size, sigma), kind, messages)
    assert abs(z) < LIMIT, f"{name}, {kind}: {what} has z = {z:.1f}"


@pytest.mark.parametrize("kind", STATISTICS)
@pytest.mark.parametrize("name", EXACT)
def test_the_error_is_gaussian_and_independent_of_the_statistic(name: str, kind: str) -> None:
    _assert_exact(name, kind, 16384, 12)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000, 100003])
@pytest.mark.parametrize("name", EXACT)
def test_every_size_is_carried_exactly(name: str, size: int) -> None:
    _assert_exact(name, "clip bound", size, max(2, min(200, 200_000 // size)))


@pytest.mark.parametrize("sigma", [1e-4, 10.0])
@pytest.mark.parametrize("name", EXACT)
def test_every_noise_scale_is_exact(name: str, sigma: float) -> None:
    _assert_exact(name, "clip bound", 4096, 12, sigma)


@pytest.mark.parametrize("shift", [-16, -8, 8, 16], ids=["16x low", "4x low", "4x high", "16x high"])
def test_a_wrong_scale_costs_polar_bits_but_not_exactness(
    monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    monkeypatch.setattr(polar, "scale_number", lambda s2: min(scale_number(s2) + shift, 80))
    _assert_exact("polar", "clip bound", 1024, 60)


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("lattice", ["Z4", "D4", "E8"])
def test_a_wrong_scale_costs_lrsuq_bits_but_not_exactness(
    monkeypatch: pytest.MonkeyPatch, lattice: str, factor: float
) -> None:
    from sottovoce.channel import lrsuq

    right = lrsuq.scale_number
    monkeypatch.setattr(lrsuq, "scale_number", lambda v: right(v) + round(4 * math.log2(factor)))
    _assert_exact(f"lrsuq/{lattice}", "clip bound", 4096, 24)


def test_q12_adds_at_most_half_a_step_to_an_exact_error() -> None:
    u = np.linspace(-1.0, 1.0, 5000)
    decoded = []
    for name in ("direct", "direct-q12"):
        channel = opened(name, 5000)
        message = channel.encode(u, secret=SECRET, stream=(1,), private=SeededRandomness(b"same"))
        decoded.append(channel.decode(message, secret=SECRET, stream=(1,)))
    y, quantized = decoded
    step = np.abs(y).max() / 2047
    assert np.abs(quantized - y).max() < 0.5001 * step + 1e-6
