"""Successive cancellation samples the right law, and pruning changes nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce.channel.polar.folding import cancel, dithers_from, transform


def _cancelled(bias: np.ndarray, dithers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits, surprises = np.empty(bias.size, np.uint8), np.empty(bias.size, np.uint8)
    cancel(bias, dithers, bits, surprises)
    return bits, surprises


def _slow(bias: np.ndarray, dithers: np.ndarray) -> np.ndarray:
    """U by the definition: exact conditional probabilities from the joint law of all words."""
    words = np.array(list(itertools.product([0, 1], repeat=bias.size)), np.uint8)
    coded = words.copy()
    for row in coded:
        transform(row)
    odds = np.prod(np.where(coded == 0, 1 + bias, 1 - bias), axis=1)
    alive = np.ones(len(words), bool)
    u = np.zeros(bias.size, np.uint8)
    for i in range(bias.size):
        zero = odds[alive & (words[:, i] == 0)].sum()
        one = odds[alive & (words[:, i] == 1)].sum()
        u[i] = dithers[i] < -(zero - one) / (zero + one)
        alive &= words[:, i] == u[i]
    return u


def test_bits_follow_the_joint_law_computed_by_enumeration() -> None:
    rng = np.random.default_rng(1)
    for spread in (0.05, 0.5, 1.0):
        for _ in range(40):
            bias, dithers = rng.uniform(-spread, spread, 8), rng.uniform(-1, 1, 8)
            bits, surprises = _cancelled(bias, dithers)
            u = _slow(bias, dithers)
            assert np.array_equal(surprises, u ^ (dithers < 0))
            transform(u)
            assert np.array_equal(bits, u)


def _without_pruning(bias: np.ndarray, dithers: np.ndarray) -> np.ndarray:
    if bias.size == 1:
        return np.array([dithers[0] < -bias[0]], np.uint8)
    half = bias.size // 2
    a, b = bias[:half], bias[half:]
    low = _without_pruning(a * b, dithers[:half])
    signed = a * (1.0 - 2.0 * low)
    high = _without_pruning((b + signed) / (1 + signed * b), dithers[half:])
    return np.concatenate([low ^ high, high])


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2, 0.9])
def test_pruning_changes_no_bit(spread: float) -> None:
    rng = np.random.default_rng(2)
    for _ in range(3):
        bias, dithers = spread * rng.uniform(-1, 1, 2048), rng.uniform(-1, 1, 2048)
        assert np.array_equal(_cancelled(bias, dithers)[0], _without_pruning(bias, dithers))


def test_certain_bits_are_never_missed() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 2, 64):
        wanted = rng.integers(0, 2, size)
        bits, _ = _cancelled(1.0 - 2.0 * wanted, rng.uniform(-1, 1, size))
        assert np.array_equal(bits, wanted)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 4096])
def test_the_transform_is_the_kronecker_power_and_undoes_itself(size: int) -> None:
    bits = np.random.default_rng(4).integers(0, 2, size).astype(np.uint8)
    twice = bits.copy()
    transform(twice)
    if size <= 16:
        matrix = np.ones((1, 1), int)
        while len(matrix) < size:
            matrix = np.kron([[1, 0], [1, 1]], matrix)
        assert np.array_equal(twice, bits @ matrix % 2)
    transform(twice)
    assert np.array_equal(twice, bits)


def test_dithers_cover_the_interval_evenly() -> None:
    words = np.array([0, 1 << 63, (1 << 64) - 1], np.uint64)
    assert dithers_from(words).tolist() == [-1.0, 0.0, 1.0]
