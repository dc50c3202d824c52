"""Noise that the clients of a round share: each adds a part of it, and only their sum is ever seen.

Client i adds up its clipped gradients, rotates and scales them, x_i = R·m_i û_i/γ, and draws
Y_i ~ N_ℤ(x_i, τ²) (`channel.direct`): nothing is rounded before the noise. Masks (`masks`) hide all but
ΣY. At least `threshold` clients are in a sum, and at most `colluding` of them tell others their noise, so
H = threshold − colluding shares protect: ΣY is, up to e^{±Γ} in a whole run, made from Σx + N(0, Hτ² − r²)
(docs/privacy.md has the proof). Replacing one record moves Σx by at most 2C/γ, whoever has how many records.
Who is missing changes neither noise nor denominator: both are as planned.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.channel.direct import FRACTION_BITS, TAU_SQUARED, draw
from sottovoce.channel.wire import PrivateRandomness, SeededRandomness, Stream, SystemRandomness
from sottovoce.errors import SottovoceError
from sottovoce.release.places import longest_noise

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

GAMMA = 1e-9
"""The most that 2Γ, by which a whole run is not Gaussian, may be; it decides r²."""
SPARE = 1e-6
"""What is charged above 2C, once for Γ and once for float64, as a part of it."""
LARGEST_CENTRE = 2.0**26
"""‖x‖ of a client beyond which a Fourier transform in float64 errs by more than the spare."""
DEVIATIONS = 9.0
"""Of a sum's coordinate, that a word holds."""


