"""One table for the terminal, for Markdown and for a page.

HTML and SVG as nested calls, in which every string is escaped unless it is already markup.

All pages of the report are built with `tag`, so nothing that was read from a file can become an element.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from sottovoce.errors import visible
from sottovoce.report.numbers import plain

if TYPE_CHECKING:
    from rich.table import Table as Grid


class Html(str):
    """Text that is already markup and goes into a page unchanged."""

    __slots__ = ()


Value: TypeAlias = str | float | bool | None


def tag(name: str, /, *children: str, **attributes: Value) -> Html:
    """One element. A trailing underscore is dropped from attribute names and inner ones become hyphens;
    an attribute that is None or False is left out, True stands alone.

    >>> tag("p", "a < b", class_="note", data_value=1.5)
    '<p class="note" data-value="1.5">a &lt; b</p>'
    >>> tag("ul", tag("li", "x"), hidden=True)
    '<ul hidden><li>x</li></ul>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.removesuffix("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(str(value))}"')
    return Html(f"<{' '.join(words)}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Markup side by side; plain strings are escaped.

    >>> join(tag("b", "1"), " & 2")
    '<b>1</b> &amp; 2'
    """
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def embedded_json(identifier: str, value: object) -> Html:
    """Data for the page's script. `<` is written as an escape, so that no string can end the element.

    >>> embedded_json("d", ["</script>"])
    '<script type="application/json" id="d">["\\\\u003c/script>"]</script>'
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')


def scrolling(label: str, body: Html) -> Html:
    """A box that scrolls sideways by itself, also by keyboard, so that the page never does."""
    return tag("div", body, class_="scroll", tabindex="0", role="region", aria_label=label)


@dataclass(frozen=True)
class TableEntry:
    """What stands in one place of a table: a text, and in brackets what is to be seen `beside` it.

    `better` colors it where it is not None, by `share` of the full color on a page, where there is also room
    for something `small`; `value` is the unrounded number behind the text.
    """

    text: str
    beside: str = ""
    small: str = ""
    better: bool | None = None
    share: float = 0.0
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """Named columns, of which the first `words` are text and the others figures; without names, facts.

    >>> print(Table(["k", "ours"], [["1,024", TableEntry("48.0", "50.1")]], title="Accuracy").markdown())
    Accuracy:
    <BLANKLINE>
    | k | ours |
    | --- | --- |
    | 1,024 | 48.0 (50.1) |
    <BLANKLINE>
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str | TableEntry]]
    title: str = ""
    words: int = 1

    def markdown(self) -> str:
        """The title as a sentence, then the table."""
        rows = [[_bracketed(_entry(value)) for value in row] for row in self.rows]
        lines = [self.head, ["---"] * len(self.head), *rows]
        escaped = ([text.replace("|", "\\|") for text in line] for line in lines)
        table = "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"
        return f"{self.title}:\n\n{table}" if self.title else table

    def html(self, style: str | None = None) -> Html:
        """A table of a page, which scrolls by itself."""
        head = tag("tr", *(tag("th", n, scope="col", class_=self._kind(i)) for i, n in enumerate(self.head)))
        body = [
            tag("tr", *(self._cell(i, _entry(value)) for i, value in enumerate(row))) for row in self.rows
        ]
        table = tag("table", tag("thead", head), tag("tbody", *body), class_=style)
        return scrolling(self.title or self.head[0], table)

    def _cell(self, column: int, entry: TableEntry) -> Html:
        text = tag("data", entry.text, value=str(entry.value)) if entry.value is not None else entry.text
        body = join(text, *(tag("small", more) for more in (entry.beside, entry.small) if more))
        if column == 0:
            return tag("th", body, scope="row")
        if entry.better is None:
            return tag("td", body, class_=self._kind(column))
        shade = f"--share:{entry.share:.3f}"
        return tag("td", body, class_="better" if entry.better else "worse", style=shade)

    def _kind(self, column: int) -> str | None:
        return None if column < self.words else "figure"

    def terminal(self) -> Grid:
        """A table of rich."""
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table as Grid

        grid = Grid(
            title=escape(visible(self.title)), title_justify="left", title_style="bold", box=SIMPLE_HEAD
        )
        grid.pad_edge, grid.padding = False, (0, 1, 0, 0)
        if not self.head:
            grid.show_header, grid.box, grid.padding = False, None, (0, 2)
            for _ in self.rows[0] if self.rows else ():
                grid.add_column(overflow="fold")  # a path is never cut
        for i, name in enumerate(self.head):
            # Words break, so that figures need not.
            width = None if i >= self.words else 10 if i else 20
            grid.add_column(escape(visible(name)), justify="left" if width else "right", max_width=width)
        for row in self.rows:
            entries = [_entry(value) for value in row]
            first = "[dim]{}[/]" if not self.head else "{}"
            texts = [escape(visible(plain(_bracketed(entry, "\n")))) for entry in entries]
            colors = {None: "{}", True: "[green]{}[/]", False: "[dark_orange]{}[/]"}
            shown = [colors[entry.better].format(text) for entry, text in zip(entries, texts, strict=True)]
            grid.add_row(first.format(shown[0]), *shown[1:])
        return grid


def _entry(value: str | TableEntry) -> TableEntry:
    return value if isinstance(value, TableEntry) else TableEntry(value)


def _bracketed(entry: TableEntry, space: str = " ") -> str:
    return f"{entry.text}{space}({entry.beside})" if entry.beside else entry.text
