"""10⁸ errors of every exact channel against N(0, σ²I): `python -m benchmarks.exactness [samples]`.

For each channel, lattice and kind of statistic, about 25 z-scores (twice for `polar`, also in its rotated
domain). Exits with 1 if any exceeds 5.5: about 2,000 scores are looked at, so exact channels fail once in
13,000 runs.
"""

from __future__ import annotations

import sys
import time

from sottovoce.channel import open_channel
from sottovoce.channel.exactness import STATISTICS, collect

SIZE, SIGMA, LIMIT = 16384, 0.0147, 5.5
CHANNELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("direct", {}),
    ("lrsuq", {"lattice": "Z4"}),
    ("lrsuq", {"lattice": "D4"}),
    ("lrsuq", {"lattice": "E8"}),
    ("polar", {}),
)


def run(samples: int) -> float:
    """Print one line per channel and kind of statistic; returns the largest |z|."""
    largest = 0.0
    messages = max(1, round(samples / len(STATISTICS) / SIZE))
    for name, options in CHANNELS:
        for kind in STATISTICS:
            start = time.perf_counter()
            channel = open_channel(name, size=SIZE, sigma=SIGMA, **options)
            found = collect(channel, kind, messages, seed=1)
            what, z = max((evidence.worst() for evidence in found), key=lambda item: abs(item[1]))
            largest = max(largest, abs(z))
            label = "/".join([name, *options.values()])
            seconds = time.perf_counter() - start
            print(
                f"{label:10} {kind:20} {found[0].samples:.2e} samples   worst: {what} z = {z:+.2f}   "
                f"({seconds:.0f} s)",
                flush=True,
            )
    return largest


if __name__ == "__main__":
    count = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    largest = run(count)
    print(f"largest |z| = {largest:.2f}, limit {LIMIT}")
    sys.exit(largest > LIMIT)
