"""The golden messages of tests/channel/test_golden.py, and the way they were made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sottovoce.channel import Channel, SeededRandomness, open_channel

PATH = Path(__file__).parent / "golden.json"


@dataclass(frozen=True)
class Golden:
    """One pinned message: how to make it, its bytes, and what it decodes to."""

    channel: str
    size: int
    sigma: float
    norm: float
    message: str = ""
    decoded: tuple[float, ...] = ()

    secret = bytes(range(32))
    stream = ("golden", 1)

    def opened(self) -> Channel:
        base, _, lattice = self.channel.partition("/")
        options = {"lattice": lattice} if lattice else {}
        return open_channel(base, size=self.size, sigma=self.sigma, **options)


def encoded(golden: Golden) -> bytes:
    """The message of a golden entry, made afresh."""
    u = SeededRandomness(b"golden statistic").normal(golden.size)
    u *= golden.norm / np.linalg.norm(u)
    return golden.opened().encode(
        u, secret=golden.secret, stream=golden.stream, private=SeededRandomness(b"golden private")
    )


def main() -> None:
    entries = []
    for channel in ("direct", "direct-q12", "lrsuq/Z4", "lrsuq/D4", "lrsuq/E8", "lrsuq-elias/Z4", "polar"):
        for size, norm in ((3, 0.1), (40, 1.0)):
            entries.append(Golden(channel, size, 0.05, norm))
    entries += [Golden(name, 1000, 0.05, norm) for name in ("lrsuq/Z4", "polar") for norm in (0.0, 0.3, 1.0)]
    entries += [Golden("polar", 16384, 0.0147, norm) for norm in (0.3, 0.6, 1.0)]
    entries += [Golden("polar", 1000, 0.001, 1.0), Golden("polar", 64, 0.001, 100.0)]
    entries += [Golden("integers", size, 0.05, norm) for size, norm in ((3, 0.1), (40, 1.0), (1000, 0.3))]
    entries += [Golden("integers", 64, 0.001, 100.0)]
    finished = []
    for entry in entries:
        message = encoded(entry)
        y = entry.opened().decode(message, secret=entry.secret, stream=entry.stream)
        values = (float(y[0]), float(y[-1]), float(y.sum()), float(np.abs(y).sum()))
        finished.append(asdict(entry) | {"message": message.hex(), "decoded": values})
    PATH.write_text(json.dumps(finished, indent=1) + "\n")


if __name__ == "__main__":
    main()
