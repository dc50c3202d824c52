"""Static SVG figures of the benchmarks: horizontal bars, and panels of lines.

Each brings its own background and its colors for light and dark pages, so that it can be read in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sottovoce.report.markup import Html, tag
from sottovoce.report.scale import Scale

WIDTH, PAD, ROW, PANEL = 720, 24, 26, 190
STYLE = """
text { font: 13px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
.title { font-size: 16px; font-weight: 600; } .note, .tick { fill: var(--muted); } .tick { font-size: 12px; }
.paper { fill: var(--paper); } .grid { stroke: var(--grid); }
.mark { stroke: var(--ink); stroke-dasharray: 5 4; }
polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.ours { --tone: var(--blue); } .also { --tone: var(--violet); } .peer { --tone: var(--orange); }
.plain { --tone: var(--gray); }
rect.ours, rect.also, rect.peer, rect.plain, circle, text.name { fill: var(--tone); }
polyline { stroke: var(--tone); }
svg { --paper: #ffffff; --ink: #1d2226; --muted: #5a636b; --grid: #e3e0d8;
  --blue: #2b5f8a; --violet: #6f5fa3; --orange: #b0501c; --gray: #6b747c; }
@media (prefers-color-scheme: dark) { svg { --paper: #14171a; --ink: #e9e7e2; --muted: #a4adb5;
  --grid: #30363c; --blue: #82b6e2; --violet: #b7a9e0; --orange: #eda06b; --gray: #98a1a8; } }
"""


@dataclass(frozen=True)
class Bar:
    """A labelled value; `tone` is "ours", "also" (ours, too), "peer" or "plain"."""

    name: str
    tone: str
    value: float


@dataclass(frozen=True)
class Line:
    """A named sequence of points (x, y)."""

    name: str
    tone: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Lines of one quantity over the figure's x axis."""

    title: str
    y: Scale
    lines: Sequence[Line]


def bars(
    title: str,
    note: str,
    groups: dict[str, Sequence[Bar]],
    show: Callable[[float], str],
    mark: tuple[str, float] | None = None,
) -> str:
    """Horizontal bars from zero in named groups, with their values; a dashed line at `mark`."""
    left, right = 250, WIDTH - 90
    most = max(bar.value for group in groups.values() for bar in group)
    parts, top = [], 84.0

    def across(value: float) -> float:
        return left + (right - left) * value / most

    for name, group in groups.items():
        if name:
            parts.append(_text(name, PAD, top + 4, class_="note"))
            top += ROW
        for bar in group:
            end = across(bar.value)
            parts.append(_text(bar.name, left - 10, top + 4, text_anchor="end"))
            size = {"width": f"{end - left:.1f}", "height": "16"}
            parts.append(tag("rect", class_=bar.tone, x=f"{left}", y=f"{top - 8:.1f}", rx="2", **size))
            # Beyond the dashed line, where it would cross the number.
            past = across(mark[1]) if mark and end < across(mark[1]) < end + 50 else end
            parts.append(_text(show(bar.value), past + 7, top + 4))
            top += ROW
        top += 8
    if mark is not None:
        x = f"{across(mark[1]):.1f}"
        parts.append(tag("line", class_="mark", x1=x, x2=x, y1="70", y2=f"{top - 16:.1f}"))
        parts.append(_text(mark[0], across(mark[1]), top - 2, class_="tick", text_anchor="middle"))
        top += 12
    return _figure(title, note, parts, top)


def panels(
    title: str, note: str, x: Scale, x_name: str, show_x: Callable[[float], str], charts: Sequence[Panel]
) -> str:
    """Panels below each other over one x axis; lines are named at their ends."""
    left, right = 76, WIDTH - 120
    parts, top = [], 84.0

    def across(value: float) -> float:
        return left + (right - left) * x.at(value) / 100

    for panel in charts:
        parts.append(_text(panel.title, PAD, top, class_="note"))
        bottom = top + 16 + PANEL

        def up(value: float, bottom: float = bottom, y: Scale = panel.y) -> float:
            return bottom - PANEL * y.at(value) / 100

        for tick in panel.y.ticks:
            y = f"{up(tick):.1f}"
            parts.append(tag("line", class_="grid", x1=str(left), x2=str(right), y1=y, y2=y))
            parts.append(_text(f"{tick:,g}", left - 8, up(tick) + 4, class_="tick", text_anchor="end"))
        for line in panel.lines:
            placed = [(across(a), up(b)) for a, b in line.points]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
            dots = [tag("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r="3.5") for a, b in placed]
            parts.append(tag("g", tag("polyline", points=path), *dots, class_=line.tone))
        ends = apart([up(line.points[-1][1]) for line in panel.lines])
        for line, level in zip(panel.lines, ends, strict=True):
            parts.append(_text(line.name, right + 12, level + 4, class_=f"name {line.tone}"))
        top = bottom + 40
    for tick in x.ticks:
        parts.append(_text(show_x(tick), across(tick), top - 20, class_="tick", text_anchor="middle"))
    parts.append(_text(x_name, (left + right) / 2, top + 2, class_="note", text_anchor="middle"))
    return _figure(title, note, parts, top + 4)


def apart(levels: Sequence[float], least: float = 16.0) -> list[float]:
    """The levels in their order, moved down where they are closer than `least`.

    >>> apart([10.0, 60.0, 12.0])
    [10.0, 60.0, 26.0]
    """
    moved, last = list(levels), float("-inf")
    for i in sorted(range(len(levels)), key=lambda i: levels[i]):
        last = moved[i] = max(levels[i], last + least)
    return moved


def _text(words: str, x: float, y: float, **attributes: str) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", **attributes)


def _figure(title: str, note: str, parts: Sequence[Html], height: float) -> str:
    size = f"0 0 {WIDTH} {height + 14:.0f}"
    head = [tag("title", title), tag("style", Html(STYLE))]
    head.append(tag("rect", class_="paper", width="100%", height="100%", rx="8"))
    head += [_text(title, PAD, 34, class_="title"), _text(note, PAD, 56, class_="note")]
    picture = tag("svg", *head, *parts, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img")
    return picture.replace("><", ">\n<") + "\n"
