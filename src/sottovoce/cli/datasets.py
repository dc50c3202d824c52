"""`sottovoce data`: fetch public datasets into the cache and say where they are."""

from __future__ import annotations

import typer

from sottovoce import data
from sottovoce.cli.display import as_json, err, out

app = typer.Typer(help="Fetch and list datasets.", no_args_is_help=True)

JSON = typer.Option(False, "--json", help="Print JSON instead of text.")


@app.command(epilog="Example: sottovoce data fetch cifar10")
def fetch(
    name: str = typer.Argument(help="mnist, cifar10 or fashion-mnist"),
    json: bool = JSON,
) -> None:
    """Download a dataset, verify its checksums, and keep it in the cache (or in $SOTTOVOCE_DATA)."""
    with err.status(f"fetching {name}") as status:
        path = data.fetch(name, status.update)
    if json:
        as_json({"dataset": name, "path": str(path)})
    else:
        out.print(f"{name} is in {path}", soft_wrap=True)


@app.command("list", epilog="Example: sottovoce data list --json")
def list_(json: bool = JSON) -> None:
    """The datasets that have a name, and which of them are at hand."""
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
