"""All commands of `sottovoce` in one application."""

from __future__ import annotations

import typer

from sottovoce import __version__
from sottovoce.cli import bench, datasets, federation, reproduce, runs

app = typer.Typer(
    name="sottovoce",
    help="Private, personalized federated learning in a whisper of bits.",
    epilog="Start with: sottovoce quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
runs.register(app)
reproduce.register(app)
federation.register(app)
app.add_typer(datasets.app, name="data")
app.add_typer(bench.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass
