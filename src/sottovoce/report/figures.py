"""The report's kinds of figure: a trend, a strip of clients, columns of clients, and bars by name.

Each is static SVG and HTML: marks at percentages of the plot, labels as ordinary text, so that figures
keep their letter size at any width, print, and need no script. Colors are the page's CSS classes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sottovoce.report.markup import Html, join, tag
from sottovoce.report.scale import Scale, counting

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """A named sequence of points; `tone` is the color class ("seen", "future", "signal", …)."""

    name: str
    tone: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


@dataclass(frozen=True)
class Group:
    """Named values of one group of clients, for a strip."""

    name: str
    tone: str
    values: dict[str, float]


def trend(
    title: str,
    note: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y: Scale | None,
    show: Format,
    x: Scale | None = None,
) -> Html:
    """Lines over rounds, or over the scale `x`. Without `y` (nothing was recorded) the figure says so."""
    lines = [line for line in series if line.x]
    if y is None or not lines:
        return _empty(title, note)
    x = x or counting(point for line in lines for point in line.x)
    marks = [_polyline(line, x, y) for line in lines]
    # A line through one point cannot be seen.
    dotted = [line for line in lines if line.dots or len(line.x) == 1]
    marks += [_dot(line.tone, x.at(a), y.at(b)) for line in dotted for a, b in _points(line)]
    stops: dict[float, list[str]] = {}
    for line in lines:
        for a, b in _points(line):
            stops.setdefault(a, []).append(f"{line.name} {show(b)}")
    texts = [(x.at(a), f"{x_name} {a:g}: " + ", ".join(stops[a])) for a in sorted(stops)]
    plot = _plot(title, [*_grid(y), *marks], texts)
    chart = _chart(plot, x, y, x_name=x_name, x_show=lambda v: f"{v:g}", y_show=show)
    return _figure(title, note, _legend([(line.name, line.tone) for line in lines]), chart)


def strip(title: str, note: str, groups: Sequence[Group], *, x: Scale, x_name: str, show: Format) -> Html:
    """One dot a client, a row a group; a box spans the middle half and a line marks the median."""
    rows = [group for group in groups if group.values]
    marks: list[Html] = [_line("grid", x.at(tick), 0, x.at(tick), 100) for tick in x.ticks]
    texts: list[tuple[float, str]] = []
    labels: list[Html] = []
    for row, group in enumerate(rows):
        middle, half = 100 * (row + 0.5) / len(rows), 32 / len(rows)
        marks += _box(group, x, middle, half)
        ordered = sorted(group.values.items(), key=lambda item: item[1])
        lanes = _lanes([x.at(value) for _, value in ordered])
        spread = half / max(4, *map(abs, lanes))
        for (name, value), lane in zip(ordered, lanes, strict=True):
            marks.append(
                _dot(group.tone, x.at(value), 100 - middle - lane * spread, f"{name}: {show(value)}")
            )
            texts.append((x.at(value), f"{name} ({group.name.lower()}): {show(value)}"))
        labels.append(tag("span", group.name, style=f"bottom:{100 - middle + half + 2:.3f}%"))
    plot = _plot(title, marks, sorted(texts))
    plot = join(plot, tag("div", *labels, class_="rows", aria_hidden="true"))
    return _figure(title, note, _chart(plot, x, None, x_name=x_name, x_show=show, y_show=show))


def columns(
    title: str,
    note: str,
    groups: Sequence[Group],
    *,
    y: Scale,
    target: tuple[str, float] | None,
    show: Format,
) -> Html:
    """One column a client, tallest first within its group, against a dashed line at the target."""
    bars = [(g, *item) for g in groups for item in sorted(g.values.items(), key=lambda i: -i[1])]
    if not bars:
        return _empty(title, note)
    width = 100 / len(bars)
    gap = min(0.15 * width, 0.6)
    marks: list[Html] = _grid(y)
    texts = []
    for i, (group, name, value) in enumerate(bars):
        height, left = y.at(value), i * width
        label = tag("title", f"{name}: {show(value)}")
        place = {"x": f"{left + gap:.3f}%", "y": f"{100 - height:.3f}%"}
        size = {"width": f"{width - 2 * gap:.3f}%", "height": f"{height:.3f}%"}
        marks.append(tag("rect", label, class_=f"bar {group.tone}", **place, **size))
        texts.append((left + width / 2, f"{name} ({group.name.lower()}): {show(value)}"))
    if target is not None:
        marks.append(_line("target", 0, y.at(target[1]), 100, y.at(target[1])))
    names = [(group.name, group.tone) for group in groups if group.values]
    if target is not None:
        names.append((f"{target[0]} {show(target[1])}", "target"))
    chart = _chart(
        _plot(title, marks, texts), None, y, x_name="clients, most first", x_show=show, y_show=show
    )
    return _figure(title, note, _legend(names), chart)


def bars(
    title: str, note: str, names: Sequence[str], groups: Sequence[Group], *, x: Scale, show: Format
) -> Html:
    """Lying bars, a row a name and in it a bar a group; the name stands above its bars."""
    marks: list[Html] = [_line("grid", x.at(tick), 0, x.at(tick), 100) for tick in x.ticks]
    texts, labels, row = [], [], 100 / len(names)
    thick = 0.5 * row / len(groups)
    for i, name in enumerate(names):
        values = [(group, group.values[name]) for group in groups if name in group.values]
        for j, (group, value) in enumerate(values):
            place = {"x": "0", "y": f"{i * row + 0.42 * row + j * thick:.3f}%"}
            size = {"width": f"{x.at(value):.3f}%", "height": f"{0.86 * thick:.3f}%"}
            marks.append(tag("rect", class_=f"bar {group.tone}", **place, **size))
        shown = ", ".join(f"{group.name} {show(value)}" for group, value in values)
        texts.append((max((x.at(value) for _, value in values), default=0.0), f"{name}: {shown}"))
        labels.append(tag("span", name, style=f"bottom:{100 - (i + 0.36) * row:.3f}%"))
    plot = join(_plot(title, marks, texts), tag("div", *labels, class_="rows", aria_hidden="true"))
    chart = _chart(plot, x, None, x_name="", x_show=show, y_show=show)
    return _figure(title, note, _legend([(group.name, group.tone) for group in groups]), chart)


def _figure(title: str, note: str, *parts: str) -> Html:
    return tag("figure", tag("figcaption", tag("h3", title), tag("p", note)), *parts)


def _empty(title: str, note: str) -> Html:
    return _figure(title, note, tag("p", "Nothing was recorded.", class_="nothing"))


def _legend(names: Iterable[tuple[str, str]]) -> Html:
    return tag("ul", *(tag("li", name, class_=tone) for name, tone in names), class_="legend")


def _plot(title: str, marks: Sequence[Html], texts: Sequence[tuple[float, str]]) -> Html:
    """The plot area; the page's script reads `texts` (position, words) for pointer and arrow keys."""
    picture = tag("svg", *marks, aria_hidden="true", focusable="false")
    rule = tag("span", class_="rule", hidden=True)
    stops = json.dumps(texts, separators=(",", ":"), ensure_ascii=False)
    reading = {"aria_valuemin": "0", "aria_valuemax": str(len(texts) - 1), "aria_valuenow": "0"}
    reading["aria_valuetext"] = texts[0][1] if texts else ""
    # A slider is what assistive technology calls a thing whose values the arrow keys step through.
    role = {"role": "slider", "tabindex": "0", "aria_label": title, "data_stops": stops}
    return tag("div", picture, rule, class_="plot", **role, **reading)


