"""10⁸ errors of every exact channel against N(0, σ²I): `python -m benchmarks.exactness [samples]`.

For each channel, lattice and kind of statistic, about 25 z-scores (twice for `polar`, also in its rotated
domain), and many messages of one and of 64 coordinates. Exits with 1 if any exceeds 5.5: about 1,200 scores
are looked at, so exact channels fail once in some 20,000 runs.
"""

from __future__ import annotations

import sys
import time

from studies.exactness import STATISTICS, collect

from sottovoce.channel import open_channel

SIZE, SIGMA, LIMIT = 16384, 0.0147, 5.5
SMALL = ("clip bound", "sparse")  # kinds that are sent in short messages, too
CHANNELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("direct", {}),
    ("lrsuq", {"lattice": "Z4"}),
    ("lrsuq", {"lattice": "D4"}),
    ("lrsuq", {"lattice": "E8"}),
    ("polar", {}),
)


def check(name: str, options: dict[str, str], kind: str, size: int, messages: int) -> float:
    """Print one line about many messages of one kind; returns the largest |z|."""
    start = time.perf_counter()
    channel = open_channel(name, size=size, sigma=SIGMA, **options)
    found = collect(channel, kind, messages, seed=1)
    what, z = max((evidence.worst() for evidence in found), key=lambda item: abs(item[1]))
    label, seconds = "/".join([name, *options.values()]), time.perf_counter() - start
    print(
        f"{label:9} n = {size:<6} {kind:20} {found[0].samples:.2e} samples   worst: {what} z = {z:+.2f}   "
        f"({seconds:.0f} s)",
        flush=True,
    )
    return abs(z)


def run(samples: int) -> float:
    """All channels, kinds and sizes; returns the largest |z|."""
    messages = max(1, round(samples / len(STATISTICS) / SIZE))
    short, full = 20 * messages, tuple(STATISTICS)
    return max(
        check(name, options, kind, size, count)
        for name, options in CHANNELS
        for size, count, kinds in ((1, short, SMALL), (64, short, SMALL), (SIZE, messages, full))
        for kind in kinds
    )


if __name__ == "__main__":
    count = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    largest = run(count)
    print(f"largest |z| = {largest:.2f}, limit {LIMIT}")
    sys.exit(largest > LIMIT)
