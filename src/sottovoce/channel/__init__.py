"""Exact Gaussian channels: send a clipped statistic in few bytes, receive it plus exactly N(0, σ²I).

Whatever the code behind it, `decode(encode(u))` follows exactly N(u, σ²I) for every u (Eq. lrsuq-channel of
the paper), so privacy and learning do not depend on which channel carries a release. Two channels differ, and
say how: `direct-q12` rounds what is noised, and the messages of `integers` are private themselves.

Usable alone, inside any differentially private system. The decoded vector is the private release; other
messages, their length and the shared randomness reveal more and stay between client and trusted server.

>>> import numpy as np
>>> secret, u = bytes(32), np.full(1000, 0.01)
>>> channel = open_channel("direct", size=1000, sigma=0.1)
>>> message = channel.encode(u, secret=secret, stream=("client-3", 7))
>>> y = channel.decode(message, secret=secret, stream=("client-3", 7))
>>> y.shape, len(message)
((1000,), 4005)
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.wire import (
    BOUND,
    DRAWN_BYTES,
    ChannelError,
    Envelope,
    PrivateRandomness,
    SeededRandomness,
    SharedRandomness,
    Stream,
    SystemRandomness,
    claim,
    version_of,
)
from sottovoce.errors import nearest

__all__ = [
    "CHANNELS",
    "Channel",
    "ChannelError",
    "PrivateRandomness",
    "SeededRandomness",
    "SystemRandomness",
    "open_channel",
]


CHANNELS = {
    "direct": "sottovoce.channel.direct:Direct",
    "direct-q12": "sottovoce.channel.direct:DirectQ12",
    "lrsuq": "sottovoce.channel.lrsuq:Lrsuq",
    "lrsuq-elias": "sottovoce.channel.lrsuq:LrsuqElias",
    "polar": "sottovoce.channel.polar:Polar",
    "integers": "sottovoce.channel.direct:Integers",
}
"""Each channel's class, as 'module:name': it is imported when first asked for."""

# Beyond this many σ a float64 cannot hold statistic and noise together.
LARGEST_RATIO = 2.0**40


class Channel(ABC):
    """One end of a channel for vectors of `size` coordinates and noise scale `sigma` per coordinate."""

    formats: ClassVar[Mapping[str, int]] = {}
    """Its formats on the wire and their numbers, 0 to 15; a number is given once for ever."""
    options: ClassVar[tuple[str, ...]] = ()
    """What it takes beside size and σ."""
    bound: ClassVar[bool] = False
    """Whether its noise comes from randomness that both ends share, so that messages are bound to requests;
    others draw theirs from the operating system, anew for each message."""
    name: str
    size: int
    sigma: float

    def __init_subclass__(cls) -> None:
        for format, number in cls.formats.items():
            claim(format, number)

    def __init__(self, name: str, size: int, sigma: float, format: str = "") -> None:
        if size < 1:
            raise ChannelError(f"size is {size}; a channel carries at least one coordinate")
        if not (math.isfinite(sigma) and sigma > 0):
            raise ChannelError(f"sigma is {sigma}; it must be positive and finite")
        self.name, self.size, self.sigma = name, int(size), float(sigma)
        self._format = format or name
        self._used: set[bytes] = set()

    @property
    def rounding(self) -> float:
        """By how much, relative to its norm, a decoded vector may differ from statistic + Gaussian noise."""
        return 1e-6

    @property
    def widening(self) -> float:
        """How much farther apart than two statistics the centres of their noise may be, in ‖·‖₂; it is
        proportional to σ, and part of what is charged."""
        return 0.0

    def encode(
        self,
        u: Any,
        *,
        secret: bytes,
        stream: Stream,
        request: bytes = b"",
        private: PrivateRandomness | None = None,
    ) -> bytes:
        """The message that decodes to u + N(0, σ²I), independent of u.

        `u` is a numpy array or torch tensor of shape (size,), float32 or float64, finite. `secret` is 32
        bytes known to both ends. `stream` names this release for ever: two messages under one stream are two
        releases, which one privacy charge does not cover, so this object refuses a stream it has used.
        `request` is what the release was asked for with, as bytes that both ends know: another request, or
        another encoding, has noise of its own. `private` replaces the operating system's generator in seeded
        simulations.
        """
        vector, randomness = self._vector(u), private or SystemRandomness()
        envelope = self._envelope(secret, stream)
        used = hashlib.sha256(secret + envelope.context).digest()
        if used in self._used:
            raise ChannelError(f"stream {stream!r} was used before; every release needs a stream of its own")
        self._used.add(used)
        if self.bound:
            envelope = replace(envelope, request=request, drawn=randomness.bytes(DRAWN_BYTES))
        payload = self._encode(vector, SharedRandomness(envelope), randomness)
        return envelope.seal(payload)

    def decode(
        self, message: bytes, *, secret: bytes, stream: Stream, request: bytes | None = None
    ) -> NDArray[np.float64]:
        """The private release: a float64 array of shape (size,).

        ChannelError if the message is damaged, or belongs to another secret, stream, request, channel, size
        or σ. Only where no `request` is said are messages read that are bound to none, as of version 1.
        """
        envelope = self._envelope(secret, stream)
        if self.bound and (request is not None or version_of(message) == BOUND):
            envelope = replace(envelope, request=request or b"")
        sealed, payload = envelope.opened(message)
        return self._decode(payload, SharedRandomness(sealed))

    def _envelope(self, secret: bytes, stream: Stream) -> Envelope:
        return Envelope(self._format, self.size, self.sigma, secret, stream)

    def _vector(self, u: Any) -> NDArray[np.float64]:
        if hasattr(u, "detach"):
            u = u.detach().cpu().numpy()
        vector = np.ascontiguousarray(u, dtype=np.float64)
        if vector.shape != (self.size,):
            raise ChannelError(f"statistic has shape {vector.shape}, this channel carries ({self.size},)")
        largest = float(np.abs(vector).max())
        if not math.isfinite(largest):
            raise ChannelError("statistic holds NaN or infinity; clip it before encoding")
        if largest > LARGEST_RATIO * self.sigma:
            raise ChannelError(
                f"statistic reaches {largest:.3g}, over 2^40 times sigma {self.sigma:.3g}; clip it first"
            )
        return vector

    @abstractmethod
    def _encode(
        self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness
    ) -> bytes: ...

    @abstractmethod
    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]: ...


def channel_class(name: str) -> type[Channel]:
    """The class of channel `name`."""
    if name not in CHANNELS:
        raise ChannelError(f"no channel is called {name!r}; {nearest(name, CHANNELS)}")
    module, _, attribute = CHANNELS[name].partition(":")
    opened: type[Channel] = getattr(import_module(module), attribute)
    return opened


def open_channel(name: str, *, size: int, sigma: float, **options: str) -> Channel:
    """Opens one end of channel `name` for vectors of `size` coordinates with noise scale `sigma`.

    The only option is `lattice` ("Z4", "D4" or "E8") of the lrsuq channels. Both ends open the same channel.
    """
    opened = channel_class(name)
    for option in options:
        if option not in opened.options:
            hint = nearest(option, opened.options) if opened.options else "it takes none"
            raise ChannelError(f"channel {name} has no option {option!r}; {hint}")
    return opened(name, size, sigma, **options)
