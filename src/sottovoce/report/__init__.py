"""A run as one HTML page: accuracy, privacy spent, bytes sent, and what was promised.

The page is a single file without outside resources: text, tables and SVG charts that print and open
offline, plus one small script for the readouts. It shows what files say and computes no result of its own.
`table` and `chart` serve the terminal, Markdown and SVG files as well.

Here is the shell of every page: head, style, script, headline cards, sections, folded tables. Its content
security policy forbids every outside resource and every script but ours (by hash).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files

from sottovoce.report import chart
from sottovoce.report.chart import Chart
from sottovoce.report.table import Html, Table, join, tag

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M2 8q2-5 4 0t4 0 4 0' fill='none' stroke='%232b5f8a' stroke-width='2'/%3E%3C/svg%3E"
)


def page(title: str, *body: str, live: bool = False) -> Html:
    """A complete HTML document around `body`; a `live` one hears events of the server it came from."""
    style, script = chart.STYLE + _text("page.css"), _text("page.js") + (_text("live.js") if live else "")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += "; connect-src 'self'" if live else ""
    head = Html(
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="{_ICON}">\n'
    )
    head = join(head, tag("title", title), Html(f"\n<style>\n{style}</style>\n"))
    end = Html(f"\n<script>{script}</script>\n")
    return Html(
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}</head>\n'
        f"<body>\n{join(*body)}{end}</body>\n</html>\n"
    )


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def header(title: str, facts: Iterable[str], about: str) -> Html:
    """The top of a page: what it is about, and a line of facts."""
    line = tag("ul", *(tag("li", fact) for fact in facts), class_="facts")
    return tag("header", tag("p", about, class_="brand"), tag("h1", title), line)


def card(identifier: str, label: str, figure: str, value: float | None, *details: str) -> Html:
    """A headline figure; `value` is the unrounded number behind the text."""
    number = tag("data", figure, value=str(value)) if value is not None else tag("span", figure)
    lines = [tag("p", detail) for detail in details if detail]
    return tag(
        "div", tag("h2", label), tag("p", number, class_="figure"), *lines, id=identifier, class_="card"
    )


def cards(*items: Html) -> Html:
    return tag("div", *items, class_="cards")


def section(title: str, *body: str, identifier: str | None = None) -> Html:
    return tag("section", tag("h2", title), *body, id=identifier)


def grid(*parts: Html | Chart) -> Html:
    """Charts and texts side by side where there is room."""
    return tag("div", *(p.html() if isinstance(p, Chart) else p for p in parts), class_="grid")


def folded(table: Table) -> Html:
    """A long table behind its title."""
    return tag("details", tag("summary", table.title), table.html())
