"""`sottovoce data`: fetch public datasets into the cache, list them, copy a shipped folder of sites.

`sottovoce check` reads every site of a folder, or one, says what is wrong, and charges nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from sottovoce.cli.display import answer, as_json, err, out, progress_over
from sottovoce.cli.options import JSON, VALUES
from sottovoce.errors import SottovoceError
from sottovoce.plan.presets import FOLDERS
from sottovoce.report.table import UNKNOWN, count, data_size, number

app = typer.Typer(help="Fetch and list datasets.", no_args_is_help=True)


@app.command(epilog="Example: sottovoce data fetch cifar10")
def fetch(
    name: str = typer.Argument(
        help="mnist, cifar10 or fashion-mnist", autocompletion=lambda: list(VALUES["dataset"])
    ),
    json: bool = JSON,
) -> None:
    """Download a dataset, verify its checksums, and keep it in the cache (or in $SOTTOVOCE_DATA)."""
    from sottovoce import data

    with err.status(f"fetching {name}") as status:
        path = data.fetch(name, status.update)
    answer({"dataset": name, "path": str(path)}, f"{name} is in {path}", json=json)


@app.command(epilog="Example: sottovoce data copy heart hospitals")
def copy(
    name: str = typer.Argument(help="heart", autocompletion=lambda: list(FOLDERS)),
    to: Path = typer.Argument(metavar="FOLDER", help="A folder that is not there yet."),
    json: bool = JSON,
) -> None:
    """Copy a shipped folder of sites, with records.toml and licence, to a place of your own."""
    from sottovoce import data

    data.copy_shipped(name, to)
    sites = list(data.client_files(to))
    answer({"folder": str(to), "sites": sites}, f"{', '.join(sites)} are in {to}", json=json)


@app.command("list", epilog="Example: sottovoce data list --json")
def list_(json: bool = JSON) -> None:
    """The datasets that have a name, and which of them are at hand."""
    from sottovoce import data

    folder = data.cache_folder()
    rows = [
        {"dataset": name, "available": name not in data.PUBLIC or data.fetched(name)} for name in data.NAMES
    ]
    if json:
        as_json({"cache": str(folder), "datasets": rows})
        return
    out.print(f"cache: {folder}", soft_wrap=True)
    for row in rows:
        out.print(f"  {row['dataset']:14} {'at hand' if row['available'] else 'not fetched yet'}")


@app.command(epilog="Example: sottovoce data clean")
def clean(json: bool = JSON) -> None:
    """Remove the features that were kept of all datasets; fetched datasets stay."""
    from sottovoce.features.kept import clean as remove

    freed = remove()
    answer({"freed_bytes": freed}, f"removed kept features, {data_size(freed)}", json=json)


if TYPE_CHECKING:
    from sottovoce.data import Check, Description
    from sottovoce.data.cells import Findings

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
    from sottovoce.data.cells import verdict

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
