"""Records before a run: `sottovoce draft` writes an agreement on them, `check` reads sites against it, and
`data` fetches and lists datasets.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sottovoce.cli import options
from sottovoce.cli.display import (
    answer,
    as_json,
    attended,
    bullets,
    client_progress,
    err,
    note,
    say,
    show_table,
)
from sottovoce.errors import SottovoceError
from sottovoce.plan.presets import FOLDERS
from sottovoce.report.table import UNKNOWN, Table, count, data_size, number

if TYPE_CHECKING:
    from sottovoce.data import Check, Description
    from sottovoce.data.drafting import Draft
    from sottovoce.data.tables.checks import Findings


app = typer.Typer(help="Fetch and list datasets.", no_args_is_help=True)
HOW = "separated by commas"


@app.command(epilog="Example: sottovoce data fetch cifar10")
def fetch(
    name: str = typer.Argument(
        help="mnist, cifar10 or fashion-mnist", autocompletion=lambda: list(options.VALUES["dataset"])
    ),
    json: bool = options.JSON,
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
    json: bool = options.JSON,
) -> None:
    """Copy a shipped folder of sites, with records.toml and licence, to a place of your own."""
    from sottovoce import data

    data.copy_shipped(name, to)
    sites = list(data.client_files(to))
    answer({"folder": str(to), "sites": sites}, f"{', '.join(sites)} are in {to}", json=json)


@app.command("list", epilog="Example: sottovoce data list --json")
def list_(json: bool = options.JSON) -> None:
    """The datasets that have a name, and which of them are at hand."""
    from sottovoce import data

    folder = data.cache_folder()
    rows = [
        {"dataset": name, "available": name not in data.PUBLIC or data.fetched(name)} for name in data.NAMES
    ]
    if json:
        as_json({"cache": str(folder), "datasets": rows})
        return
    say(f"cache: {folder}")
    for row in rows:
        say(f"  {row['dataset']:14} {'at hand' if row['available'] else 'not fetched yet'}")


@app.command(epilog="Example: sottovoce data clean")
def clean(json: bool = options.JSON) -> None:
    """Remove the features that were kept of all datasets; fetched datasets stay."""
    from sottovoce.models.features.cache import clean as remove

    freed = remove()
    answer({"freed_bytes": freed}, f"removed kept features, {data_size(freed)}", json=json)


def check(
    path: Path = typer.Argument(help="A folder with records.toml and one file for each site, or one site's."),
    json: bool = options.JSON,
) -> None:
    """Read records as a run would, say what is wrong, and charge nothing.

    What it prints is made of records: it is for whoever holds them.
    """
    from sottovoce import data

    with client_progress("reading") as reading:
        checked = data.check(path.expanduser(), reading)
    if json:
        as_json(checked.fields())
    else:
        _show(checked)
    if checked.problems:
        first, more = checked.problems[0], len(checked.problems) - 1
        raise SottovoceError(first + (f" (and {count(more, 'more problem')} above)" if more else ""))


def _show(checked: Check) -> None:
    head = ["client", "verdict", "records", "unusable", "missing", "outside", "other"]
    if checked.agreed.unit:
        head.insert(3, "units")
    rows = [_row(site, checked.agreed) for site in checked.sites]
    shape = " × ".join(map(str, checked.agreed.facts().shape)) + " numbers"
    if checked.agreed.held:
        shape = count(len(checked.agreed.columns), "column")
    records = sum(site.records for site in checked.sites)
    title = f"{count(len(rows), 'client')}, {count(records, 'record')} of {shape}"
    show_table(Table(head, rows, title, words=2))
    bullets(checked.problems, "red")
    bullets(checked.suspicions, "dark_orange")
    if not checked.problems:
        said = "everything can be used" if not checked.suspicions else "can be used; look at the lines above"
        say((said, "green"), "; nothing was charged")


def _row(site: Findings, agreed: Description) -> list[str]:
    from sottovoce.data.tables.checks import verdict

    columns = site.columns.values()
    figures = [
        site.unusable,
        sum(column.missing + column.unreadable for column in columns),
        sum(column.outside for column in columns),
        sum(column.unknown for column in columns),
    ]
    own = [UNKNOWN if site.units is None else number(site.units)] if agreed.unit else []
    return [site.client, verdict(site, agreed), number(site.records), *own, *map(number, figures)]


def draft(
    path: Path = typer.Argument(help="A folder of sites, of which the first is taken, or one site's file."),
    dictionary: Path = typer.Option(
        None, help="A data dictionary: a line for each column, with column, kind, low, high, values, role."
    ),
    target: str = typer.Option(None, metavar="COLUMN", help="The column that is to be predicted."),
    unit: str = typer.Option(None, metavar="COLUMN", help="The column that names who is protected, if any."),
    names: str = typer.Option(
        None, metavar="PATTERN", help='Of folders of pictures: how these are called, such as "{patient}_*".'
    ),
    look: bool = typer.Option(
        False, "--look", help="Read kinds, bounds and values from the site's records: no ε covers that."
    ),
    json: bool = options.JSON,
) -> None:
    """Write records.toml, the public agreement on what a record is.

    Only the line of names is read; kinds, bounds and values are asked for, or left as "?" where nobody is
    here to ask. They are public: take them from a form, a textbook or a law, not from records.
    """
    from sottovoce.data import drafting

    where = path.expanduser()
    if not where.exists():
        raise SottovoceError(f"{where} does not exist: give a folder of sites, or one site's file")
    place, site = drafting.place_of(where), drafting.site_of(where)
    if look and dictionary is not None:
        raise SottovoceError("--look reads records and --dictionary does not: choose one of them")
    if sites := drafting.picture_folders(where):
        made = _of_pictures(where, sites, unit, names)
    elif dictionary is not None:
        made = drafting.from_dictionary(dictionary, target, unit)
    elif site is None:
        raise SottovoceError(f"{where} has no file of a site: put one there, or give a --dictionary")
    elif look:
        if target is None:
            raise SottovoceError("say which column is to be predicted: --target COLUMN")
        made = drafting.looked_up(site, target, unit)
    elif attended():
        made = _asked(site, target, unit)
    else:
        made = drafting.from_header(site, target, unit)
    place.write_text(made.text(), encoding="utf-8")
    said = {"records": str(place), "blanks": made.blanks, "looked_up": bool(made.source)}
    then = f'fill in its {made.blanks} blanks ("?"), then' if made.blanks else "read it, then"
    if made.source:
        note(
            f"looked up in {made.source}: everybody who reads {place.name} learns what is marked in it, and "
            "no ε covers it"
        )
    answer(said, f"{place} is written: {then} 'sottovoce check {where}'", json=json)


def _of_pictures(where: Path, sites: list[Path], unit: str | None, names: str | None) -> Draft:
    """A draft for folders of pictures; whoever is here is asked whether their classes are known anyway."""
    from sottovoce.data import drafting

    made = drafting.from_pictures(where, sites, unit, names)
    values = made.of_target["values"]
    assert isinstance(values, list)
    if attended():
        note(f"folders of {where.name}: {', '.join(values)}")
        if typer.confirm("are these all classes, and known without any picture?", err=True):
            made.of_target, made.notes, made.source = {"values": values}, [], ""
    return made


def _asked(site: Path, target: str | None, unit: str | None) -> Draft:
    """A draft that a person fills in, column by column."""
    from sottovoce.data import drafting
    from sottovoce.data.tables.registry import KINDS

    names = drafting.known_names(site, target, unit)
    note(f"columns of {site.name}: {', '.join(names)}")
    target = target or _choice("which one is to be predicted?", names)
    if unit is None:
        unit = _choice(
            "which one names who is protected, such as a patient? (empty: each record)", ["", *names]
        )
    made = drafting.Draft(target=target, unit=unit or None)
    made.task = _choice(f"'{target}' is one of several classes, or a number?", ["classes", "number"])
    made.of_target = (
        {"values": _list(f"classes of '{target}', {HOW}")} if made.task == "classes" else _bounds(target)
    )
    for name in (name for name in names if name not in (target, unit)):
        kind = _choice(f"'{name}': one of {', '.join(KINDS)}? (empty: it is not read)", ["", *KINDS])
        if kind == "number":
            made.columns[name] = {"kind": kind, **_bounds(name), "missing": "middle"}
        elif kind == "category":
            made.columns[name] = {"kind": kind, "values": _list(f"values of '{name}', {HOW}")}
        elif kind == "date":
            made.columns[name] = {
                "kind": kind,
                "since": _day(name, "earliest"),
                "until": _day(name, "latest"),
            }
        elif kind == "vector":
            made.columns[name] = {
                "kind": kind,
                "size": typer.prompt("of how many numbers", type=int, err=True),
            }
        elif kind:
            made.columns[name] = {"kind": kind}
    return made


def _choice(question: str, words: list[str]) -> str:
    while True:
        said = str(
            typer.prompt(question, default="" if "" in words else None, show_default=False, err=True)
        ).strip()
        if said in words:
            return said
        note(f"choose from {', '.join(word for word in words if word)}")


def _list(question: str) -> list[str]:
    while True:
        said = str(typer.prompt(question, err=True))
        if values := list(dict.fromkeys(text for part in said.split(",") if (text := part.strip()))):
            return values


def _bounds(name: str) -> dict[str, object]:
    low = typer.prompt(f"smallest sensible '{name}'", type=float, err=True)
    high = typer.prompt(f"largest sensible '{name}'", type=float, err=True)
    return {"low": low, "high": high}


def _day(name: str, which: str) -> date:
    question = f"{which} sensible '{name}', as 2020-01-31"
    day: date = typer.prompt(question, type=date.fromisoformat, err=True)
    return day
