"""What a release is, for every kind: statistic, Δ, this client's σ, channel, stream, charge, decoding.

A client asks a `Release` for the bounded statistic of its records and for the message that carries it, the
ledger is given the charge it states, and the server decodes with the very same object. Its noise is added
by the channel, at the client, once in the sum of a round, at the server (`places.server`), or to that sum by
all of its clients (`places.shared`); `place` says where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import Tensor

from sottovoce.channel import Channel
from sottovoce.channel.direct import Noiseless
from sottovoce.channel.wire import PrivateRandomness, SeededRandomness, Stream, SystemRandomness
from sottovoce.data import Records
from sottovoce.plan import Plan
from sottovoce.plan.catalog import Kind
from sottovoce.privacy.accounting import Charge, Place
from sottovoce.release.places import longest_noise
from sottovoce.release.places.shared import Shares

OVERHEAD_BYTES = 4096


@dataclass(frozen=True, eq=False)
class Release:
    """One kind of release of one client.

    `statistic` maps records, and coefficients (k,) where the statistic depends on a model, to a float64
    vector (size,) that replacing one record (or one unit, with all its records) moves by at most
    `sensitivity` in ‖·‖₂; where the noise is at the server, `sensitivity` is how far it moves the sum to
    which the server adds noise.
    """

    kind: Kind
    statistic: Callable[[Records, Tensor | None], Tensor]
    sensitivity: float
    radius: float
    """The most that ‖·‖₂ of the statistic can be, whatever the records."""
    channel: Channel | Noiseless | Shares
    sum_sigma: float | None = None
    """σ of noise at the server; what the channel adds is then no protection, and not counted."""
    removal: float = field(kw_only=True)
    """As `sensitivity`, for one record left out (a vector of zeros) and the denominator kept: to be read
    beside work that states ε for added or removed records; nothing is calibrated or charged by it."""

    @property
    def size(self) -> int:
        """Numbers in the released vector."""
        return self.channel.size

    @property
    def sigma(self) -> float:
        """σ, the scale of the noise that protects."""
        return self.channel.sigma if self.sum_sigma is None else self.sum_sigma

    @property
    def place(self) -> Literal["client", "server", "shared", "nowhere"]:
        """Where the noise is added; nowhere in the ablation `epsilon=inf`."""
        if isinstance(self.channel, Noiseless):
            return "nowhere"
        if isinstance(self.channel, Shares):
            return "shared"
        return "client" if self.sum_sigma is None else "server"

    @property
    def mu_squared(self) -> float:
        """(Δ/σ)², what one such release adds to its client's spending; nothing where there is no ledger."""
        return 0.0 if self.place == "nowhere" else (self.sensitivity / self.sigma) ** 2

    @property
    def largest_message(self) -> int:
        """Bytes beyond which nothing can be a message of this release."""
        return 8 * self.size + OVERHEAD_BYTES

    @property
    def largest_norm(self) -> float:
        """What ‖·‖₂ of a release exceeds with a probability of `IMPOSSIBLE` at most, whatever the records."""
        noise = self.channel.sigma * longest_noise(self.size)
        return (self.radius + noise) * (1 + self.channel.rounding)

    def plausible(self, vector: np.ndarray) -> bool:
        """Returns whether a decoded vector can be a release of this kind: who sends others is no client.

        A vector that is not finite is not plausible.
        """
        return bool(np.linalg.norm(vector) <= self.largest_norm)

    def charge(self, run: str, account: str, round_number: int, helpers: str = "") -> Charge:
        """Returns what the ledger records of it; `helpers` are the names of those whose masks are on it."""
        place: Place = "client" if self.place == "nowhere" else self.place
        charge = Charge(run, account, self.kind, round_number, self.sensitivity, self.sigma, place)
        if not isinstance(self.channel, Shares):
            return charge
        sharing = self.channel.sharing
        return replace(charge, honest=sharing.honest, share=sharing.one, helpers=helpers)

    def stream(self, run: str, client: str, round_number: int) -> Stream:
        """The name of one release's randomness, used once for ever."""
        return (run, client, self.kind, round_number)

    def encode(
        self, u: np.ndarray, *, secret: bytes, stream: Stream, request: bytes = b"", seed: int | None = None
    ) -> bytes:
        """The message of one release; `seed` draws reproducible noise, in simulations that say so."""
        private = None if seed is None else _seeded(seed, stream)
        return self.channel.encode(u, secret=secret, stream=stream, request=request, private=private)

    def decode(self, message: bytes, *, secret: bytes, stream: Stream, request: bytes = b"") -> np.ndarray:
        """The private vector, float64 (size,), of a message that answers this request."""
        return self.channel.decode(message, secret=secret, stream=stream, request=request)


def asked_for(coefficients: Tensor | None, seal: bytes = b"") -> bytes:
    """The digest of a request, which both ends compute: of the coefficients that were sent, a centre behind
    them included, and of the key for which the answer is sealed, where there is one.

    >>> asked_for(None) == asked_for(Tensor([])), asked_for(None) == asked_for(None, bytes(32))
    (True, False)
    """
    sent = b"" if coefficients is None else coefficients.detach().cpu().numpy().astype("<f4").tobytes()
    return hashlib.sha256(len(sent).to_bytes(8, "big") + sent + seal).digest()


def server_randomness(plan: Plan, run: str, round_number: int) -> PrivateRandomness:
    """Returns what the server draws a round's noise from: cryptographic, unless the run is seeded."""
    return _seeded(plan.seed, (run, "server", "update", round_number)) if plan.seeded else SystemRandomness()


def spending(releases: Mapping[Kind, Release], counts: Mapping[Kind, int], *, removal: bool = False) -> float:
    """Σ (Δ/σ)² of so many releases of each kind; with Δ for an added or removed record if asked for."""
    total = 0.0
    for kind, count in counts.items():
        if count:
            release = releases[kind]
            part = (release.removal / release.sensitivity) ** 2 if removal else 1.0
            total += count * release.mu_squared * part
    return total


def _seeded(seed: int, stream: Stream) -> SeededRandomness:
    return SeededRandomness(hashlib.sha256(f"{seed}:{stream!r}".encode()).digest())
