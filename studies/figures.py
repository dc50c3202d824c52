"""The figures of a reproduction: the paper's Figure 2, and curves over budgets and heterogeneity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.report.chart import Axis, Chart, Format, Series, line_of, linear, rect, stroke, trend, upright
from sottovoce.report.table import number
from studies.index import Indexed
from studies.summary import GAIN_EVERY
from studies.tables import SYMBOLS, across_of, rows_of

_TONES = ("gray", "blue", "violet", "orange", "green")
Row = Mapping[Any, Indexed]


def figures(entries: Sequence[Indexed]) -> list[Chart]:
    """The figures of one experiment on one dataset; none where there is nothing to draw."""
    if entries[0]["experiment"] == "geometry":
        return _geometry(entries)
    columns = sorted({float(entry[across_of(entries)]) for entry in entries})
    if len(columns) < 2:
        return []
    rows = rows_of(entries)
    if entries[0]["experiment"] == "dimension":
        [row] = rows.values()
        roles = [_line("Participants", "blue", row, "seen_mean")]
        roles.append(_line("Future clients", "orange", row, "future_mean"))
        norms = [_line("Ours", "violet", row, "noise_norm")]
        norms.append(_line("Published", "dashed", row, "published_noise_norm"))
        return [
            _drawn("Accuracy", "", columns, roles, "coefficients"),
            _drawn("Norm of the perturbation", "Mean over releases.", columns, norms, "coefficients", number),
        ]
    return _methods(rows, columns, across_of(entries))


def _methods(rows: Mapping[str, Row], columns: list[float], across: str) -> list[Chart]:
    """The paper's methods, published and ours, and where the tuned preset stands."""
    first = {label: next(iter(row.values())) for label, row in rows.items()}
    paper = [label for label in rows if first[label].get("beside") is None]
    tuned = [label for label in rows if label not in paper and first[label]["preset"] == "tuned"]
    tones = dict(zip(paper, _TONES, strict=False))
    theirs = [_line(label, tone, rows[label], "published_future_mean") for label, tone in tones.items()]
    ours = [_line(label, tone, rows[label], "future_mean") for label, tone in tones.items()]
    found = [
        _drawn("As published", "Future clients, the paper’s methods.", columns, theirs, across),
        _drawn("Ours", "Future clients, the same methods and settings.", columns, ours, across),
    ]
    if tuned:
        base = first[tuned[0]]["beside"]
        lines = [_line(f"{base}, published", "dashed", rows.get(base, {}), "published_future_mean")]
        lines += [
            _line(label, tone, rows[label], "future_mean")
            for label, tone in zip(tuned, _TONES[3:], strict=False)
        ]
        note = "Future clients, the tuned preset at the same ε and δ."
        found.append(_drawn("Past the paper", note, columns, lines, across))
    return found


def _geometry(entries: Sequence[Indexed]) -> list[Chart]:
    rows = {
        label: {
            "with noise" if noise else "without noise": e["future_mean"] or 0.0 for noise, e in row.items()
        }
        for label, row in rows_of(entries).items()
    }
    note = "Accuracy of future clients by control."
    tones = {"with noise": "orange", "without noise": "blue"}
    found = [bars("Geometry controls", note, rows, tones, x=linear([0.0, 100.0]), show=_percent)]
    noisy = [e for e in entries if e["noise"] and e["label"] != "Direct" and len(set(_effective(e))) > 1]
    lines = [
        Series(e["label"], tone, [(GAIN_EVERY * i or 1, gain) for i, gain in enumerate(_effective(e))])
        for e, tone in zip(noisy, _TONES, strict=False)
    ]
    if lines:
        scale = linear((y for line in lines for _, y in line.points), zero=True)
        note = "How far a step moves the coefficients along the releases, with noise, mean over seeds."
        found.append(trend("Effective gain", note, lines, x_name="round", y=scale, show=number))
    return found


def bars(
    title: str,
    note: str,
    rows: Mapping[str, Mapping[str, float]],
    tones: Mapping[str, str],
    *,
    x: Axis,
    show: Format,
    target: tuple[str, float] | None = None,
) -> Chart:
    """Lying bars, a row a name and in it a bar a group; the name stands above its bars.

    `rows` has values by name and group, `tones` the color of each group.
    """
    marks, texts, labels, row = upright(x), [], [], 100 / len(rows)
    for i, (name, values) in enumerate(rows.items()):
        thick = 0.5 * row / max(len(values), 1)
        for j, (group, value) in enumerate(values.items()):
            place = (0, (i + 0.42) * row + j * thick, x.at(value), 0.86 * thick)
            marks.append(rect(f"bar {tones[group]}", *place))
        shown = [show(value) for value in values.values()]
        words = ", ".join(" ".join(pair) for pair in zip(values, shown, strict=True))
        texts.append((max((x.at(value) for value in values.values()), default=0.0), f"{name}: {words}"))
        labels.append((100 - (i + 0.36) * row, f"{name}: {shown[0]}" if len(shown) == 1 else name))
    legend = list(tones.items())
    if target is not None:
        marks.append(stroke("target", x.at(target[1]), 0, x.at(target[1]), 100))
        legend.append((target[0], "target"))
    return Chart(title, note, marks, texts, legend, labels, x=x, x_show=show, height=42 * len(rows))


def _effective(entry: Indexed) -> list[float]:
    return list(entry.get("effective_gain", []))


def _line(name: str, tone: str, row: Row, measure: str) -> Series:
    return line_of(name, tone, ((x, entry.get(measure)) for x, entry in row.items()))


def _percent(value: float) -> str:
    return f"{value:.4g} %"


def _drawn(
    title: str, note: str, columns: list[float], lines: list[Series], across: str, show: Any = _percent
) -> Chart:
    """Lines over the columns of the table, which are spread logarithmically."""
    values = [y for line in lines for _, y in line.points]
    bounds = (0.0, 100.0 if show is _percent else float("inf"))
    y = linear(values, bounds=bounds, zero=True) if values else None
    x = Axis(columns[0], columns[-1], tuple(columns), log=True)
    return trend(title, note, lines, x_name=SYMBOLS[across], y=y, show=show, x=x)
