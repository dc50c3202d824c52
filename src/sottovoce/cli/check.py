"""`sottovoce check`: reads every site of a folder, or one, says what is wrong, and charges nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from sottovoce.cli.display import as_json, out, progress_over
from sottovoce.cli.options import JSON
from sottovoce.errors import SottovoceError
from sottovoce.report.numbers import UNKNOWN, count, number

if TYPE_CHECKING:
    from sottovoce.data import Check, Description
    from sottovoce.data.findings import Findings

MOST_LINES = 20


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command(epilog="Example: sottovoce check hospitals/")(check)


def check(
    path: Path = typer.Argument(help="A folder with records.toml and one file for each site, or one site's."),
    json: bool = JSON,
) -> None:
    """Read records as a run would, say what is wrong, and charge nothing.

    What it prints is made of records: it is for whoever holds them.
    """
    from sottovoce import data

    with progress_over("reading") as progress:
        checked = data.check(path.expanduser(), progress)
    if json:
        as_json(checked.fields())
    else:
        _show(checked)
    if checked.problems:
        first, more = checked.problems[0], len(checked.problems) - 1
        raise SottovoceError(first + (f" (and {count(more, 'more problem')} above)" if more else ""))


def _show(checked: Check) -> None:
    from sottovoce.report.table import Table

    head = ["client", "verdict", "records", "unusable", "missing", "outside", "other"]
    if checked.agreed.unit:
        head.insert(3, "units")
    rows = [_row(site, checked.agreed) for site in checked.sites]
    shape = " × ".join(map(str, checked.agreed.facts().shape))
    records = sum(site.records for site in checked.sites)
    title = f"{count(len(rows), 'client')}, {count(records, 'record')} of {shape} numbers"
    out.print(Table(head, rows, title, words=2).terminal())
    lines("red", checked.problems)
    lines("dark_orange", checked.suspicions)
    if not checked.problems:
        said = "everything can be used" if not checked.suspicions else "can be used; look at the lines above"
        out.print(f"[green]{said}[/]; nothing was charged", highlight=False)


def _row(site: Findings, agreed: Description) -> list[str]:
    from sottovoce.data.findings import verdict

    columns = site.columns.values()
    figures = [
        site.unusable,
        sum(column.missing + column.unreadable for column in columns),
        sum(column.outside for column in columns),
        sum(column.unknown for column in columns),
    ]
    own = [UNKNOWN if site.units is None else number(site.units)] if agreed.unit else []
    return [site.client, verdict(site, agreed), number(site.records), *own, *map(number, figures)]


def lines(color: str, found: list[str]) -> None:
    """One line each of what was found, up to `MOST_LINES`."""
    for line in found[:MOST_LINES]:
        out.print(f"[{color}]•[/] {escape(line)}", soft_wrap=True, highlight=False)
    if len(found) > MOST_LINES:
        out.print(f"[{color}]•[/] and {len(found) - MOST_LINES} more: --json lists all", highlight=False)
