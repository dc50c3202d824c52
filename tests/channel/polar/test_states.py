"""Selected states follow the target exactly, and the fast approximation never decides wrongly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from sottovoce.channel import SeededRandomness
from sottovoce.channel.polar import states
from sottovoce.channel.polar.folding import state_ratio
from sottovoce.channel.polar.model import guess, log_ratio, model_for, reduced_squares, scale_number, screen
from sottovoce.channel.polar.states import RAW, chosen_words, select, uniforms
from sottovoce.channel.wire import Envelope, SharedRandomness


def _shared(number: int) -> SharedRandomness:
    return SharedRandomness(Envelope("polar", 1, 1.0, bytes(32), ("states", number)))


@pytest.mark.parametrize(("folds", "s2"), [(0, 0.002), (1, 0.02), (2, 0.03), (3, 0.1), (5, 0.3), (5, 1.4)])
def test_the_approximation_keeps_its_error_bound(folds: int, s2: float) -> None:
    rng = np.random.default_rng(folds)
    x, v = rng.uniform(0, 1, 20_000), rng.standard_normal(20_000) * math.sqrt(s2)
    value, error = np.empty(x.size), np.empty(x.size)
    guess(x, reduced_squares(v, s2), screen(folds, s2), value, error)
    exact = np.array([log_ratio(a, b, folds, s2) for a, b in zip(x, v, strict=True)])
    assert (np.abs(value - exact) <= error).all()
    assert np.isinf(error).mean() < 0.15


def _cdf(x: float, v: float, folds: int, s2: float) -> float:
    return float(integrate.quad(lambda t: state_ratio(t, v, folds, s2), 0, x, limit=200)[0])


@pytest.mark.parametrize(("size", "s2"), [(1, 0.9), (16, 0.3), (64, 1.2)])
def test_selected_states_follow_the_target(size: int, s2: float) -> None:
    """Kolmogorov–Smirnov of one coordinate's state over 3,000 messages; fails by chance once in 10⁶."""
    model = model_for(size, scale_number(s2))
    v = np.full(size, 0.8 * math.sqrt(s2))
    v[0] = 2.5 * math.sqrt(s2)
    private = SeededRandomness(b"states")
    found = np.array([select(v, model, _shared(number), private).x[[0, -1]] for number in range(3000)])
    grid = np.linspace(0, 1, 201)
    for coordinate, value in ((0, v[0]), (1, v[-1])):
        table = [_cdf(x, value, model.folds, model.s2) for x in grid]
        assert abs(table[-1] - 1.0) < 1e-6
        uniform = np.interp(found[:, coordinate], grid, table)
        assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    # The test would notice states that were not selected at all.
    plain = uniforms(np.random.default_rng(0).integers(0, 2**64, 3000, dtype=np.uint64))
    table = [_cdf(x, v[0], model.folds, model.s2) for x in grid]
    assert stats.kstest(np.interp(plain, grid, table), "uniform").pvalue < 1e-6


def test_every_word_stands_for_a_state_inside_the_unit_interval_and_a_finite_normal() -> None:
    words = np.array([0, 2**11 - 1, 2**64 - 2**11, 2**64 - 1], np.uint64)
    found = uniforms(words)
    assert found.tolist() == [2.0**-54, 2.0**-54, 1 - 2.0**-53, 1 - 2.0**-53]
    assert np.isfinite(states._normals(words)).all()
    assert states.raw_state(states.raw_word(found[-1])) == found[-1]


def test_the_decoder_finds_the_states_that_were_selected() -> None:
    model = model_for(4096, scale_number(0.5))
    v = np.random.default_rng(1).standard_normal(4096) * math.sqrt(0.5)
    kept = select(v, model, _shared(1), SeededRandomness(b"find"))
    words = uniforms(chosen_words(_shared(1), model, kept.index))
    from_candidates = (kept.outlier == 0) & np.repeat(kept.index != RAW, np.diff(model.edges))
    assert from_candidates.mean() > 0.9
    assert np.array_equal(words[from_candidates], kept.x[from_candidates])


def test_the_exact_comparison_decides_what_the_approximation_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With errors a hundred thousand times wider every comparison is settled exactly, to the same result."""
    model = model_for(256, scale_number(0.1))
    v = np.random.default_rng(2).standard_normal(256) * math.sqrt(0.1)
    plain = [select(v, model, _shared(n), SeededRandomness(b"%d" % n)) for n in range(50)]

    def unsure(folds: int, s2: float) -> NDArray[np.float64]:
        rows = screen(folds, s2).copy()
        rows[:, -1] *= 1e5
        return rows

    monkeypatch.setattr(states, "screen", unsure)
    for n, before in enumerate(plain):
        again = select(v, model, _shared(n), SeededRandomness(b"%d" % n))
        assert np.array_equal(again.x, before.x)
