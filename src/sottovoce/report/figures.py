"""The kinds of chart: a trend, a strip or columns of clients, spans and points with reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sottovoce.report.chart import Axis, Chart, Format, counting


@dataclass(frozen=True)
class Series:
    """A named sequence of points; `tone` is "dashed", or "blue", "orange", "green", "violet" or "gray", which
    may also be "… dotted".
    """

    name: str
    tone: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


def line_of(
    name: str,
    tone: str,
    points: Iterable[tuple[float, float | None]],
    *,
    dots: bool = True,
    positive: bool = False,
) -> Series:
    """The points that are known (and positive, for a logarithmic axis), from left to right."""
    known = sorted(
        (x, y) for x, y in points if y is not None and math.isfinite(y) and (y > 0 or not positive)
    )
    return Series(name, tone, known, dots)


@dataclass(frozen=True)
class Group:
    """Named values of one group of clients, for a strip or for columns."""

    name: str
    tone: str
    values: dict[str, float]


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
    lines = [line for line in series if line.points]
    if y is None or not lines:
        return Chart(title, note)
    x = x or counting(a for line in lines for a, _ in line.points)
    marks = [*_grid(y), *(_polyline(line, x, y) for line in lines)]
    # A line through one point cannot be seen.
    dotted = [line for line in lines if line.dots or len(line.points) == 1]
    marks += [_dot(line.tone, x.at(a), y.at(b)) for line in dotted for a, b in line.points]
    stops: dict[float, list[str]] = {}
    for line in lines:
        for a, b in line.points:
            stops.setdefault(a, []).append(f"{line.name} {show(b)}")
    texts = [(x.at(a), f"{x_name} {x_show(a)}: " + ", ".join(stops[a])) for a in sorted(stops)]
    names = [(line.name, line.tone) for line in lines]
    return Chart(title, note, marks, texts, names, x=x, y=y, x_name=x_name, x_show=x_show, y_show=show)


def strip(title: str, note: str, groups: Sequence[Group], *, x: Axis, x_name: str, show: Format) -> Chart:
    """One dot a client, a row a group; a box spans the middle half and a line marks the median."""
    rows = [group for group in groups if group.values]
    marks = upright(x)
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
        marks.append(rect(f"bar {group.tone}", *place, words=f"{name}: {show(value)}"))
        texts.append((left + width / 2, f"{name} ({group.name.lower()}): {show(value)}"))
    names = [(group.name, group.tone) for group in groups if group.values]
    if target is not None:
        marks.append(stroke("target", 0, y.at(target[1]), 100, y.at(target[1])))
        names.append((f"{target[0]} {show(target[1])}", "target"))
    return Chart(title, note, marks, texts, names, y=y, x_name="clients, most first", y_show=show)


@dataclass(frozen=True)
class Span:
    """From where to where one name goes, and an interval around its end, if one is known."""

    name: str
    start: float
    end: float
    low: float | None = None
    high: float | None = None


def spans(
    title: str,
    note: str,
    rows: Sequence[Span],
    tones: tuple[tuple[str, str], tuple[str, str]],
    *,
    x: Axis,
    x_name: str,
    show: Format,
    named: bool,
) -> Chart:
    """A row a name: a line from a hollow start to its end, over the interval of the end.

    `tones` are name and color of starts and of ends; names stand above their rows where they are `named`.
    """
    if not rows:
        return Chart(title, note)
    marks, texts, labels, row = upright(x), [], [], 100 / len(rows)
    (start_name, start_tone), (end_name, end_tone) = tones
    for i, span in enumerate(rows):
        up = 100 - (i + (0.72 if named else 0.5)) * row
        a, b = x.at(span.start), x.at(span.end)
        if span.low is not None and span.high is not None:
            low, high = (min(max(x.at(end), 0.0), 100.0) for end in (span.low, span.high))
            marks.append(stroke(f"reach {end_tone}", low, up, high, up))
        marks += [stroke(f"span {end_tone}", a, up, b, up), _dot(start_tone, a, up), _dot(end_tone, b, up)]
        words = f"{start_name} {show(span.start)}, {end_name} {show(span.end)}"
        texts.append((b, f"{span.name}: {words} ({span.end - span.start:+.1f})"))
        if named:
            labels.append((100 - (i + 0.4) * row, span.name))
    legend = [(start_name, start_tone), (end_name, end_tone)]
    height = max(160, (34 if named else 9) * len(rows))
    return Chart(
        title, note, marks, sorted(texts), legend, labels, x=x, x_name=x_name, x_show=show, height=height
    )


def reaches(
    title: str,
    note: str,
    points: Sequence[tuple[float, Span]],
    *,
    x: Axis,
    y: Axis,
    x_name: str,
    show: Format,
) -> Chart:
    """A dot for each name at (x, its end), with its interval, around a line at zero."""
    if not points:
        return Chart(title, note)
    marks, texts = [*_grid(y), stroke("target", 0, y.at(0.0), 100, y.at(0.0))], []
    for at, span in points:
        a, b = x.at(at), y.at(span.end)
        if span.low is not None and span.high is not None:
            low, high = (min(max(y.at(end), 0.0), 100.0) for end in (span.low, span.high))
            marks.append(stroke("reach blue", a, low, a, high))
        marks.append(_dot("blue", a, b, f"{span.name}: {show(span.end)}"))
        texts.append((a, f"{span.name} ({at:,.0f}): {show(span.end)}"))
    return Chart(
        title, note, marks, sorted(texts), x=x, y=y, x_name=x_name, x_show="{:,g}".format, y_show=show
    )


def _polyline(line: Series, x: Axis, y: Axis) -> Markup:
    points = " ".join(f"{x.at(a):g},{100 - y.at(b):g}" for a, b in line.points)
    return Markup(
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none">'
        '<polyline points="{}" class="line {}" vector-effect="non-scaling-stroke"></polyline></svg>'
    ).format(points, line.tone)


def _dot(tone: str, x: float, y: float, words: str = "") -> Markup:
    mark = Markup('<circle class="dot {}" cx="{:g}%" cy="{:g}%" r="4">{}</circle>')
    return mark.format(tone, x, 100 - y, _label(words))


def stroke(tone: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A straight line between two points, in percent from the left and from the bottom."""
    mark = Markup('<line class="{}" x1="{:g}%" y1="{:g}%" x2="{:g}%" y2="{:g}%"></line>')
    return mark.format(tone, x1, 100 - y1, x2, 100 - y2)


