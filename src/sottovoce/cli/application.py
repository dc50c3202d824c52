"""All commands of `sottovoce` in one application.

Modules of commands import what computes inside the commands only: help and completion do without torch.
"""

from __future__ import annotations

import click
import typer
from typer.core import TyperGroup

from sottovoce import __version__
from sottovoce.cli import datasets, federation, keeping, models, quickstart, rehearsals, runs, studies, watch


class Commands(TyperGroup):
    """A group of commands in which a misspelled one gets one hint, click's where it gives one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if hasattr(click.exceptions, "NoSuchCommand"):
            self.suggest_commands = False
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    name="sottovoce",
    help="Private, personalized federated learning in a whisper of bits.",
    epilog="Start with: sottovoce quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
quickstart.register(app)
runs.register(app)
datasets.register(app)
rehearsals.register(app)
models.register(app)
watch.register(app)
federation.register(app)
app.add_typer(keeping.ledgers, name="ledger", cls=Commands)
app.add_typer(keeping.site, name="site", cls=Commands)
app.add_typer(keeping.helper, name="helper", cls=Commands)
app.add_typer(datasets.app, name="data", cls=Commands)
studies.register(app)


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
