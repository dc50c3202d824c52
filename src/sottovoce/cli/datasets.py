"""`sottovoce data`: fetch public datasets into the cache, list them, copy a shipped folder of sites."""

from __future__ import annotations

from pathlib import Path

import typer

from sottovoce.cli.display import answer, as_json, err, out
from sottovoce.cli.options import JSON, VALUES
from sottovoce.plan.presets import FOLDERS
from sottovoce.report.numbers import data_size

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
