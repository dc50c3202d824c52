"""Time of an event: one encoding and decoding of a gradient release, by channel (Table 3, last column).

Measured on one vector of the size, norm and noise of the CIFAR-10 runs at ε = 16, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.channel import CHANNELS, SeededRandomness, open_channel
from sottovoce.files import write_atomically

SIZE = 16384
SIGMA = 0.0152  # ε = 16, T_max = 43, m = 333
NORM = 0.3  # of a clipped mean in the middle of such a run
EVENTS = 21


def measure_events(channels: Sequence[str] = tuple(CHANNELS), events: int = EVENTS) -> dict[str, float]:
    """Median milliseconds of an event, by channel."""
    direction = np.random.default_rng(0).standard_normal(SIZE)
    statistic = direction * (NORM / np.linalg.norm(direction))
    return {name: _median(name, statistic, events) for name in channels}


def milliseconds_per_event(path: Path) -> dict[str, float]:
    """What was measured into a file, or nothing where there is no file."""
    if not path.exists():
        return {}
    measured: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["milliseconds"]
    return measured


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m sottovoce.experiments.events --out results/events.json`"""
    parser = argparse.ArgumentParser(prog="python -m sottovoce.experiments.events", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/events.json"))
    options = parser.parse_args(arguments)
    record: dict[str, Any] = {
        "milliseconds": measure_events(),
        "events": EVENTS,
        "size": SIZE,
        "sigma": SIGMA,
        "norm": NORM,
        "command": "python -m sottovoce.experiments.events",
        "device": platform.machine(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(options.out, (json.dumps(record, indent=1) + "\n").encode())
    print(record["milliseconds"])
    return 0


def _median(name: str, statistic: np.ndarray, events: int) -> float:
    channel = open_channel(name, size=SIZE, sigma=SIGMA)
    secret, seconds = bytes(32), []
    for event in range(events + 1):
        private = SeededRandomness(event.to_bytes(32, "big"))
        started = time.perf_counter()
        message = channel.encode(statistic, secret=secret, stream=("event", event), private=private)
        channel.decode(message, secret=secret, stream=("event", event))
        seconds.append(time.perf_counter() - started)
    return round(1e3 * statistics.median(seconds[1:]), 3)  # the first call compiles


if __name__ == "__main__":
    sys.exit(main())
