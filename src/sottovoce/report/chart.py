"""Charts, for pages and as SVG files: axes, marks, lines over a scale.

Marks lie at percentages of the plot and labels are ordinary text, so that charts fit phones and desks alike,
keep their letter size, print, and need no script. Colors are classes of chart.css, for light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from markupsafe import Markup

from sottovoce.report.table import number

MOST_TICKS = 6
Format = Callable[[float], str]
WIDTH, PAD, LEFT = 720, 24, 84  # of an SVG file, in pixels


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis from `low` to `high`, with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Position in percent, 0 at `low` and 100 at `high`, to a thousandth.

        >>> linear([0, 95]).at(25.0), logarithmic([1, 100]).at(10.0)
        (25.0, 50.0)
        """
        low, high, point = self.low, self.high, value
        if self.log:
            low, high, point = math.log10(low), math.log10(high), math.log10(value)
        return round(100 * (point - low) / (high - low), 3)


def linear(
    values: Iterable[float], *, bounds: tuple[float, float] = (-math.inf, math.inf), zero: bool = False
) -> Axis:
    """A linear axis around the values: ticks at multiples of 1, 2 or 5 · 10ⁿ, ends at ticks.

    >>> linear([3.0, 77.0], bounds=(0, 100)).ticks
    (0.0, 20.0, 40.0, 60.0, 80.0)
    >>> linear([4.0, 4.0], zero=True).ticks
    (0.0, 1.0, 2.0, 3.0, 4.0)
    """
    points = [*values, *([0.0] if zero else [])]
    low, high = min(points), max(points)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size:
        low, high = low - size / 2, high + size / 2 if size else 1.0
    step = _round_step((high - low) / (MOST_TICKS - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_round(n * step) for n in range(first, last + 1))
    ticks = tuple(tick for tick in ticks if bounds[0] <= tick <= bounds[1])
    return Axis(ticks[0], ticks[-1], ticks)


def counting(values: Iterable[float]) -> Axis:
    """An axis of whole numbers, such as rounds, from the first to the last, with whole ticks between.

    >>> counting([1, 45]).ticks, counting([1, 3]).ticks, counting([1]).ticks
    ((10.0, 20.0, 30.0, 40.0), (1.0, 2.0, 3.0), (1.0,))
    """
    points = list(values)
    first, last = min(points), max(points)
    if first == last:
        return Axis(first - 1, last + 1, (float(first),))
    step = max(_round_step((last - first) / (MOST_TICKS - 1)), 1.0)
    ticks = (n * step for n in range(math.ceil(first / step), math.floor(last / step) + 1))
    return Axis(first, last, tuple(ticks))


def _round(tick: float) -> float:
    """Without the last digits, where 3 · 0.1 is 0.30000000000000004."""
    return float(f"{tick:.12g}")


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def logarithmic(values: Iterable[float]) -> Axis:
    """A logarithmic axis around positive values: ticks at powers of ten, or 1, 2, 5 · 10ⁿ when few.

    >>> logarithmic([30, 40_000]).ticks
    (10.0, 100.0, 1000.0, 10000.0, 100000.0)
    >>> logarithmic([0.3, 1.2]).ticks
    (0.2, 0.5, 1.0, 2.0)
    """
    points = list(values)
    low, high = min(points), max(points)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    fine = [_round(m * 10.0**n) for n in range(first, last + 1) for m in (1, 2, 5)]
    inside = _cover(fine, low, high)
    if len(inside) > MOST_TICKS:
        inside = _cover(fine[::3], low, high)
    every = math.ceil((len(inside) - 1) / MOST_TICKS)
    return Axis(inside[0], inside[-1], inside[:: max(every, 1)], log=True)


def _cover(ticks: list[float], low: float, high: float) -> tuple[float, ...]:
    """The ticks from the last one at or below `low` to the first one at or above `high`, at least two."""
    start = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    stop = min(i for i, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return tuple(ticks[start : max(stop, start + 1) + 1])


@dataclass(frozen=True)
class Chart:
    """A chart without its surroundings: marks, axes, legend, names inside the plot, and readouts.

    `labels` and `stops` are (percent from the bottom, name) and (percent from the left, words); a chart
    without marks says that nothing was recorded. `height` is in pixels.
    """

    title: str
    note: str
    marks: Sequence[Markup] = ()
    stops: Sequence[tuple[float, str]] = ()
    legend: Sequence[tuple[str, str]] = ()
    labels: Sequence[tuple[float, str]] = ()
    x: Axis | None = None
    y: Axis | None = None
    x_name: str = ""
    x_show: Format = number
    y_show: Format = number
    height: int = 210

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Where the ticks of the axis below lie, in percent, and what they say."""
        return [(self.x.at(tick), self.x_show(tick)) for tick in self.x.ticks] if self.x else []

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """The same of the axis beside the plot."""
        return [(self.y.at(tick), self.y_show(tick)) for tick in self.y.ticks] if self.y else []

    @property
    def widest(self) -> str:
        """The longest of the words beside the plot."""
        return max((words for _, words in self.y_ticks), key=len, default="")

    def svg(self, top: float) -> tuple[list[Markup], float]:
        """Its elements in a file, from the height `top` on, and where they end."""
        parts, x = [], float(LEFT)
        for name, tone in self.legend:
            if x + 21 + 7 * len(name) > WIDTH - PAD:
                x, top = float(LEFT), top + 20
            key = Markup('<line class="key {}" x1="{:g}" x2="{:g}" y1="{:g}" y2="{:g}"></line>')
            parts += [key.format(tone, x, x + 14, top - 4, top - 4), _text(name, x + 21, top)]
            x += 45 + 7 * len(name)
        top += 20 if self.legend else 0
        width, bottom = WIDTH - PAD - LEFT, top + self.height
        plot = Markup('<svg overflow="visible" x="{}" y="{:g}" width="{}" height="{}">{}</svg>')
        parts.append(plot.format(LEFT, top, width, self.height, Markup().join(self.marks)))
        parts += [_text(name, LEFT, bottom - self.height * up / 100 - 3, "label") for up, name in self.labels]
        for up, words in self.y_ticks:
            parts.append(_text(words, LEFT - 10, bottom - self.height * up / 100 + 4, "tick end"))
        for along, words in self.x_ticks:
            parts.append(_text(words, LEFT + width * along / 100, bottom + 20, "tick middle"))
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
    picture = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {:.0f}" role="img"><title>{}</title>'
        '<style>{}</style><rect class="paper" width="100%" height="100%" rx="8"></rect>{}</svg>'
    )
    style = Markup((files(__package__) / "chart.css").read_text(encoding="utf-8"))
    return str(picture.format(WIDTH, top, title, style, Markup().join(parts))).replace("><", ">\n<") + "\n"


def _text(words: str, x: float, y: float, kind: str = "") -> Markup:
    named = Markup(' class="{}"').format(kind) if kind else ""
    return Markup('<text x="{:.1f}" y="{:.1f}"{}>{}</text>').format(x, y, named, words)


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
    marks = [*grid(y), *(_polyline(line, x, y) for line in lines)]
    # A line through one point cannot be seen.
    dotted = [line for line in lines if line.dots or len(line.points) == 1]
    marks += [dot(line.tone, x.at(a), y.at(b)) for line in dotted for a, b in line.points]
    stops: dict[float, list[str]] = {}
    for line in lines:
        for a, b in line.points:
            stops.setdefault(a, []).append(f"{line.name} {show(b)}")
    texts = [(x.at(a), f"{x_name} {x_show(a)}: " + ", ".join(stops[a])) for a in sorted(stops)]
    names = [(line.name, line.tone) for line in lines]
    return Chart(title, note, marks, texts, names, x=x, y=y, x_name=x_name, x_show=x_show, y_show=show)


def _polyline(line: Series, x: Axis, y: Axis) -> Markup:
    points = " ".join(f"{x.at(a):g},{100 - y.at(b):g}" for a, b in line.points)
    return Markup(
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none">'
        '<polyline points="{}" class="line {}" vector-effect="non-scaling-stroke"></polyline></svg>'
    ).format(points, line.tone)


def dot(tone: str, x: float, y: float, words: str = "") -> Markup:
    """A point, in percent from the left and from the bottom."""
    mark = Markup('<circle class="dot {}" cx="{:g}%" cy="{:g}%" r="4">{}</circle>')
    return mark.format(tone, x, 100 - y, _label(words))


def stroke(tone: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A straight line between two points, in percent from the left and from the bottom."""
    mark = Markup('<line class="{}" x1="{:g}%" y1="{:g}%" x2="{:g}%" y2="{:g}%"></line>')
    return mark.format(tone, x1, 100 - y1, x2, 100 - y2)


def arrow(tone: str, x: float, y: float, turn: int) -> Markup:
    """A small arrow with its tip at a point, in percent, that points upwards or is turned by degrees."""
    mark = Markup(
        '<svg x="{:g}%" y="{:g}%" overflow="visible">'
        '<path class="arrow {}" d="M-4,5 L0,0 L4,5" fill="none" stroke="currentColor" stroke-width="1.5" '
        'transform="rotate({})"></path></svg>'
    )
    return mark.format(x, 100 - y, tone, turn)


def rect(kind: str, x: float, y: float, width: float, height: float, words: str = "") -> Markup:
    """A rectangle, in percent from the left and from the top."""
    mark = Markup('<rect class="{}" x="{:g}%" y="{:.3f}%" width="{:.3f}%" height="{:.3f}%">{}</rect>')
    return mark.format(kind, x, y, width, height, _label(words))


def _label(words: str) -> Markup:
    return Markup("<title>{}</title>").format(words) if words else Markup()


def grid(y: Axis) -> list[Markup]:
    """A line at each tick of the axis beside the plot."""
    return [stroke("grid", 0, y.at(tick), 100, y.at(tick)) for tick in y.ticks]


def upright(x: Axis) -> list[Markup]:
    """A line at each tick of the axis below."""
    return [stroke("grid", x.at(tick), 0, x.at(tick), 100) for tick in x.ticks]
