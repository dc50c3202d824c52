"""Exact Gaussian channels: send a clipped statistic in few bytes, receive it plus exactly N(0, σ²I).

Usable alone, inside any differentially private system. The decoded vector is the private release; messages,
their length and the shared randomness reveal more and stay between client and trusted server. (Messages of
`integers` do not: they are whole numbers with noise in them, and nothing else.)

>>> import numpy as np
>>> secret, u = bytes(32), np.full(1000, 0.01)
>>> channel = open_channel("direct", size=1000, sigma=0.1)
>>> message = channel.encode(u, secret=secret, stream=("client-3", 7))
>>> y = channel.decode(message, secret=secret, stream=("client-3", 7))
>>> y.shape, len(message)
((1000,), 4005)
"""

from __future__ import annotations

from collections.abc import Callable

from sottovoce.catalog import CHANNELS
from sottovoce.channel.base import Channel
from sottovoce.channel.direct import Direct, DirectQ12
from sottovoce.channel.integers import Integers
from sottovoce.channel.randomness import PrivateRandomness, SeededRandomness, SystemRandomness
from sottovoce.channel.wire import ChannelError
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


def _direct(size: int, sigma: float) -> Channel:
    return Direct("direct", "direct", size, sigma)


def _direct_q12(size: int, sigma: float) -> Channel:
    return DirectQ12("direct-q12", "direct-q12", size, sigma)


def _lrsuq(size: int, sigma: float, lattice: str = "Z4") -> Channel:
    from sottovoce.channel.lrsuq import Lrsuq  # numba is imported only where a channel needs it

    return Lrsuq("lrsuq", lattice, size, sigma)


def _lrsuq_elias(size: int, sigma: float, lattice: str = "Z4") -> Channel:
    from sottovoce.channel.elias import LrsuqElias

    return LrsuqElias("lrsuq-elias", lattice, size, sigma)


def _polar(size: int, sigma: float) -> Channel:
    from sottovoce.channel.polar.codec import Polar

    return Polar("polar", size, sigma)


def _integers(size: int, sigma: float) -> Channel:
    return Integers("integers", size, sigma)


OPENERS: dict[str, Callable[..., Channel]] = {
    "direct": _direct,
    "direct-q12": _direct_q12,
    "lrsuq": _lrsuq,
    "lrsuq-elias": _lrsuq_elias,
    "polar": _polar,
    "integers": _integers,
}


def open_channel(name: str, *, size: int, sigma: float, **options: str) -> Channel:
    """Open one end of channel `name` for vectors of `size` coordinates with noise scale `sigma`.

    The only option is `lattice` ("Z4", "D4" or "E8") of the lrsuq channels. Both ends open the same channel.
    """
    if name not in OPENERS:
        raise ChannelError(f"no channel is called {name!r}; {nearest(name, OPENERS)}")
    known = CHANNELS[name].options
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "it takes none"
            raise ChannelError(f"channel {name} has no option {option!r}; {hint}")
    return OPENERS[name](size, sigma, **options)