def _chart(
    plot: Html, x: Scale | None, y: Scale | None, *, x_name: str, x_show: Format, y_show: Format
) -> Html:
    vertical = [tag("span", y_show(t), style=f"bottom:{y.at(t)}%") for t in y.ticks] if y else []
    # The widest label, in the flow but hidden, gives the column of labels its width.
    widest = max((y_show(t) for t in y.ticks), key=len) if y else ""
    along = [tag("span", x_show(t), style=f"left:{x.at(t)}%") for t in x.ticks] if x else []
    return tag(
        "div",
        tag("div", tag("i", widest), *vertical, class_="y-ticks", aria_hidden="true"),
        tag("div", plot, class_="area"),
        tag("div", *along, class_="x-ticks" if along else "x-ticks none", aria_hidden="true"),
        tag("div", tag("output", aria_hidden="true"), tag("span", x_name), class_="x-name"),
        class_="chart",
    )


def _points(line: Series) -> list[tuple[float, float]]:
    return list(zip(line.x, line.y, strict=True))


def _polyline(line: Series, x: Scale, y: Scale) -> Html:
    points = " ".join(f"{x.at(a):g},{100 - y.at(b):g}" for a, b in _points(line))
    path = tag("polyline", points=points, class_=f"line {line.tone}", vector_effect="non-scaling-stroke")
    return tag("svg", path, viewBox="0 0 100 100", preserveAspectRatio="none")


def _dot(tone: str, x: float, y: float, words: str = "") -> Html:
    label = tag("title", words) if words else Html()
    return tag("circle", label, class_=f"dot {tone}", cx=f"{x:g}%", cy=f"{100 - y:g}%", r="4")


def _line(tone: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    ends = {"x1": f"{x1:g}%", "y1": f"{100 - y1:g}%", "x2": f"{x2:g}%", "y2": f"{100 - y2:g}%"}
    return tag("line", class_=tone, **ends)


def _grid(y: Scale) -> list[Html]:
    return [_line("grid", 0, y.at(tick), 100, y.at(tick)) for tick in y.ticks]


def _box(group: Group, x: Scale, middle: float, half: float) -> list[Html]:
    values = sorted(group.values.values())
    lower, median, upper = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    place = {"x": f"{x.at(lower):g}%", "y": f"{middle - half:g}%"}
    size = {"width": f"{x.at(upper) - x.at(lower):g}%", "height": f"{2 * half:g}%"}
    mark = _line(f"median {group.tone}", x.at(median), 100 - middle + half, x.at(median), 100 - middle - half)
    return [tag("rect", class_=f"box {group.tone}", **place, **size), mark]


def _lanes(positions: Sequence[float], least: float = 2.6) -> list[int]:
    """Lanes 0, 1, −1, 2, … for sorted positions, so that dots of one lane are `least` percent apart.

    >>> _lanes([10.0, 10.5, 11.0, 14.0])
    [0, 1, -1, 0]
    """
    last: dict[int, float] = {}
    lanes = []
    for position in positions:
        lane = 0
        while position - last.get(lane, -math.inf) < least:
            lane = -lane if lane > 0 else 1 - lane
        last[lane] = position
        lanes.append(lane)
    return lanes
