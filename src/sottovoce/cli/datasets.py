"""`sottovoce data`: fetch public datasets into the cache and say where they are."""

from __future__ import annotations

import typer

from sottovoce.cli.display import answer, as_json, err, out
from sottovoce.cli.options import JSON, VALUES
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
