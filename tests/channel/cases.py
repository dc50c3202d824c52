"""Channels by name, and the worst z-score of many of their messages."""

from __future__ import annotations

from studies.exactness import collect

from sottovoce.channel import Channel, open_channel

SIGMA = 0.0147
SECRET = bytes(range(32))

EXACT = ["direct", "lrsuq/Z4", "lrsuq/D4", "lrsuq/E8", "lrsuq-elias/Z4", "polar"]
EVERY = [*EXACT, "lrsuq-elias/D4", "lrsuq-elias/E8", "direct-q12", "integers"]


def opened(name: str, size: int, sigma: float = SIGMA) -> Channel:
    """A channel by its name in the wire format, such as lrsuq/D4."""
    base, _, lattice = name.partition("/")
    return open_channel(base, size=size, sigma=sigma, **({"lattice": lattice} if lattice else {}))


def worst(channel: Channel, kind: str, messages: int) -> tuple[str, float]:
    """What deviates most from the exact law, and its z-score."""
    return max((found.worst() for found in collect(channel, kind, messages)), key=lambda item: abs(item[1]))
