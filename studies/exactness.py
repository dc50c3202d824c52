"""Evidence that a channel's error is exactly N(0, σ²I) and independent of the statistic.

`collect` sends statistics of one kind many times and `Evidence` turns the errors into z-scores, each about
standard normal if the law is exact in the respect it looks at. Use it on any channel, ours or yours: |z|
above 5 happens by chance once in a million.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel
from sottovoce.channel.polar import Polar, rotate
from sottovoce.channel.wire import Envelope, SeededRandomness, SharedRandomness

Reals = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Reals]

_FINE, _COARSE = 10_000, 200
_STRIDES = tuple(1 << k for k in range(17))


@functools.cache
def _edges() -> Reals:
    """Inner edges of _FINE bins that a standard normal fills alike."""
    normal = NormalDist()
    return np.array([normal.inv_cdf(i / _FINE) for i in range(1, _FINE)])


class Evidence:
    """Collects errors of any number of messages of one length.

    >>> evidence = Evidence()
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(20):
    ...     evidence.add(rng.standard_normal(1000), np.ones(1000))
    >>> max(abs(z) for z in evidence.scores().values()) < 5
    True
    >>> for _ in range(20):
    ...     evidence.add(0.9 * rng.standard_normal(1000), np.ones(1000))
    >>> abs(evidence.scores()["variance"]) > 5
    True
    """

    def __init__(self) -> None:
        self._bins = np.zeros(_FINE, np.int64)
        self._sums: dict[str, float] = {}
        self._squares: dict[str, float] = {}
        self.samples = 0

    def add(self, error: Reals, statistic: Reals) -> None:
        """Add one message: its error in units of σ, and the statistic (in any unit), both of shape (n,)."""
        size = error.size
        self.samples += size
        self._bins += np.bincount(np.searchsorted(_edges(), error), minlength=_FINE)
        squared = error * error
        self._count("mean", error.sum(), size)
        self._count("variance", squared.sum() - size, 2.0 * size)
        self._count("skewness", (error * squared - 3.0 * error).sum(), 6.0 * size)
        self._count("kurtosis", (squared * squared - 6.0 * squared + 3.0).sum(), 24.0 * size)
        self._count("norm", (squared.sum() - size) ** 2 - 2.0 * size, 8.0 * size * size + 48.0 * size)
        # Hermite polynomials of e are uncorrelated with any function of an independent statistic.
        scale = float(np.abs(statistic).max())
        if scale > 0.0:
            u = statistic / scale
            for name, hermite, power, variance in (
                ("e with u", error, u, 1.0),
                ("e² with u²", squared - 1.0, u**2, 2.0),
                ("e³ with u³", error * squared - 3.0 * error, u**3, 6.0),
            ):
                self._count(name, float(hermite @ power), variance * float(power @ power))
        for stride in _STRIDES:
            if 2 * stride <= size:
                even = size - size % (2 * stride)
                pairs = error[:even].reshape(-1, 2, stride)
                self._count(f"pairs at {stride}", float((pairs[:, 0] * pairs[:, 1]).sum()), even / 2)

    def _count(self, name: str, value: float, variance: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(value)
        self._squares[name] = self._squares.get(name, 0.0) + float(variance)

    def scores(self) -> dict[str, float]:
        """z-scores by name of what was looked at."""
        scores = {name: total / math.sqrt(self._squares[name]) for name, total in self._sums.items()}
        scores["ks"] = self._kolmogorov()
        expected = self.samples / _COARSE
        coarse = self._bins.reshape(_COARSE, -1).sum(axis=1)
        chi2 = float(((coarse - expected) ** 2).sum() / expected)
        scores["shape"] = (chi2 - (_COARSE - 1)) / math.sqrt(2.0 * (_COARSE - 1))
        return scores

    def _kolmogorov(self) -> float:
        """The Kolmogorov–Smirnov p-value as a one-sided z-score."""
        below = np.cumsum(self._bins) / self.samples
        gap = float(np.abs(below - np.arange(1, _FINE + 1) / _FINE).max()) * math.sqrt(self.samples)
        terms = [2.0 * (-1) ** (k - 1) * math.exp(-2.0 * (k * gap) ** 2) for k in range(1, 100)]
        p_value = min(max(sum(terms), 1e-300), 1.0 - 1e-16)
        return -NormalDist().inv_cdf(p_value)

    def worst(self) -> tuple[str, float]:
        """The most extreme z-score and its name."""
        name, z = max(self.scores().items(), key=lambda item: abs(item[1]) if item[0] != "ks" else item[1])
        return name, z


def _of_length(length: float) -> Draw:
    """Random directions of root mean square `length`, in units of σ."""

    def draw(rng: np.random.Generator, size: int) -> Reals:
        u = rng.standard_normal(size)
        return np.asarray(u * (length * math.sqrt(size) / np.linalg.norm(u)))

    return draw


def _heavy_tailed(rng: np.random.Generator, size: int) -> Reals:
    u = rng.standard_t(1.5, size)
    return np.asarray(u * (0.32 * math.sqrt(size) / np.linalg.norm(u)))


def _one_huge(rng: np.random.Generator, size: int) -> Reals:
    u = 0.16 * rng.standard_normal(size)
    u[size // 2] = 1e4
    return u


def _sparse(rng: np.random.Generator, size: int) -> Reals:
    u = np.zeros(size)
    u[rng.choice(size, min(size, 5), replace=False)] = 3.0
    return u


# Statistics in units of σ; lengths are those of norm 0.3, 1 and 10 at n = 16,384 and σ = 0.0147.
STATISTICS: dict[str, Draw] = {
    "zero": _of_length(0.0),
    "typical": _of_length(0.159),
    "clip bound": _of_length(0.531),
    "far above the noise": _of_length(5.31),
    "heavy-tailed": _heavy_tailed,
    "one huge coordinate": _one_huge,
    "sparse": _sparse,
}


def collect(channel: Channel, kind: str, messages: int, seed: int = 0) -> list[Evidence]:
    """Send `messages` statistics of one kind (a key of STATISTICS) and collect the errors.

    `polar` is looked at twice: as decoded, and in the rotated domain where its code works. The same seed
    gives the same scores; a channel object may be used for several kinds and seeds.
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    secret = rng.bytes(32)
    private = SeededRandomness(secret)
    found = [Evidence()]
    for number in range(messages):
        u = channel.sigma * STATISTICS[kind](rng, channel.size)
        stream = (kind, number)
        message = channel.encode(u, secret=secret, stream=stream, private=private)
        error = (channel.decode(message, secret=secret, stream=stream) - u) / channel.sigma
        found[0].add(error, u)
        if isinstance(channel, Polar) and channel.size & (channel.size - 1) == 0:
            if len(found) == 1:
                found.append(Evidence())
            shared = SharedRandomness(Envelope("polar", channel.size, channel.sigma, secret, stream))
            rotated, signs = (error.copy(), u.copy()), channel.signs(shared)
            for vector in rotated:
                rotate(vector, signs)
            found[1].add(*rotated)
    return found
