"""Lattices: nearest points, uniform dithers, and neighbours that are what they claim to be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sottovoce.channel.lattice import (
    D4,
    DENSITY,
    DIMENSION,
    E8,
    LATTICES,
    MOST_NEIGHBOURS,
    UNIT,
    Z4,
    dither,
    nearest,
    neighbours,
)

NAMES = list(LATTICES)


def _is_point(lattice: int, point: np.ndarray) -> bool:
    """Membership by definition, in integer coordinates (doubled for E8)."""
    if lattice == Z4:
        return True
    if lattice == D4:
        return point.sum() % 2 == 0
    same_parity = len(set((point % 2).tolist())) == 1
    return same_parity and point.sum() % 4 == 0


def _dithers(lattice: int, count: int) -> np.ndarray:
    b = DIMENSION[lattice]
    words = np.random.default_rng(lattice).integers(0, 2**64, (count, b), dtype=np.uint64)
    p, q, v = np.empty(b, np.int64), np.empty(b, np.int64), np.empty(b)
    rows = []
    for row in words:
        dither(lattice, row, v, p, q)
        rows.append(v.copy())
    return np.array(rows)


@pytest.mark.parametrize("name", NAMES)
def test_no_other_point_is_nearer_than_the_nearest(name: str) -> None:
    lattice = LATTICES[name]
    b = DIMENSION[lattice]
    rng = np.random.default_rng(0)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    points, squares = np.empty((MOST_NEIGHBOURS, b), np.int64), np.empty(MOST_NEIGHBOURS)
    for _ in range(300):
        x = rng.uniform(-5, 5, b)
        nearest(lattice, x, point, other)
        assert _is_point(lattice, point)
        # The cell of a lattice is bounded by its shortest points: those are all there is to compare with.
        count = neighbours(lattice, point - x, 1e9, points, squares)
        assert (squares[:count] >= squares[0] - 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_dithers_fill_the_cell_and_the_ball_has_its_share(name: str) -> None:
    lattice = LATTICES[name]
    b = DIMENSION[lattice]
    rows = _dithers(lattice, 40_000)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    for v in rows[:300]:
        nearest(lattice, v.copy(), point, other)
        assert not point.any()
    inside = ((rows * UNIT[lattice]) ** 2).sum(axis=1) <= 1.0
    # Five standard deviations of a share of 40,000.
    assert abs(inside.mean() - DENSITY[lattice]) < 5 * math.sqrt(0.25 / 40_000)


@pytest.mark.parametrize(("name", "count"), [("Z4", 16), ("D4", 25), ("E8", 241)])
def test_neighbours_are_lattice_points_with_their_true_distances(name: str, count: int) -> None:
    lattice = LATTICES[name]
    b = DIMENSION[lattice]
    points, squares = np.empty((MOST_NEIGHBOURS, b), np.int64), np.empty(MOST_NEIGHBOURS)
    for v in _dithers(lattice, 20):
        assert neighbours(lattice, v, 1e9, points, squares) == count
        listed = points[:count]
        assert len(np.unique(listed, axis=0)) == count
        assert all(_is_point(lattice, point) for point in listed)
        np.testing.assert_allclose(squares[:count], ((listed + v) ** 2).sum(axis=1), atol=1e-12)


def test_shortest_points_are_twice_the_inradius_long() -> None:
    for lattice, shortest in ((Z4, [1, 0, 0, 0]), (D4, [1, 1, 0, 0]), (E8, [1] * 8), (E8, [2, 2, *[0] * 6])):
        assert math.isclose(UNIT[lattice] * math.sqrt(sum(x * x for x in shortest)), 2.0)


def test_only_near_neighbours_are_listed() -> None:
    points, squares = np.empty((MOST_NEIGHBOURS, 4), np.int64), np.empty(MOST_NEIGHBOURS)
    v = np.array([0.4, 0.1, -0.45, 0.0])
    count = neighbours(Z4, v, 0.7, points, squares)
    brute = [
        p for p in itertools.product([-1, 0], [-1, 0], [0, 1], [0]) if ((np.array(p) + v) ** 2).sum() <= 0.7
    ]
    assert {tuple(p) for p in points[:count].tolist()} == set(brute)
