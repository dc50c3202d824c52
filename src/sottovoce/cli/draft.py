"""`sottovoce draft`: writes a records.toml, asking for what only people know."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sottovoce.cli.display import answer, attended, err
from sottovoce.cli.options import JSON
from sottovoce.errors import SottovoceError, visible

if TYPE_CHECKING:
    from sottovoce.data.drafting import Draft

HOW = "separated by commas"


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command(epilog="Example: sottovoce draft hospitals/ --target diagnosis")(draft)


def draft(
    path: Path = typer.Argument(help="A folder of sites, of which the first is taken, or one site's file."),
    dictionary: Path = typer.Option(
        None, help="A data dictionary: a line for each column, with column, kind, low, high, values, role."
    ),
    target: str = typer.Option(None, metavar="COLUMN", help="The column that is to be predicted."),
    unit: str = typer.Option(None, metavar="COLUMN", help="The column that names who is protected, if any."),
    look: bool = typer.Option(
        False, "--look", help="Read kinds, bounds and values from the site's records: no ε covers that."
    ),
    json: bool = JSON,
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
    if dictionary is not None:
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
        err.print(
            f"looked up in {visible(made.source)}: everybody who reads {place.name} learns what is marked in "
            "it, and no ε covers it",
            soft_wrap=True,
            highlight=False,
        )
    answer(said, f"{place} is written: {then} 'sottovoce check {where}'", json=json)


def _asked(site: Path, target: str | None, unit: str | None) -> Draft:
    """A draft that a person fills in, column by column."""
    from sottovoce.data import drafting
    from sottovoce.data.kinds import KINDS

    names = drafting.known_names(site, target, unit)
    err.print(
        f"columns of {visible(site.name)}: {visible(', '.join(names))}", soft_wrap=True, highlight=False
    )
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
        kind = _choice(f"'{name}': number, category, date or text? (empty: it is not read)", ["", *KINDS])
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
        err.print(f"choose from {', '.join(word for word in words if word)}", highlight=False)


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
    while True:
        try:
            return date.fromisoformat(
                str(typer.prompt(f"{which} sensible '{name}', as 2020-01-31", err=True))
            )
        except ValueError:
            continue
