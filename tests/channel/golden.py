"""The golden messages of tests/channel/test_golden.py, and the way they were made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
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
    request: str = ""
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
    private = SeededRandomness(b"golden private")
    said = {"secret": golden.secret, "stream": golden.stream, "request": golden.request.encode()}
    return golden.opened().encode(u, **said, private=private)  # type: ignore[arg-type]


def decoded(golden: Golden) -> np.ndarray:
    """What a golden message decodes to."""
    request = golden.request.encode() or None
    message, said = bytes.fromhex(golden.message), {"secret": golden.secret, "stream": golden.stream}
    return golden.opened().decode(message, **said, request=request)  # type: ignore[arg-type]


def made_no_more(golden: Golden) -> bool:
    """Returns whether the message is of a version that its channel reads and does not write."""
    return golden.opened().bound and golden.message[0] == "1"


def main() -> None:
    """Writes what is encoded now; messages of version 1 that nobody makes any more stay as they are."""
    old = [entry for entry in json.loads(PATH.read_text()) if made_no_more(Golden(**entry))]
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
        if entry.opened().bound:
            entry = replace(entry, request="asked")
        message = encoded(entry)
        y = decoded(replace(entry, message=message.hex()))
        values = (float(y[0]), float(y[-1]), float(y.sum()), float(np.abs(y).sum()))
        finished.append(asdict(entry) | {"message": message.hex(), "decoded": values})
    PATH.write_text(json.dumps(old + finished, indent=1) + "\n")


if __name__ == "__main__":
    main()
