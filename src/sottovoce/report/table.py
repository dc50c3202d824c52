"""One table for the terminal, for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.errors import visible
from sottovoce.report.markup import Html, join, scrolling, tag
from sottovoce.report.numbers import plain

if TYPE_CHECKING:
    from rich.table import Table as Grid


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