@dataclass(frozen=True)
class Sharing:
    """The public numbers of shared noise, from which both ends make the same grid.

    >>> small = Sharing(clip=0.5, size=20_490, releases=100, largest=800, records=32_000, most=32_000,
    ...                 clients=40, threshold=36, colluding=4, mu=0.0891)
    >>> small.honest, round(small.step, 3), small.word
    (32, 0.248, 16)
    """

    clip: float
    """C."""
    size: int
    """k."""
    releases: int
    """T, of the client that is called most often."""
    largest: int
    """Records of the largest client."""
    records: int
    """Σm of the smallest planned round, by which sums are divided."""
    most: int
    """Σm of the largest planned round."""
    clients: int
    """n, planned for a round."""
    threshold: int
    colluding: int
    mu: float
    """Δ/σ of one release, what its part of the budget pays for."""
    seed: int = 0
    """Of the rotation's signs, public."""

    def __post_init__(self) -> None:
        if not 1 <= self.colluding < self.threshold <= self.clients:
            raise SottovoceError(
                f"a sum of at least {self.threshold} of {self.clients} clients, of whom {self.colluding} "
                "may collude, protects nobody: keep colluding above 0 and below the threshold"
            )
        if not self.mu * self.deviation > 2 * self.widening:
            raise SottovoceError(
                f"shared noise cannot carry so small a share of the budget in {self.size:,} coefficients: "
                "set fewer coefficients, or fewer rounds"
            )
        if self.clip * self.largest / self.step > LARGEST_CENTRE or self.bits > 32:
            raise SottovoceError(
                f"sums over {self.most:,} records do not fit shared noise so small: "
                "set fewer records, or a smaller epsilon"
            )

    @property
    def honest(self) -> int:
        """H, the shares of noise that protect."""
        return self.threshold - self.colluding

    @cached_property
    def rounded(self) -> float:
        """r², by which noise on the grid protects less than its variance says."""
        return math.log(4.04 * self.size * self.releases / GAMMA) / (2 * math.pi**2)

    @property
    def deviation(self) -> float:
        """s = √(Hτ² − r²), the noise that protects, on the grid."""
        return math.sqrt(self.honest * TAU_SQUARED - self.rounded)

    @property
    def widening(self) -> float:
        """ρ: how much farther apart two vectors of centres may be once they are rounded."""
        return math.sqrt(self.size) * 2.0 ** (1 - FRACTION_BITS)

    @property
    def spare(self) -> float:
        """κ. A float64 sum of m vectors of norm C errs by m²·2⁻⁵³·C at most."""
        return SPARE + max(SPARE, self.largest**2 * 2.0**-53)

    @cached_property
    def step(self) -> float:
        """γ, the distance of neighbours on the grid: such that one release spends μ, and not more."""
        return 2 * self.clip * (1 + self.spare) / (self.mu * self.deviation - self.widening)

    @property
    def sensitivity(self) -> float:
        """Δ of the sum over the planned records, as it is charged."""
        return (2 * self.clip * (1 + self.spare) + self.widening * self.step) / self.records

    @property
    def removal(self) -> float:
        """As `sensitivity`, for one record left out."""
        return (self.clip * (1 + self.spare) + self.widening * self.step) / self.records

    @property
    def sigma(self) -> float:
        """σ of the sum over the planned records, as it is charged."""
        return self.deviation * self.step / self.records

    @property
    def one(self) -> float:
        """τγ over the planned records: the noise of one client's share, as σ is charged."""
        return math.sqrt(TAU_SQUARED) * self.step / self.records

    @property
    def total(self) -> float:
        """The noise of the sum if all planned clients are in it: what training sees."""
        return math.sqrt(self.clients * TAU_SQUARED) * self.step / self.records

    @property
    def bits(self) -> int:
        """Bits that hold a coordinate of any sum of a round, up to 9 deviations (Hoeffding, random signs)."""
        signal = self.clip * self.most / self.step * math.sqrt(2 / self.size)
        largest = DEVIATIONS * math.hypot(signal, math.sqrt(self.clients * TAU_SQUARED))
        return math.floor(math.log2(largest)) + 2

    @property
    def word(self) -> int:
        """Bits of a masked coordinate: 16, or 32."""
        return 16 if self.bits <= 16 else 32

    def weakened(self, honest: int) -> float:
        """(Δ/σ)² of one release where the noise of so many honest clients is in the sum, not of H."""
        return (self.mu * self.deviation) ** 2 / (honest * TAU_SQUARED - self.rounded)

    def share(self, mean: Reals, count: int, private: PrivateRandomness) -> Integers:
        """Y of a client, from the clipped mean of its gradients (k,) that counts for so many records.

        A mean that is not finite counts as zeros: what a client sends never says so.
        """
        return draw(self._rotated(mean * count if np.isfinite(mean).all() else np.zeros(self.size)), private)

    @property
    def length(self) -> int:
        """Bytes of a share."""
        return self.size * self.word // 8

    @property
    def unsigned(self) -> str:
        """The type of a word."""
        return f"<u{self.word // 8}"

    def added(self, messages: Iterable[bytes]) -> Integers:
        """The sum of shares that no mask covers."""
        total = np.zeros(self.size, self.unsigned)
        for message in messages:
            if len(message) != self.length:
                raise SottovoceError(f"a share has {self.size} words of {self.word} bits: ask for it again")
            total = total + np.frombuffer(message, self.unsigned)
        return centred(total, self.word)

    def columns(self, total: Integers) -> Tensor:
        """Returns what a sum of shares moves the generator by: (k, 1), over the planned records."""
        return torch.from_numpy(self._back(total) / self.records).float()[:, None]

    def plausible(self, total: Integers) -> bool:
        """Returns whether whole numbers can be a sum of this round's shares: if not, somebody has lied."""
        noise = math.sqrt(self.clients * TAU_SQUARED) * longest_noise(self.size)
        largest = 1.001 * noise + self.clip * self.most / self.step
        return bool(np.linalg.norm(total.astype(np.float64)) <= largest)

    def _rotated(self, sums: Reals) -> Reals:
        """x = R·v/γ with R a Hartley transform after signs, orthonormal and in float64."""
        assert sums.dtype == np.float64
        assert sums.shape == (self.size,)
        return _hartley(self._signs * sums) / self.step

    def _back(self, total: Integers) -> Reals:
        return self._signs * _hartley(total.astype(np.float64)) * self.step

    @cached_property
    def _signs(self) -> Reals:
        source = SeededRandomness(hashlib.sha256(f"sottovoce rotation:{self.seed}".encode()).digest())
        bits = np.unpackbits(np.frombuffer(source.bytes(-(-self.size // 8)), np.uint8))[: self.size]
        return 1.0 - 2.0 * bits.astype(np.float64)


class Shares:
    """The shape of a channel for a client's share: words of one length, which a mask may cover.

    A message is nothing that anybody may see by itself; there is no tag, because masked words have none.
    """

    name = "integers"
    rounding = 0.0

    def __init__(self, sharing: Sharing, count: int) -> None:
        self.sharing = sharing
        self._count = count
        self.size, self.sigma = sharing.size, sharing.sigma

    def encode(
        self,
        u: Reals,
        *,
        secret: bytes,
        stream: Stream,
        request: bytes = b"",
        private: PrivateRandomness | None = None,
    ) -> bytes:
        """The share of a client whose clipped mean is `u`."""
        share = self.sharing.share(u, self._count, private or SystemRandomness())
        return share.astype(self.sharing.unsigned).tobytes()

    def decode(self, message: bytes, *, secret: bytes, stream: Stream, request: bytes | None = None) -> Reals:
        """The share itself: for whoever has no mask to take off."""
        return self.sharing.added([message]).astype(np.float64)


def centred(words: NDArray[np.unsignedinteger], word: int) -> Integers:
    """Whole numbers of −2^(b−1) … 2^(b−1) − 1 from their remainders modulo 2^b, b = `word`."""
    return words.astype(f"<u{word // 8}").view(f"<i{word // 8}").astype(np.int64)


def _hartley(values: Reals) -> Reals:
    """The orthonormal discrete Hartley transform, which is its own inverse."""
    spectrum = np.fft.fft(values)
    found: Reals = (spectrum.real - spectrum.imag) / math.sqrt(len(values))
    return found
