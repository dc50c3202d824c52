"""Parts of the polar codec that stand alone: rotation, offsets, model, and its payload."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.channel import coding
from sottovoce.channel.coding import load_tables
from sottovoce.channel.polar import (
    STEP,
    offsets,
    put_offsets,
    rotate,
    signs_from,
    take_offsets,
    unrotate,
)
from sottovoce.channel.polar.model import BINS, SCALES, dither_bins, leaf_classes, model_for, scale_squared
from sottovoce.channel.polar.payload import put_plane, put_states, take_plane, take_states


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64, 2048])
def test_rotation_keeps_lengths_and_can_be_undone(size: int) -> None:
    rng = np.random.default_rng(size)
    v = rng.standard_normal(size)
    signs = signs_from(rng.integers(0, 2**64, -(-2 * size // 64), dtype=np.uint64), size)
    turned = v.copy()
    rotate(turned, signs)
    assert math.isclose(np.linalg.norm(turned), np.linalg.norm(v))
    unrotate(turned, signs)
    np.testing.assert_allclose(turned, v, atol=1e-12)


def test_a_sparse_statistic_is_spread_over_all_coordinates() -> None:
    rng = np.random.default_rng(1)
    v = np.zeros(4096)
    v[[3, 1000]] = 1.0
    rotate(v, signs_from(rng.integers(0, 2**64, 128, dtype=np.uint64), 4096))
    # Gaussian coordinates of this norm stay below six standard deviations.
    assert np.abs(v).max() < 6 * math.sqrt(2 / 4096)


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 1e6])
def test_offsets_come_back_and_leave_little(scale: float) -> None:
    v = np.random.default_rng(2).standard_normal(500) * scale
    v[7] += 40.0
    steps = offsets(v)
    assert np.abs(v - STEP * steps).max() <= max(STEP, 6 * math.sqrt(v @ v / v.size))
    state = coding.new_encoder()
    out = coding.with_room(state, np.empty(0, np.uint8), 100_000)
    put_offsets(state, out, steps)
    state, data = coding.new_decoder(coding.finish(state, out))
    found = np.empty(500, np.int64)
    assert take_offsets(state, data, found)
    assert np.array_equal(found, steps)


def test_states_with_outliers_and_raw_blocks_come_back() -> None:
    rng = np.random.default_rng(3)
    edges = np.array([0, 10, 25, 26, 64])
    index = np.array([0, -1, 17, 3])
    outlier = np.zeros(64, np.uint8)
    outlier[[0, 9, 25, 30, 63]] = 1
    x = (np.floor(rng.uniform(0, 1, 64) * 2**53) + 0.5) * 2.0**-53
    hazards = load_tables().hazards[-1]
    state = coding.new_encoder()
    out = coding.with_room(state, np.empty(0, np.uint8), 10_000)
    put_states(state, out, x, index, outlier, edges, hazards)
    state, data = coding.new_decoder(coding.finish(state, out))
    found, found_index, found_outlier = np.zeros(64), np.empty(4, np.int64), np.zeros(64, np.uint8)
    assert take_states(state, data, found, found_index, found_outlier, edges, hazards)
    raw = outlier.astype(bool)
    raw[10:25] = True
    assert np.array_equal(found_index, index)
    assert np.array_equal(found_outlier.astype(bool), raw)
    assert np.array_equal(found[raw], x[raw])


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5])
def test_surprises_come_back_even_where_none_are_expected(share: float) -> None:
    rng = np.random.default_rng(4)
    model = model_for(1024, 70)
    surprises = (rng.uniform(0, 1, 1024) < share).astype(np.uint8)
    bins = rng.integers(0, BINS, 1024).astype(np.uint8)
    weights = load_tables().surprises
    state = coding.new_encoder()
    out = coding.with_room(state, np.empty(0, np.uint8), 100_000)
    put_plane(state, out, surprises, model.classes[0], bins, weights)
    state, data = coding.new_decoder(coding.finish(state, out))
    found = np.empty(1024, np.uint8)
    assert take_plane(state, data, found, model.classes[0], bins, weights)
    assert np.array_equal(found, surprises)


def test_every_scale_has_a_model_with_blocks_that_cover_all_states() -> None:
    for number in range(0, SCALES, 5):
        model = model_for(256, number)
        assert model.s2 == scale_squared(number)
        assert model.edges[0] == 0
        assert model.edges[-1] == 256
        assert (np.diff(model.edges) > 0).all()
        assert model.classes.shape == (model.folds + 1, 256)


def test_leaf_classes_rise_from_worst_to_best() -> None:
    classes = leaf_classes(1024, 0.1)
    assert classes[0] == 0
    assert classes[-1] == classes.max()


def test_bins_are_quarter_octaves_of_the_dither() -> None:
    bins = dither_bins(np.array([0.999, -0.999, 0.51, 0.49, 1e-9, 0.0]))
    assert bins.tolist() == [63, 63, 60, 59, 0, 0]
