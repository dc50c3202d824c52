"""Noise once a round, at the server: U = Σ_i w_i û_i h_iᵀ + σZ moves the generator, and no release alone.

h_i with ‖h_i‖ ≤ 1 says in which columns of its generator a client's release counts, and is fixed by contexts
that were paid for; w_i = m_i/Σm with Σm of the smallest planned round, whoever is missing (a client may count
for fewer records than it has). Replacing one record of client i moves its clipped mean û_i by at most 2C/m_i,
and so U by at most 2C/Σm in Frobenius norm:
Δ and σ are the same for every client and every column. What comes after the noise is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.channel.randomness import PrivateRandomness

CARRIED = 0.1
"""The most that the channels' noise is of all noise's variance; it protects nobody and is not counted."""


@dataclass(frozen=True)
class Pool:
    """The public numbers behind noise at the server: Σm of the smallest planned round, the largest Σ w_i².

    >>> pool = Pool.of(np.array([[0, 1], [1, 2]]), (300, 100, 200))
    >>> pool.records, pool.weights((300, 100)).round(2).tolist()
    (300, [1.0, 0.33])
    """

    records: int
    squares: float

    @classmethod
    def of(cls, schedule: np.ndarray, sizes: Sequence[int]) -> Pool:
        """From who is planned in which round (rounds, clients) and the records behind a release of each."""
        planned = np.asarray(sizes, dtype=np.int64)[schedule]
        records = int(planned.sum(axis=1).min())
        return cls(records, float(((planned / records) ** 2).sum(axis=1).max()))

    def weights(self, sizes: Sequence[int]) -> np.ndarray:
        """w_i of clients with so many records; they sum to 1 or more if nobody of a round is missing."""
        weights: np.ndarray = np.asarray(sizes, dtype=np.float64) / self.records
        return weights

    def carrier(self, sigma: float) -> float:
        """σ of the channels that carry releases to a server that adds `sigma`."""
        return sigma * math.sqrt(CARRIED / (1 - CARRIED) / self.squares)

    def total(self, sigma: float) -> float:
        """The most noise that a client's coefficients see in a round: the server's and the channels'."""
        return math.hypot(sigma, self.carrier(sigma) * math.sqrt(self.squares))


@dataclass(frozen=True, eq=False)
class Update:
    """What a round leaves: the noised sum (k, columns), and the participants whose releases are in it.

    It is durable before coefficients made from it leave, and never drawn again: two draws for one sum would
    average the noise away.
    """

    round: int
    participants: tuple[int, ...]
    columns: Tensor


def noised_sum(
    releases: np.ndarray, h: np.ndarray, weights: np.ndarray, sigma: float, randomness: PrivateRandomness
) -> Tensor:
    """U (k, columns) as float32, from releases û (n, k), h (n, columns) of norm 1 at most, and w (n,).

    Every column gets noise of the same scale; none may be scaled before it.
    """
    bounded = h / np.maximum(1.0, np.linalg.norm(h, axis=1, keepdims=True))
    total = (weights[:, None] * releases).T @ bounded
    if sigma > 0:
        total += sigma * randomness.normal(total.size).reshape(total.shape)
    return torch.from_numpy(total).float()
