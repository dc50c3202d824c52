"""Statistics that a channel must carry exactly, and a way to collect evidence from many messages of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel, SeededRandomness, open_channel
from sottovoce.channel.exactness import Evidence
from sottovoce.channel.polar.codec import Polar
from sottovoce.channel.polar.rotation import rotate
from sottovoce.channel.randomness import SharedRandomness

Reals = NDArray[np.float64]
SIGMA = 0.0147
SECRET = bytes(range(32))

EXACT = ["direct", "lrsuq/Z4", "lrsuq/D4", "lrsuq/E8", "lrsuq-elias/Z4", "polar"]
EVERY = [*EXACT, "lrsuq-elias/D4", "lrsuq-elias/E8", "direct-q12"]


def of_norm(norm: float) -> Callable[[np.random.Generator, int], Reals]:
    """Random directions of one norm, as if there were 16,384 coordinates."""

    def draw(rng: np.random.Generator, size: int) -> Reals:
        u = rng.standard_normal(size)
        return u * (norm * np.sqrt(size / 16384) / np.linalg.norm(u))

    return draw


def heavy_tailed(rng: np.random.Generator, size: int) -> Reals:
    u = rng.standard_t(1.5, size)
    return u * (0.6 * np.sqrt(size / 16384) / np.linalg.norm(u))


def one_huge(rng: np.random.Generator, size: int) -> Reals:
    u = rng.standard_normal(size) * (0.3 / 128)
    u[size // 2] = 1e4 * SIGMA
    return u


def sparse(rng: np.random.Generator, size: int) -> Reals:
    u = np.zeros(size)
    u[rng.choice(size, min(size, 5), replace=False)] = 3 * SIGMA
    return u


CASES: dict[str, Callable[[np.random.Generator, int], Reals]] = {
    "zero": of_norm(0.0),
    "typical": of_norm(0.3),
    "clip bound": of_norm(1.0),
    "far above the noise": of_norm(10.0),
    "heavy-tailed": heavy_tailed,
    "one huge coordinate": one_huge,
    "sparse": sparse,
}


def opened(name: str, size: int, sigma: float = SIGMA) -> Channel:
    """A channel by its name in the wire format, such as lrsuq/D4."""
    base, _, lattice = name.partition("/")
    return open_channel(base, size=size, sigma=sigma, **({"lattice": lattice} if lattice else {}))


def evidence(
    name: str, case: str, size: int, messages: int, sigma: float = SIGMA, gain: float = 1.0
) -> list[Evidence]:
    """Errors of many messages; for `polar` a second time in the rotated domain where its code works."""
    channel = opened(name, size, sigma)
    rng = np.random.default_rng([size, messages])
    private = SeededRandomness(f"{name} {case} {size}".encode())
    plain, turned = Evidence(), Evidence()
    for number in range(messages):
        u = CASES[case](rng, size) * (sigma / SIGMA)
        message = channel.encode(u, secret=SECRET, stream=(case, number), private=private)
        y = channel.decode(message, secret=SECRET, stream=(case, number))
        error = (gain * y - u) / sigma
        plain.add(error, u)
        if isinstance(channel, Polar) and channel._padded == size:
            signs = channel._signs(SharedRandomness(channel._envelope(SECRET, (case, number))))
            rotated = np.stack([error, u / sigma])
            for row in rotated:
                rotate(row, signs)
            turned.add(rotated[0], rotated[1])
    return [plain, turned] if turned.samples else [plain]
