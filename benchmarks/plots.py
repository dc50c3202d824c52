"""Draws every figure for which there is JSON in benchmarks/out/: `python -m benchmarks.plots [FOLDER]`.

`python -m benchmarks.plots docs/img` draws those of docs/benchmarks.md; without a folder, there beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.svg import Bar, Line, Panel, bars, panels
from sottovoce.report.scale import Scale, linear, logarithmic

OUT = Path(__file__).parent / "out"
CONTENDERS = {
    "plain": ("two ordinary steps, no federation", "plain"),
    "direct": ("Sottovoce", "ours"),
    "polar": ("Sottovoce, polar", "ours"),
    "global": ("Sottovoce, one shared model", "also"),
    "pfl": ("pfl-research", "peer"),
    "flower": ("Flower's simulation", "peer"),
}
LINES = {"structured": ("structured", "ours"), "unstructured": ("unstructured", "also")}
LINES["plain"] = ("plain steps", "plain")
AXES = {  # by quantity: title, name of the axis, and whether times span magnitudes
    "coefficients": ("A round against k", "coefficients k of a message", False),
    "parameters": ("A round against the size of the model", "parameters d of the model", True),
    "records": ("A round against the records of a client", "training records of each of two clients", True),
    "clients": (
        "A round against the size of the federation",
        "participants, two of which release a round",
        False,
    ),
}


def draw(source: Path = OUT, target: Path = OUT) -> list[Path]:
    """Writes an SVG file for every figure of the JSON in `source`; returns their paths."""
    drawers: dict[str, Callable[[Any], dict[str, str]]] = {
        "gradients": lambda figures: {"gradients": gradients(figures)},
        "memory": lambda figures: {"memory": memory(figures)},
        "round": lambda figures: {"round": rounds(figures)},
        "scaling": lambda figures: {f"scaling-{name}": scaling(name, rows) for name, rows in figures.items()},
    }
    written = []
    for name, drawer in drawers.items():
        path = source / f"{name}.json"
        if path.exists():
            for figure, picture in drawer(json.loads(path.read_text())["figures"]).items():
                written.append(target / f"bench-{figure}.svg")
                written[-1].write_text(picture, encoding="utf-8")
    return written


def gradients(figures: dict[str, float]) -> str:
    """Processor time against a plain step, the best chunk size of Opacus standing for all."""
    rows = [
        Bar("structured basis", "ours", figures["structured_over_plain"]),
        Bar("unstructured basis", "ours", figures["unstructured_over_plain"]),
        Bar("whole model", "ours", figures["identity_over_plain"]),
        Bar("torch.func.vmap, projected", "peer", figures["vmap_over_plain"]),
    ]
    if "opacus_over_structured" in figures:
        hooks = figures["opacus_over_structured"] * figures["structured_over_plain"]
        ghost = figures["opacus_ghost_over_identity"] * figures["identity_over_plain"]
        rows.append(Bar("Opacus hooks, projected", "peer", hooks))
        rows.append(Bar("Opacus ghost, whole model", "peer", ghost))
    title = "A private gradient against an ordinary training step"
    note = f"{figures['records']:.0f} records, CIFAR-10 LeNet, k = 16,384, one thread; × a plain PyTorch step"
    return bars(title, note, {"": rows}, lambda value: f"{value:.2f}", ("plain", 1.0))


def memory(figures: dict[str, float]) -> str:
    """Peak megabytes above data and model."""
    names = {"plain": "plain step", "structured": "structured basis", "unstructured": "unstructured basis"}
    names["identity"] = "whole model"
    rows = [Bar(names[key], "plain" if key == "plain" else "ours", value) for key, value in figures.items()]
    title = "Peak memory of a private gradient"
    note = "333 records, CIFAR-10 LeNet; MB above model, records and basis"
    return bars(title, note, {"": rows}, lambda value: f"{value:.0f} MB")


def rounds(figures: dict[str, Any]) -> str:
    """Milliseconds a round of every contender, by cores."""
    groups: dict[str, Sequence[Bar]] = {
        cores: [Bar(*words, times[key]) for key, words in CONTENDERS.items() if key in times]
        for cores, times in figures["milliseconds"].items()
    }
    title = "One round: two clients of 333 records, CIFAR-10 LeNet"
    note = "Milliseconds, median, start-up left out; all train on the same records with one gradient each"
    return bars(title, note, groups, lambda value: f"{value:.0f} ms")


def scaling(quantity: str, rows: list[dict[str, Any]]) -> str:
    """Time above memory, over one quantity."""
    title, x_name, magnitudes = AXES[quantity]
    values = sorted({row[quantity] for row in rows})
    times, peaks = [row["round_ms"] for row in rows], [row["peak_mb"] for row in rows]
    return panels(
        title,
        "direct, one thread; each point a process of its own",
        Scale(values[0], values[-1], tuple(values), log=True),
        x_name,
        short if quantity == "parameters" else "{:,.0f}".format,
        [
            Panel("milliseconds a round", _axis(times, magnitudes), _lines(quantity, "round_ms", rows)),
            Panel(
                "peak MB above Python and its libraries",
                _axis(peaks, False),
                _lines(quantity, "peak_mb", rows),
            ),
        ],
    )


def short(count: float) -> str:
    """Three digits of a large count.

    >>> short(121_182), short(1_911_258)
    ('121 k', '1.91 M')
    """
    return f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count / 1e3:.3g} k"


def _axis(values: Iterable[float], magnitudes: bool) -> Scale:
    return logarithmic(values) if magnitudes else linear(values, zero=True)


def _lines(quantity: str, key: str, rows: list[dict[str, Any]]) -> list[Line]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(row["series"], []).append((row[quantity], row[key]))
    return [Line(*LINES[name], sorted(points)) for name, points in found.items()]


if __name__ == "__main__":
    for figure in draw(target=Path(sys.argv[1]) if len(sys.argv) > 1 else OUT):
        print(figure)
