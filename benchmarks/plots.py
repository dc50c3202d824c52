"""Draws every figure for which there is JSON in benchmarks/out/: `python -m benchmarks.plots [FOLDER]`.

`python -m benchmarks.plots docs/img` draws those of docs/benchmarks.md; without a folder, there beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.figures import bars

from sottovoce.report.chart import Axis, Chart, Series, line_of, linear, logarithmic, svg, trend
from studies.bench import channel

OUT = Path(__file__).parent / "out"
OURS, ALSO, PEER, PLAIN = "Sottovoce", "Sottovoce, otherwise", "others", "an ordinary step"
TONES = {OURS: "blue", ALSO: "violet", PEER: "orange", PLAIN: "gray"}
CONTENDERS = {
    "plain": ("two ordinary steps, no federation", PLAIN),
    "direct": ("Sottovoce", OURS),
    "polar": ("Sottovoce, polar", OURS),
    "global": ("Sottovoce, one shared model", ALSO),
    "pfl": ("pfl-research", PEER),
    "flower": ("Flower's simulation", PEER),
}
LINES = {"structured": ("structured", "blue"), "unstructured": ("unstructured", "violet")}
LINES["plain"] = ("plain steps", "gray")
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
    if (rows := source / "channel.json").exists():
        written.append(target / "bench-channel.svg")
        channel.plot(json.loads(rows.read_text())["figures"], written[-1])
    return written


def gradients(figures: dict[str, float]) -> str:
    """Processor time against a plain step, the best chunk size of Opacus standing for all."""
    rows = {
        "structured basis": (OURS, figures["structured_over_plain"]),
        "unstructured basis": (OURS, figures["unstructured_over_plain"]),
        "whole model": (OURS, figures["identity_over_plain"]),
        "torch.func.vmap, projected": (PEER, figures["vmap_over_plain"]),
    }
    if "opacus_over_structured" in figures:
        hooks = figures["opacus_over_structured"] * figures["structured_over_plain"]
        ghost = figures["opacus_ghost_over_identity"] * figures["identity_over_plain"]
        rows |= {"Opacus hooks, projected": (PEER, hooks), "Opacus ghost, whole model": (PEER, ghost)}
    title = "A private gradient against an ordinary training step"
    note = f"{figures['records']:.0f} records, CIFAR-10 LeNet, k = 16,384, one thread; × a plain PyTorch step"
    return svg(title, note, [_bars(rows, lambda value: f"{value:.2f}", ("a plain step", 1.0))])


def memory(figures: dict[str, float]) -> str:
    """Peak megabytes above data and model."""
    names = {"plain": "plain step", "structured": "structured basis", "unstructured": "unstructured basis"}
    names["identity"] = "whole model"
    rows = {names[key]: (PLAIN if key == "plain" else OURS, value) for key, value in figures.items()}
    title = "Peak memory of a private gradient"
    note = "333 records, CIFAR-10 LeNet; MB above model, records and basis"
    return svg(title, note, [_bars(rows, lambda value: f"{value:.0f} MB")])


def rounds(figures: dict[str, Any]) -> str:
    """Milliseconds a round of every contender, by cores."""
    charts = []
    for cores, times in figures["milliseconds"].items():
        rows = {name: (group, times[key]) for key, (name, group) in CONTENDERS.items() if key in times}
        charts.append(replace(_bars(rows, lambda value: f"{value:.0f} ms"), title=cores))
    title = "One round: two clients of 333 records, CIFAR-10 LeNet"
    note = "Milliseconds, median, start-up left out; all train on the same records with one gradient each"
    return svg(title, note, charts)


def scaling(quantity: str, rows: list[dict[str, Any]]) -> str:
    """Time above memory, over one quantity."""
    title, x_name, magnitudes = AXES[quantity]
    values = sorted({row[quantity] for row in rows})
    x = Axis(values[0], values[-1], tuple(values), log=True)
    x_show = short if quantity == "parameters" else "{:,.0f}".format
    charts = []
    for key, name in (
        ("round_ms", "Milliseconds a round"),
        ("peak_mb", "Peak MB above Python and its libraries"),
    ):
        found = [row[key] for row in rows]
        y = logarithmic(found) if magnitudes and key == "round_ms" else linear(found, zero=True)
        lines = _lines(quantity, key, rows)
        charts.append(trend(name, "", lines, x_name=x_name, y=y, show="{:,g}".format, x=x, x_show=x_show))
    return svg(title, "direct, one thread; each point a process of its own", charts)


def short(count: float) -> str:
    """Three digits of a large count.

    >>> short(121_182), short(1_911_258)
    ('121 k', '1.91 M')
    """
    return f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count / 1e3:.3g} k"


def _bars(
    rows: Mapping[str, tuple[str, float]],
    show: Callable[[float], str],
    target: tuple[str, float] | None = None,
) -> Chart:
    values = {name: {group: value} for name, (group, value) in rows.items()}
    tones = {group: TONES[group] for group, _ in rows.values()}
    x = linear((value for _, value in rows.values()), zero=True)
    return bars("", "", values, tones, x=x, show=show, target=target)


def _lines(quantity: str, key: str, rows: Iterable[dict[str, Any]]) -> list[Series]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(row["series"], []).append((row[quantity], row[key]))
    return [line_of(*LINES[name], points) for name, points in found.items()]


if __name__ == "__main__":
    for figure in draw(target=Path(sys.argv[1]) if len(sys.argv) > 1 else OUT):
        print(figure)
