"""Folding loses nothing, and the laws derived from it are those of the Gaussian."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from sottovoce.channel.polar.folding import (
    branch_bias,
    branch_odds,
    fold,
    given_bit,
    magnitudes,
    sign_bias,
    state_ratio,
    unfold,
)
from sottovoce.channel.polar.vector import exponentials, half_normal, half_normals, upper_tails

X = np.concatenate([np.random.default_rng(0).uniform(0, 1, 500), [2.0**-54, 1e-12, 1e-6, 0.5, 1 - 1e-9]])


@pytest.mark.parametrize("q", [1e-12, 0.1, 0.5, 0.8499, 0.8501, 0.99, 1 - 1e-9])
def test_half_normal_quantiles_are_accurate(q: float) -> None:
    exact = math.sqrt(2.0) * float(special.erfcinv(1.0 - q) if q > 0.5 else special.erfinv(q))
    assert math.isclose(half_normal(q, 1.0 - q), exact, rel_tol=1e-14)


def test_half_normal_keeps_its_digits_in_the_far_tail() -> None:
    for p in (1e-8, 1e-12, 1e-16, 1e-30):
        assert math.isclose(half_normal(1.0 - p, p), float(stats.norm.isf(p / 2)), rel_tol=1e-14)


def test_array_versions_agree_with_the_scalar_ones() -> None:
    q, p = X, 1.0 - X
    out, bits = np.empty(X.size), np.empty(X.size, np.int64)
    half_normals(q, p, 0.0, 1.0, out, bits)
    np.testing.assert_allclose(out, [half_normal(a, b) for a, b in zip(q, p, strict=True)], rtol=1e-13)
    z = np.linspace(-80, 200, X.size)
    exponentials(z, out, bits)
    np.testing.assert_allclose(out, np.exp(z), rtol=4e-15)


def test_upper_tails_are_accurate_from_the_middle_to_the_far_tail() -> None:
    h = np.concatenate([[0.0, 1e-9], np.linspace(0.01, 9.0, 500)])
    out, bits = np.empty(h.size), np.empty(h.size, np.int64)
    upper_tails(h, out, bits)
    np.testing.assert_allclose(out, special.erfc(h * math.sqrt(0.5)), rtol=2e-14)


@pytest.mark.parametrize("folds", range(6))
def test_unfolding_undoes_folding(folds: int) -> None:
    sizes = np.array([1e-6, 0.1, 0.6745, 1.0, 1.5, 3.0, 6.0])
    for size, x in zip(sizes, fold(sizes, folds), strict=True):
        assert any(math.isclose(unfold(x, branch, folds), size, rel_tol=1e-9) for branch in range(1 << folds))


@pytest.mark.parametrize("folds", [0, 1, 3])
@pytest.mark.parametrize("v", [0.0, 0.3, 1.5])
def test_the_state_ratio_is_a_density(folds: int, v: float) -> None:
    total, _ = integrate.quad(lambda x: state_ratio(x, v, folds, 0.4), 0, 1, limit=200)
    assert abs(total - 1.0) < 1e-6


@pytest.mark.parametrize(("folds", "v", "s2"), [(0, 0.4, 0.1), (2, -0.9, 0.3), (3, 2.0, 1.4)])
def test_states_branches_and_signs_together_are_the_gaussian(folds: int, v: float, s2: float) -> None:
    """S(x)·P(branch | x)·P(sign | |y|) is the ratio of N(v, 1) to the reference at every y."""
    c = math.sqrt(1.0 + s2)
    for x in (0.05, 0.37, 0.9):
        odds = branch_odds(np.array([x]), np.array([v]), folds, s2)[:, 0]
        for branch in range(1 << folds):
            size = magnitudes(np.array([x]), np.array([branch]), folds, s2)
            bias = np.empty(1)
            sign_bias(size, np.array([v]), bias)
            for sign in (1.0, -1.0):
                share = odds[branch] / odds.sum() * 0.5 * (1.0 + sign * bias[0])
                ours = state_ratio(x, v, folds, s2) * share * (2 << folds)
                y = sign * size[0]
                true = stats.norm.pdf(y, v, 1.0) / stats.norm.pdf(y, 0.0, c)
                assert math.isclose(ours, true, rel_tol=1e-11, abs_tol=1e-14)


def test_bits_of_a_branch_have_the_biases_of_its_odds() -> None:
    rng = np.random.default_rng(5)
    x, v = rng.uniform(0, 1, 64), rng.standard_normal(64)
    whole = branch_odds(x, v, 3, 0.5)
    odds = whole.copy()
    branch = rng.integers(0, 8, 64)
    share = np.ones(64)
    bias = np.empty(64)
    for plane in range(3):
        bit = (branch >> (2 - plane) & 1).astype(np.uint8)
        branch_bias(odds, bias)
        share *= 0.5 * (1.0 + np.where(bit == 0, bias, -bias))
        odds = given_bit(odds, bit)
    np.testing.assert_allclose(share, whole[branch, np.arange(64)] / whole.sum(axis=0), rtol=1e-12)
