"""What channels cost: bits per coefficient from real bytes, against the limit, and time to encode and decode.

All channels are measured in turn on the same statistics, so that other load on the machine hits them alike.
The limit is the mutual information of the Gaussian channel, n/2·log₂(1 + ‖u‖²/(nσ²)) bits, which no exact
channel can beat on average.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel, open_channel
from sottovoce.channel.wire import ChannelError


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
        for number in range(-1, messages):
            u = rng.standard_normal(size)
            u *= norm / np.linalg.norm(u)
            for name, channel in opened.items():
                length, times = _one(channel, u, number)
                if number >= 0:  # the first message pays for compiling and for tables
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
    secret = secrets.token_bytes(32)
    start = time.thread_time()
    message = channel.encode(u, secret=secret, stream=("bench", number))
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


def plot(rows: list[dict[str, Any]], path: str | Path) -> None:
    """Rate against norm as an SVG file, one line per channel, with the limit drawn in.

    Rows of one σ and size, as `measure` returns them.
    """
    Path(path).write_text(_svg(rows), encoding="utf-8")


def _title(rows: list[dict[str, Any]]) -> str:
    return f"Bits per coefficient, σ = {rows[0]['sigma']:g}, n = {rows[0]['size']:,}"


def _lines(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Points (norm, bits per coefficient) of every channel, and of the limit."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(row["channel"], []).append((row["norm"], row["bits_per_coefficient"]))
        lines.setdefault("limit", []).append((row["norm"], row["limit"]))
    return {name: sorted({p for p in points if min(p) > 0.0}) for name, points in lines.items()}


_COLORS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#975a16", "#285e61")


def _svg(rows: list[dict[str, Any]]) -> str:
    lines = _lines(rows)
    everything = [point for points in lines.values() for point in points]
    (left, right), (bottom, top) = (
        (math.log10(min(values)), math.log10(max(values))) for values in zip(*everything, strict=True)
    )
    width, height, pad = 720, 440, 60

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - left) / max(right - left, 1e-9)
        up = (math.log10(y) - bottom) / max(top - bottom, 1e-9)
        return pad + across * (width - 3 * pad), height - pad - up * (height - 2 * pad)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{pad}" y="24" font-size="15">{_title(rows)}</text>',
        f'<text x="{width / 2 - pad}" y="{height - 16}">norm of the statistic</text>',
    ]
    for exponent in range(math.ceil(bottom), math.floor(top) + 1):
        y = place(10**left, 10.0**exponent)[1]
        parts.append(f'<line x1="{pad}" x2="{width - 2 * pad}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{pad - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**exponent:g}</text>')
    for norm in sorted({x for x, _ in everything}):
        x = place(norm, 10**bottom)[0]
        parts.append(f'<text x="{x:.1f}" y="{height - pad + 18}" text-anchor="middle">{norm:g}</text>')
    for (name, points), color in zip(lines.items(), _COLORS * (1 + len(lines) // 8), strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        dash = ' stroke-dasharray="6 4"' if name == "limit" else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        x, y = place(*points[-1])
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 4:.1f}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
