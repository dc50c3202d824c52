"""Who releases when (the paper's S_t), settled before any record is seen.

A schedule is a function of public numbers alone, so it costs no privacy; how often it calls the busiest
client (T_max) decides how much noise everybody adds. `balanced` calls all clients equally often and so
needs the least noise; `random` is the paper's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import SottovoceError, nearest

Schedule = NDArray[np.int64]


def random_schedule(clients: int, per_round: int, rounds: int, seed: int) -> Schedule:
    """`per_round` different clients drawn afresh each round: client numbers of shape (rounds, per_round).

    >>> random_schedule(clients=40, per_round=2, rounds=500, seed=41).shape
    (500, 2)
    """
    generator = _generator(clients, per_round, rounds, seed)
    schedule = np.empty((rounds, per_round), dtype=np.int64)
    for row in schedule:
        row[:] = generator.choice(clients, per_round, replace=False)
    return schedule


def balanced_schedule(clients: int, per_round: int, rounds: int, seed: int) -> Schedule:
    """Sweeps over all clients, each in a fresh random order: client numbers of shape (rounds, per_round).

    After any round, two clients have been called equally often or differ by one; the clients of a round
    are different also where one sweep ends and the next begins.

    >>> call_counts(balanced_schedule(clients=4, per_round=2, rounds=5, seed=41), 4).max().item()
    3
    """
    generator = _generator(clients, per_round, rounds, seed)
    calls = np.empty(rounds * per_round, dtype=np.int64)
    start = 0
    while start < calls.size:
        order = generator.permutation(clients)
        begun = start % per_round  # places of the current round that the last sweep has taken
        if begun:
            order = _called_later(order, calls[start - begun : start], per_round - begun)
        calls[start : start + clients] = order[: calls.size - start]
        start += clients
    return calls.reshape(rounds, per_round)


def open_schedule(name: str, *, clients: int, per_round: int, rounds: int, seed: int) -> Schedule:
    """The schedule of that name."""
    if name not in _SCHEDULES:
        raise SottovoceError(f"no schedule is called '{name}': {nearest(name, _SCHEDULES)}")
    return _SCHEDULES[name](clients, per_round, rounds, seed)


_SCHEDULES = {"random": random_schedule, "balanced": balanced_schedule}


def call_counts(schedule: Schedule, clients: int) -> NDArray[np.int64]:
    """Returns how often each client is called (the paper's T_i): shape (clients,); its maximum is T_max."""
    return np.bincount(schedule.ravel(), minlength=clients).astype(np.int64)


def _called_later(order: Schedule, waiting: Schedule, places: int) -> Schedule:
    """`order` with nobody of `waiting` among its first `places`; both parts keep their order."""
    free = np.flatnonzero(~np.isin(order, waiting))[:places]
    return np.concatenate([order[free], np.delete(order, free)])


def _generator(clients: int, per_round: int, rounds: int, seed: int) -> np.random.Generator:
    if not 1 <= per_round <= clients:
        raise SottovoceError(
            f"{per_round} clients per round out of {clients}: choose between 1 and the number of participants"
        )
    if rounds < 1:
        raise SottovoceError(f"{rounds} rounds make no schedule: choose at least 1")
    return np.random.default_rng(seed)
