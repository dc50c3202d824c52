"""What channels cost: bits per coefficient from real bytes, against the limit, and time to encode and decode.

All channels are measured in turn on the same statistics, so that other load on the machine hits them alike.
The limit is the mutual information of the Gaussian channel, n/2·log₂(1 + ‖u‖²/(nσ²)) bits, which no exact
channel can beat on average.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import CHANNELS, Channel, open_channel
from sottovoce.channel.wire import ChannelError, SeededRandomness
from sottovoce.report.chart import Axis, line_of, logarithmic, svg, trend
from sottovoce.report.table import number

# σ at ε = 16, T_max = 43 and m = 333; the norm of a clipped mean in the middle of such a run.
EVENT = {"events": 21, "size": 16384, "sigma": 0.0152, "norm": 0.3}


def limit(norm: float, sigma: float, size: int) -> float:
    """Mutual information in bits per coefficient of a statistic of this norm sent with noise σ.

    >>> round(limit(0.3, 0.0147, 16384), 4)
    0.0181
    """
    return 0.5 * math.log2(1.0 + norm**2 / (size * sigma**2))


def measure(
    channels: Iterable[str], sigma: float, norms: Iterable[float], size: int, messages: int
) -> list[dict[str, Any]]:
    """One row per channel and norm, from `messages` random directions of each norm.

    A channel may name its lattice: "lrsuq", "lrsuq/D4". Rows hold `channel`, `sigma`, `norm`, `size`,
    `messages`, `bytes` (mean), `bits_per_coefficient`, `limit`, `ratio` (to the limit), and milliseconds of
    CPU time `encode_ms`, `encode_ms_p99`, `decode_ms`, `decode_ms_p99`, `slowest_ratio` (slowest message
    over the median, encode and decode together).
    """
    if messages < 1:
        raise ChannelError(f"messages is {messages}; measure at least one")
    opened = {name: _open(name, size, sigma) for name in channels}
    rng = np.random.default_rng(0)
    rows = []
    for norm in norms:
        lengths: dict[str, list[int]] = {name: [] for name in opened}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in opened}
        for repeat in range(-1, messages):
            u = rng.standard_normal(size)
            u *= norm / np.linalg.norm(u)
            for name, channel in opened.items():
                length, times = _one(channel, u, repeat)
                if repeat >= 0:  # the first message pays for compiling and for tables
                    lengths[name].append(length)
                    seconds[name].append(times)
        for name in opened:
            row = _row(np.array(lengths[name]), 1e3 * np.array(seconds[name]), limit(norm, sigma, size), size)
            rows.append({"channel": name, "sigma": sigma, "norm": norm, "size": size} | row)
    return rows


def _open(name: str, size: int, sigma: float) -> Channel:
    base, _, lattice = name.partition("/")
    options = {"lattice": lattice} if lattice else {}
    return open_channel(base, size=size, sigma=sigma, **options)


def _one(channel: Channel, u: NDArray[np.float64], number: int) -> tuple[int, tuple[float, float]]:
    # Fixed draws: one message in some hundred names every leaf, and a mean of a few must not depend on luck.
    secret = hashlib.sha256(u.tobytes()).digest()
    private = SeededRandomness(secret)
    start = time.thread_time()
    message = channel.encode(u, secret=secret, stream=("bench", number), private=private)
    middle = time.thread_time()
    channel.decode(message, secret=secret, stream=("bench", number))
    return len(message), (middle - start, time.thread_time() - middle)


def _row(
    lengths: NDArray[np.int64], milliseconds: NDArray[np.float64], bound: float, size: int
) -> dict[str, Any]:
    bits = 8.0 * float(lengths.mean()) / size
    middle, late = np.median(milliseconds, axis=0), np.quantile(milliseconds, 0.99, axis=0)
    both = milliseconds.sum(axis=1)
    return {
        "messages": len(lengths),
        "bytes": float(lengths.mean()),
        "bits_per_coefficient": bits,
        "limit": bound,
        "ratio": bits / bound if bound > 0.0 else math.inf,
        "encode_ms": float(middle[0]),
        "encode_ms_p99": float(late[0]),
        "decode_ms": float(middle[1]),
        "decode_ms_p99": float(late[1]),
        "slowest_ratio": float(both.max() / np.median(both)),
    }


def milliseconds_per_event(channels: Iterable[str] = CHANNELS) -> dict[str, float]:
    """Median milliseconds to encode and decode a gradient release of the paper's CIFAR-10 runs at ε = 16."""
    sigma, norm, size, messages = (EVENT[key] for key in ("sigma", "norm", "size", "events"))
    rows = measure(channels, sigma, [norm], int(size), int(messages))
    return {row["channel"]: round(row["encode_ms"] + row["decode_ms"], 3) for row in rows}


def plot(rows: list[dict[str, Any]], path: str | Path) -> None:
    """Rate against norm as an SVG file, one line per channel, with the limit drawn in.

    Rows of one σ and size, as `measure` returns them.
    """
    lines: dict[str, set[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(row["channel"], set()).add((row["norm"], row["bits_per_coefficient"]))
    colors = ("blue", "orange", "green", "violet", "gray")
    tones = cycle([*colors, *(f"{color} dotted" for color in colors)])
    series = [line_of(name, next(tones), points, positive=True) for name, points in lines.items()]
    limits = {(row["norm"], row["limit"]) for row in rows}
    series.append(line_of("limit", "dashed", limits, positive=True))
    norms = sorted({x for line in series for x, _ in line.points})
    across = Axis(norms[0], norms[-1], tuple(norms), log=True) if len(norms) > 1 else None
    rates = logarithmic(y for line in series for _, y in line.points)
    chart = trend("", "", series, x_name="norm of the statistic", y=rates, show=number, x=across)
    note = f"σ = {rows[0]['sigma']:g}, n = {rows[0]['size']:,}; real bytes, and the limit of exact channels"
    Path(path).write_text(svg("Bits per coefficient", note, [replace(chart, height=300)]), encoding="utf-8")
