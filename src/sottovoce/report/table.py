"""One table for the terminal and for a page, and its numbers as a reader wants them: units,
sensible digits, thin spaces, a dash for what is not known. 1 MB is 10⁶ bytes, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.errors import visible
from sottovoce.plan.catalog import METRICS

if TYPE_CHECKING:
    from rich.table import Table as Grid

THIN = "\u202f"
UNKNOWN = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(text: str) -> str:
    """With ordinary spaces, for terminals.

    >>> plain(percent(80.333))
    '80.3 %'
    """
    return text.replace(THIN, " ")


def label(metric: str) -> str:
    """Returns what a metric is called.

    >>> label("balanced_accuracy"), label("auroc")
    ('balanced accuracy', 'AUROC')
    """
    return METRICS[metric].phrase if metric in METRICS else metric.replace("_", " ")


def measure(metric: str, value: float | None) -> str:
    """The value of a metric: shares in percent, all else as a number."""
    return percent(value) if metric in METRICS and METRICS[metric].percent else number(value)


def counted(unit: str) -> str:
    """Returns what sizes count: records, or units such as patients.

    >>> counted("record"), counted("patient_id")
    ('records', 'units (patient_id)')
    """
    return "records" if unit == "record" else f"units ({unit})"


def out_of(spent: float | None, target: float | None) -> str:
    """Returns what an account has spent beside what a run was to spend: more, where there were other runs.

    >>> out_of(4.0, 4), out_of(5.99, 4)
    ('of 4', 'over all runs in its ledger, 4 in this one,')
    """
    alone = spent is None or target is None or spent <= target * (1 + 1e-6)
    return f"of {number(target)}" if alone else f"over all runs in its ledger, {number(target)} in this one,"


def percent(value: float | None, digits: int = 1) -> str:
    """A share that is already in percent.

    >>> percent(80.333).replace(THIN, " "), percent(-0.01).replace(THIN, " "), percent(None)
    ('80.3 %', '0.0 %', '–')
    """
    return UNKNOWN if value is None else f"{value:z.{digits}f}{THIN}%"


def number(value: float | None, digits: int = 3, *, zeros: bool = False) -> str:
    """`digits` significant digits, without trailing zeros unless `zeros`; integers keep all of theirs.

    >>> number(8.0, zeros=True)
    '8.00'
    >>> [number(x).replace(THIN, " ") for x in (0.0152094, 8.0, 7.9984, 121182, 2e-7, 0, math.inf)]
    ['0.0152', '8', '8', '121 182', '2 × 10⁻⁷', '0', '∞']
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return _power_of_ten(value, digits)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}".replace(",", THIN)
    if "." in text and not zeros:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def _power_of_ten(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if mantissa == "1" else f"{mantissa}{THIN}×{THIN}{power}"


def count(many: int, name: str) -> str:
    """A number of things.

    >>> count(1, "gradient"), count(25, "gradient")
    ('1 gradient', '25 gradients')
    """
    return f"{number(many)} {name}" if many == 1 else f"{number(many)} {name}s"


def equals(symbol: str, value: float | None, digits: int = 3) -> str:
    """A symbol and its value, which no line break may part.

    >>> equals("ε", 7.99871, 4)
    'ε\xa0=\xa07.999'
    """
    return f"{symbol}\u00a0=\u00a0{number(value, digits)}"


def data_size(count: float | None) -> str:
    """Bytes with a decimal unit.

    >>> [data_size(x).replace(THIN, " ") for x in (0, 999, 65552, 65_550_000, 2.5e9)]
    ['0 B', '999 B', '65.6 kB', '65.5 MB', '2.5 GB']
    """
    if count is None:
        return UNKNOWN
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{number(count / size)}{THIN}{unit}"
    return f"{number(count)}{THIN}B"


def duration(seconds: float) -> str:
    """
    >>> [duration(x).replace(THIN, " ") for x in (0, 0.034, 41.26, 200, 7260)]
    ['0 s', '0.03 s', '41.3 s', '3 min 20 s', '2 h 1 min']
    """
    if 0 < seconds < 1:
        return f"{seconds:.2f}{THIN}s"
    if seconds < 60:
        return f"{number(seconds)}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60}{THIN}min"


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

    def bracketed(self, space: str = " ") -> str:
        """
        >>> TableEntry("48.0", "50.1").bracketed()
        '48.0 (50.1)'
        """
        return f"{self.text}{space}({self.beside})" if self.beside else self.text


@dataclass(frozen=True)
class Table:
    """Named columns, of which the first `words` are text and the others figures; without names, facts."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | TableEntry]]
    title: str = ""
    words: int = 1
    remarks: bool = False
    """The last column is text, too."""

    @property
    def entries(self) -> list[list[TableEntry]]:
        """Its rows, every place as an entry."""
        return [[v if isinstance(v, TableEntry) else TableEntry(v) for v in row] for row in self.rows]

    def terminal(self) -> Grid:
        """A table of rich."""
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table as Grid
        from rich.text import Text

        title = Text(visible(self.title), "bold", no_wrap=True, overflow="ignore")  # it may be wider
        grid = Grid(title=title if self.title else None, title_justify="left", box=SIMPLE_HEAD)
        grid.pad_edge, grid.padding = False, (0, 1, 0, 0)
        if not self.head:
            grid.show_header, grid.box, grid.padding = False, None, (0, 2)
            for _ in self.rows[0] if self.rows else ():
                grid.add_column(overflow="fold")  # a path is never cut
        for i, name in enumerate(self.head):
            # Words break, so that figures need not.
            width = None if i >= self.words else 10 if i else 20
            text = bool(width) or (self.remarks and i == len(self.head) - 1)
            grid.add_column(escape(visible(name)), justify="left" if text else "right", max_width=width)
        for entries in self.entries:
            first = "[dim]{}[/]" if not self.head else "{}"
            texts = [escape(visible(plain(entry.bracketed("\n")))) for entry in entries]
            colors = {None: "{}", True: "[green]{}[/]", False: "[dark_orange]{}[/]"}
            shown = [colors[entry.better].format(text) for entry, text in zip(entries, texts, strict=True)]
            grid.add_row(first.format(shown[0]), *shown[1:])
        return grid
