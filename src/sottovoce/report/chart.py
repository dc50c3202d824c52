"""Charts, for pages and as SVG files; `figures` makes them.

Marks lie at percentages of the plot and labels are ordinary text, so that charts keep their letter size at
any width, print, and need no script. Colors are classes of chart.css, which knows light and dark pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from sottovoce.report.axis import Axis
from sottovoce.report.markup import Html, tag
from sottovoce.report.numbers import number

Format = Callable[[float], str]
STYLE = (files(__package__) / "chart.css").read_text(encoding="utf-8")
WIDTH, PAD, LEFT = 720, 24, 84  # of an SVG file, in pixels


@dataclass(frozen=True)
class Chart:
    """A chart without its surroundings: marks, axes, legend, names inside the plot, and readouts.

    `labels` and `stops` are (percent from the bottom, name) and (percent from the left, words); a chart
    without marks says that nothing was recorded. `height` is in pixels.
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
            tag(
                "div",
                self._plot(),
                tag("div", *names, class_="rows", aria_hidden="true"),
                class_="area",
                style=f"height:{self.height}px",
            ),
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
            if x + 21 + 7 * len(name) > WIDTH - PAD:
                x, top = float(LEFT), top + 20
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
