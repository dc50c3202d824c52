"""All commands of `sottovoce` in one application.

Modules of commands import what computes inside the commands only: help and completion do without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from sottovoce import __version__
from sottovoce.cli import data as datasets
from sottovoce.cli import encoder, federation, models, quickstart, rehearsals, runs, studies
from sottovoce.cli import ledgers as keeping
from sottovoce.cli import status as watch
from sottovoce.errors import SottovoceError, nearest


class Commands(TyperGroup):
    """A group of commands that says what a misspelled one may have meant; typer and click do, or both."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise SottovoceError(f"no command '{name}': {nearest(name, self.list_commands(ctx))}")
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
EXAMPLES: dict[Callable[..., None], str] = {
    quickstart.quickstart: "quickstart tables --out runs/hospitals",
    runs.plan: "plan preset=paper dataset=cifar10 epsilon=16",
    runs.train: "train dataset=mnist epsilon=16 --out runs/mnist",
    runs.evaluate: "evaluate runs/mnist --json",
    runs.personalize: "personalize runs/mnist --data my.npz --out my.safetensors",
    runs.report: "report runs/mnist, or in a checkout: sottovoce report results",
    datasets.draft: "draft hospitals/ --target diagnosis",
    datasets.check: "check hospitals/",
    rehearsals.audit: "audit dataset=hospitals/ --runs 400",
    rehearsals.compare: "compare dataset=hospitals/ epsilon=4 --out runs/c",
    models.models: "models runs/h --out models/",
    models.predict: "predict models/north.safetensors --data new.csv --out predictions.csv",
    models.finish: "finish models/north.safetensors --data hospitals/north.csv --out north.home.safetensors",
    models.export: "export models/north.safetensors --onnx north.onnx",
    watch.status: "status runs/mnist --json",
    watch.watch: "watch runs/mnist",
    federation.federate: "federate --plan plan.toml --out app, then sottovoce federate --app app --on here",
    federation.node: "node node.toml --init, then sottovoce node node.toml",
    federation.serve: "serve runs/federation --new-token alice, then sottovoce serve runs/federation",
    federation.onboard: "onboard https://host:8443 --data my.npz --out my.safetensors --token-file token",
}
"""The commands in the order of help, and the example with which the help of each ends."""

for command, example in EXAMPLES.items():
    app.command(epilog=f"Example: sottovoce {example}")(command)
app.add_typer(keeping.ledgers, name="ledger", cls=Commands)
app.add_typer(keeping.site, name="site", cls=Commands)
app.add_typer(keeping.helper, name="helper", cls=Commands)
app.add_typer(datasets.app, name="data", cls=Commands)
app.add_typer(encoder.app, name="encoder", cls=Commands)
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
