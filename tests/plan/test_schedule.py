"""Schedules: who is called when, how evenly, and at what cost."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from sottovoce.errors import SottovoceError
from sottovoce.plan import schedule
from sottovoce.plan.schedule import Schedule

BOTH = pytest.mark.parametrize("draw", [schedule.random_schedule, schedule.balanced_schedule])
Draw = Callable[[int, int, int, int], Schedule]
# Clients, clients per round, rounds: also where a sweep ends in the middle of a round.
SHAPES = [(40, 2, 500), (16, 8, 100), (7, 3, 50), (5, 4, 33), (3, 2, 10), (4, 4, 6), (1, 1, 3), (100, 7, 3)]


@BOTH
@pytest.mark.parametrize(("clients", "per_round", "rounds"), SHAPES)
def test_a_round_calls_different_clients(draw: Draw, clients: int, per_round: int, rounds: int) -> None:
    for seed in range(10):
        plan = draw(clients, per_round, rounds, seed)
        assert plan.shape == (rounds, per_round)
        assert plan.min() >= 0
        assert plan.max() < clients
        assert all(len(set(row)) == per_round for row in plan.tolist())


@pytest.mark.parametrize(("clients", "per_round", "rounds"), SHAPES)
def test_balanced_calls_differ_by_at_most_one_after_every_round(
    clients: int, per_round: int, rounds: int
) -> None:
    for seed in range(10):
        plan = schedule.balanced_schedule(clients, per_round, rounds, seed)
        for end in range(1, rounds + 1):
            called = schedule.call_counts(plan[:end], clients)
            assert called.max() - called.min() <= 1
            assert called.sum() == end * per_round


@BOTH
def test_the_seed_alone_decides(draw: Draw) -> None:
    assert np.array_equal(draw(40, 2, 100, 41), draw(40, 2, 100, 41))
    assert not np.array_equal(draw(40, 2, 100, 41), draw(40, 2, 100, 42))


def test_each_sweep_has_its_own_order() -> None:
    sweeps = schedule.balanced_schedule(8, 2, 40, 41).reshape(10, 8)
    assert len({tuple(sweep) for sweep in sweeps.tolist()}) == 10


@BOTH
def test_every_pair_of_clients_is_equally_likely_to_share_a_round(draw: Draw) -> None:
    # 15 pairs, 3,000 rounds, 200 expected each; six standard deviations: error rate below 1e-7.
    plan = np.sort(draw(6, 2, 3000, 5), axis=1)
    called = np.bincount(plan[:, 0] * 6 + plan[:, 1], minlength=36)
    pairs = [called[i * 6 + j] for i in range(6) for j in range(i + 1, 6)]
    assert max(abs(count - 200) for count in pairs) < 6 * np.sqrt(200)


def test_the_papers_random_schedule_calls_its_busiest_client_half_as_often_again_as_the_mean() -> None:
    busiest = [
        int(schedule.call_counts(schedule.random_schedule(40, 2, 500, seed), 40).max())
        for seed in range(41, 61)
    ]
    assert 33 <= np.median(busiest) <= 40
    assert schedule.call_counts(schedule.balanced_schedule(40, 2, 500, 41), 40).tolist() == [25] * 40


def test_counts_include_clients_that_are_never_called() -> None:
    assert schedule.call_counts(np.array([[0, 2], [2, 3]]), 5).tolist() == [1, 0, 2, 1, 0]


@BOTH
def test_many_clients_cost_a_round_no_more_than_few(draw: Draw) -> None:
    started = time.process_time()
    draw(100_000, 10, 5_000, 41)
    assert time.process_time() - started < 15  # 0.03 s when measured; quadratic work would take minutes


@BOTH
@pytest.mark.parametrize(("clients", "per_round", "rounds"), [(2, 3, 5), (5, 0, 5), (0, 0, 5), (5, 2, 0)])
def test_an_impossible_schedule_is_refused(draw: Draw, clients: int, per_round: int, rounds: int) -> None:
    with pytest.raises(SottovoceError, match="choose"):
        draw(clients, per_round, rounds, 41)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("random", [[3, 5, 6], [0, 5, 1], [0, 6, 2], [3, 2, 0], [5, 4, 2]]),
        ("balanced", [[1, 0, 2], [3, 4, 5], [6, 5, 4], [6, 3, 2], [0, 1, 6]]),
    ],
)
def test_both_ends_draw_the_same_schedule_in_every_version(name: str, expected: list[list[int]]) -> None:
    found = schedule.open_schedule(name, clients=7, per_round=3, rounds=5, seed=41)
    assert found.tolist() == expected


@BOTH
def test_one_round_is_a_schedule(draw: Draw) -> None:
    assert draw(3, 2, 1, 41).shape == (1, 2)
