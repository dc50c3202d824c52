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

from sottovoce.catalog import CHANNELS
from sottovoce.channel.base import Channel, open_channel
from sottovoce.channel.randomness import PrivateRandomness, SeededRandomness, SystemRandomness
from sottovoce.channel.wire import ChannelError

__all__ = [
    "CHANNELS",
    "Channel",
    "ChannelError",
    "PrivateRandomness",
    "SeededRandomness",
    "SystemRandomness",
    "open_channel",
]
