"""The command `sottovoce`: the Python functions with progress, tables and one-line errors."""

from __future__ import annotations

import os
import sys

# Before torch is loaded: threads that wait by spinning make a busy machine ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from sottovoce import __version__
from sottovoce.cli import bench, datasets, federation, reproduce, runs
from sottovoce.cli.display import problem
from sottovoce.errors import SottovoceError

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


def main() -> None:
    """Runs the command line; an error of ours is one line on standard error and exit code 2."""
    try:
        app()
    except SottovoceError as error:
        problem(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        problem("interrupted")
        sys.exit(130)
    except OSError as error:
        problem(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(2)