def rect(kind: str, x: float, y: float, width: float, height: float, words: str = "") -> Markup:
    """A rectangle, in percent from the left and from the top."""
    mark = Markup('<rect class="{}" x="{:g}%" y="{:.3f}%" width="{:.3f}%" height="{:.3f}%">{}</rect>')
    return mark.format(kind, x, y, width, height, _label(words))


def _label(words: str) -> Markup:
    return Markup("<title>{}</title>").format(words) if words else Markup()


def _grid(y: Axis) -> list[Markup]:
    return [stroke("grid", 0, y.at(tick), 100, y.at(tick)) for tick in y.ticks]


def upright(x: Axis) -> list[Markup]:
    """A line at each tick of the axis below."""
    return [stroke("grid", x.at(tick), 0, x.at(tick), 100) for tick in x.ticks]


def _box(group: Group, x: Axis, middle: float, half: float) -> list[Markup]:
    values = sorted(group.values.values())
    lower, median, upper = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    box = rect(f"box {group.tone}", x.at(lower), middle - half, x.at(upper) - x.at(lower), 2 * half)
    ends = (x.at(median), 100 - middle + half, x.at(median), 100 - middle - half)
    return [box, stroke(f"median {group.tone}", *ends)]


def _lanes(positions: Sequence[float]) -> list[int]:
    """Lanes 0, 1, −1, 2, … for sorted positions, so that dots of one lane are 2.6 percent apart.

    >>> _lanes([10.0, 10.5, 11.0, 14.0])
    [0, 1, -1, 0]
    """
    last: dict[int, float] = {}
    lanes = []
    for position in positions:
        lane = 0
        while position - last.get(lane, -math.inf) < 2.6:
            lane = -lane if lane > 0 else 1 - lane
        last[lane] = position
        lanes.append(lane)
    return lanes
