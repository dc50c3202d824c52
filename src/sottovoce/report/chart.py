"""Charts: a trend, a strip of clients, columns of clients and bars by name, for pages and as SVG files.

Marks lie at percentages of the plot and labels are ordinary text, so that charts keep their letter size at
any width, print, and need no script. Colors are classes of chart.css, which knows light and dark pages.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from sottovoce.report.axis import Axis, counting
from sottovoce.report.markup import Html, tag
from sottovoce.report.numbers import number

Format = Callable[[float], str]
STYLE = (files(__package__) / "chart.css").read_text(encoding="utf-8")
WIDTH, PAD, LEFT = 720, 24, 84  # of an SVG file, in pixels


@dataclass(frozen=True)
class Series:
    """A named sequence of points; `tone` is "blue", "orange", "green", "violet", "gray" or "dashed"."""

    name: str
    tone: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


@dataclass(frozen=True)
class Group:
    """Named values of one group of clients, for a strip or for columns."""

    name: str
    tone: str
    values: dict[str, float]


@dataclass(frozen=True)
class Chart:
    """A chart without its surroundings: marks, axes, legend, names inside the plot, and readouts.

    `labels` and `stops` are (percent from the bottom, name) and (percent from the left, words); a chart
    without marks says that nothing was recorded. `height` counts in files only.
    """

    title: str
    note: str
    marks: Sequence[Html] = ()
    stops: Sequence[tuple[float, str]] = ()
    legend: Sequence[tuple[str, str]] = ()
    labels: Sequence[tuple[float, str]] = ()
    x: Axis | None = None
    y: Axis | None = None
    x_name: str = ""
    x_show: Format = number
    y_show: Format = number
    height: int = 210

    def html(self) -> Html:
        """A figure of a page; its script reads the stops for pointer and arrow keys."""
        caption = tag("figcaption", tag("h3", self.title), tag("p", self.note))
        if not self.marks:
            return tag("figure", caption, tag("p", "Nothing was recorded.", class_="nothing"))
        legend = [tag("li", name, class_=tone) for name, tone in self.legend]
        ticks = {t: self.y_show(t) for t in self.y.ticks} if self.y else {}
        vertical = [
            tag("span", words, style=f"bottom:{self.y.at(t)}%") for t, words in ticks.items() if self.y
        ]
        along = (
            [tag("span", self.x_show(t), style=f"left:{self.x.at(t)}%") for t in self.x.ticks]
            if self.x
            else []
        )
        names = [tag("span", name, style=f"bottom:{bottom:.3f}%") for bottom, name in self.labels]
        chart = tag(
            "div",
            # The widest label, in the flow but hidden, gives the column of labels its width.
            tag(
                "div",
                tag("i", max(ticks.values(), key=len, default="")),
                *vertical,
                class_="y-ticks",
                aria_hidden="true",
            ),
            tag("div", self._plot(), tag("div", *names, class_="rows", aria_hidden="true"), class_="area"),
            tag("div", *along, class_="x-ticks" if along else "x-ticks none", aria_hidden="true"),
            tag("div", tag("output", aria_hidden="true"), tag("span", self.x_name), class_="x-name"),
            class_="chart",
        )
        return tag("figure", caption, tag("ul", *legend, class_="legend") if legend else Html(), chart)

    def _plot(self) -> Html:
        picture = tag("svg", *self.marks, aria_hidden="true", focusable="false")
        rule = tag("span", class_="rule", hidden=True)
        stops = json.dumps(self.stops, separators=(",", ":"), ensure_ascii=False)
        # A slider is what assistive technology calls a thing whose values the arrow keys step through.
        role = {"role": "slider", "tabindex": "0", "aria_label": self.title, "data_stops": stops}
        reading = {"aria_valuemin": "0", "aria_valuemax": str(len(self.stops) - 1), "aria_valuenow": "0"}
        reading["aria_valuetext"] = self.stops[0][1] if self.stops else ""
        return tag("div", picture, rule, class_="plot", **role, **reading)

    def svg(self, top: float) -> tuple[list[Html], float]:
        """Its elements in a file, from the height `top` on, and where they end."""
        parts, x = [], float(LEFT)
        for name, tone in self.legend:
            key = {"x1": f"{x:g}", "x2": f"{x + 14:g}", "y1": f"{top - 4:g}", "y2": f"{top - 4:g}"}
            parts += [tag("line", class_=f"key {tone}", **key), _text(name, x + 21, top)]
            x += 45 + 7 * len(name)
        top += 20 if self.legend else 0
        width, bottom = WIDTH - PAD - LEFT, top + self.height
        place = {"x": str(LEFT), "y": f"{top:g}", "width": str(width), "height": str(self.height)}
        parts.append(tag("svg", *self.marks, overflow="visible", **place))
        parts += [_text(name, LEFT, bottom - self.height * up / 100 - 3, "label") for up, name in self.labels]
        for tick in self.y.ticks if self.y else ():
            at = bottom - self.height * self.y.at(tick) / 100 + 4 if self.y else 0
            parts.append(_text(self.y_show(tick), LEFT - 10, at, "tick end"))
        for tick in self.x.ticks if self.x else ():
            at = LEFT + width * self.x.at(tick) / 100 if self.x else 0
            parts.append(_text(self.x_show(tick), at, bottom + 20, "tick middle"))
        if self.x_name:
            parts.append(_text(self.x_name, LEFT + width / 2, bottom + 40, "tick middle"))
        return parts, bottom + (28 if self.x else 8) + (20 if self.x_name else 0)


def svg(title: str, note: str, charts: Sequence[Chart]) -> str:
    """A file of charts below each other, with its own background, legible on light and dark pages."""
    parts = [_text(title, PAD, 34, "title"), _text(note, PAD, 56, "tick")]
    top = 84.0
    for chart in charts:
        if chart.title:
            parts.append(_text(chart.title, PAD, top, "label"))
            top += 24
        drawn, end = chart.svg(top)
        parts, top = [*parts, *drawn], end + 24
    head = [tag("title", title), tag("style", Html(STYLE))]
    head.append(tag("rect", class_="paper", width="100%", height="100%", rx="8"))
    size = f"0 0 {WIDTH} {top:.0f}"
    picture = tag("svg", *head, *parts, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img")
    return picture.replace("><", ">\n<") + "\n"


def _text(words: str, x: float, y: float, kind: str | None = None) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind)


def trend(
    title: str,
    note: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y: Axis | None,
    show: Format,
    x: Axis | None = None,
    x_show: Format = "{:g}".format,
) -> Chart:
    """Lines over rounds, or over the scale `x`. Without `y` nothing was recorded."""
    lines = [line for line in series if line.x]
    if y is None or not lines:
        return Chart(title, note)
    x = x or counting(point for line in lines for point in line.x)
    marks = [*_grid(y), *(_polyline(line, x, y) for line in lines)]
    # A line through one point cannot be seen.
    dotted = [line for line in lines if line.dots or len(line.x) == 1]
    marks += [_dot(line.tone, x.at(a), y.at(b)) for line in dotted for a, b in _points(line)]
    stops: dict[float, list[str]] = {}
    for line in lines:
        for a, b in _points(line):
            stops.setdefault(a, []).append(f"{line.name} {show(b)}")
    texts = [(x.at(a), f"{x_name} {x_show(a)}: " + ", ".join(stops[a])) for a in sorted(stops)]
    names = [(line.name, line.tone) for line in lines]
    return Chart(title, note, marks, texts, names, x=x, y=y, x_name=x_name, x_show=x_show, y_show=show)


def strip(title: str, note: str, groups: Sequence[Group], *, x: Axis, x_name: str, show: Format) -> Chart:
    """One dot a client, a row a group; a box spans the middle half and a line marks the median."""
    rows = [group for group in groups if group.values]
    marks = _upright(x)
    texts: list[tuple[float, str]] = []
    labels = []
    for row, group in enumerate(rows):
        middle, half = 100 * (row + 0.5) / len(rows), 32 / len(rows)
        marks += _box(group, x, middle, half)
        ordered = sorted(group.values.items(), key=lambda item: item[1])
        lanes = _lanes([x.at(value) for _, value in ordered])
        spread = half / max(4, *map(abs, lanes))
        for (name, value), lane in zip(ordered, lanes, strict=True):
            words = f"{name}: {show(value)}"
            marks.append(_dot(group.tone, x.at(value), 100 - middle - lane * spread, words))
            texts.append((x.at(value), f"{name} ({group.name.lower()}): {show(value)}"))
        labels.append((100 - middle + half + 2, group.name))
    return Chart(title, note, marks, sorted(texts), labels=labels, x=x, x_name=x_name, x_show=show)


def columns(
    title: str,
    note: str,
    groups: Sequence[Group],
    *,
    y: Axis,
    target: tuple[str, float] | None,
    show: Format,
) -> Chart:
    """One column a client, tallest first within its group, against a dashed line at the target."""
    found = [(g, *item) for g in groups for item in sorted(g.values.items(), key=lambda i: -i[1])]
    if not found:
        return Chart(title, note)
    width = 100 / len(found)
    gap = min(0.15 * width, 0.6)
    marks, texts = _grid(y), []
    for i, (group, name, value) in enumerate(found):
        height, left = y.at(value), i * width
        place = (left + gap, 100 - height, width - 2 * gap, height)
        marks.append(_rect(f"bar {group.tone}", *place, words=f"{name}: {show(value)}"))
        texts.append((left + width / 2, f"{name} ({group.name.lower()}): {show(value)}"))
    names = [(group.name, group.tone) for group in groups if group.values]
    if target is not None:
        marks.append(_line("target", 0, y.at(target[1]), 100, y.at(target[1])))
        names.append((f"{target[0]} {show(target[1])}", "target"))
    return Chart(title, note, marks, texts, names, y=y, x_name="clients, most first", y_show=show)


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
    marks, texts, labels, row = _upright(x), [], [], 100 / len(rows)
    for i, (name, values) in enumerate(rows.items()):
        thick = 0.5 * row / max(len(values), 1)
        for j, (group, value) in enumerate(values.items()):
            place = (0, (i + 0.42) * row + j * thick, x.at(value), 0.86 * thick)
            marks.append(_rect(f"bar {tones[group]}", *place))
        shown = [show(value) for value in values.values()]
        words = ", ".join(" ".join(pair) for pair in zip(values, shown, strict=True))
        texts.append((max((x.at(value) for value in values.values()), default=0.0), f"{name}: {words}"))
        labels.append((100 - (i + 0.36) * row, f"{name}: {shown[0]}" if len(shown) == 1 else name))
    legend = list(tones.items())
    if target is not None:
        marks.append(_line("target", x.at(target[1]), 0, x.at(target[1]), 100))
        legend.append((target[0], "target"))
    return Chart(title, note, marks, texts, legend, labels, x=x, x_show=show, height=42 * len(rows))


def _points(line: Series) -> list[tuple[float, float]]:
    return list(zip(line.x, line.y, strict=True))


def _polyline(line: Series, x: Axis, y: Axis) -> Html:
    points = " ".join(f"{x.at(a):g},{100 - y.at(b):g}" for a, b in _points(line))
    path = tag("polyline", points=points, class_=f"line {line.tone}", vector_effect="non-scaling-stroke")
    return tag("svg", path, viewBox="0 0 100 100", preserveAspectRatio="none")


def _dot(tone: str, x: float, y: float, words: str = "") -> Html:
    label = tag("title", words) if words else Html()
    return tag("circle", label, class_=f"dot {tone}", cx=f"{x:g}%", cy=f"{100 - y:g}%", r="4")


def _line(tone: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    ends = {"x1": f"{x1:g}%", "y1": f"{100 - y1:g}%", "x2": f"{x2:g}%", "y2": f"{100 - y2:g}%"}
    return tag("line", class_=tone, **ends)


def _grid(y: Axis) -> list[Html]:
    return [_line("grid", 0, y.at(tick), 100, y.at(tick)) for tick in y.ticks]


def _upright(x: Axis) -> list[Html]:
    return [_line("grid", x.at(tick), 0, x.at(tick), 100) for tick in x.ticks]


def _rect(kind: str, x: float, y: float, width: float, height: float, words: str = "") -> Html:
    label = tag("title", words) if words else Html()
    place = {"x": f"{x:g}%", "y": f"{y:.3f}%", "width": f"{width:.3f}%", "height": f"{height:.3f}%"}
    return tag("rect", label, class_=kind, **place)


def _box(group: Group, x: Axis, middle: float, half: float) -> list[Html]:
    values = sorted(group.values.values())
    lower, median, upper = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    box = _rect(f"box {group.tone}", x.at(lower), middle - half, x.at(upper) - x.at(lower), 2 * half)
    ends = (x.at(median), 100 - middle + half, x.at(median), 100 - middle - half)
    return [box, _line(f"median {group.tone}", *ends)]


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
