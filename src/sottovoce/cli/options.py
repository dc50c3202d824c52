"""Options and arguments that several commands have, and how a shell completes them."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from sottovoce.plan import CHOICES, keys
from sottovoce.plan.presets import FOLDERS, TUNED

FLAGS = [name for name, default, _ in keys() if default in ("true", "false")]
VALUES = {**CHOICES, **dict.fromkeys(FLAGS, ("true", "false")), "dataset": (*TUNED, *FOLDERS)}


def complete_setting(ctx: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Keys of a plan, and after `=` the values of one that has names for them.

    A shell that breaks words at `=`, as bash does, asks for the value alone, after `key` or `key =`.
    """
    known = {name: text for name, _, text in keys()}
    *_, before, last = "", "", *(str(word) for word in ctx.params.get("settings") or [])
    name, equals, _ = incomplete.partition("=")
    if equals:
        yield from ((f"{name}={value}", "") for value in VALUES.get(name, ()))
    elif last == "=" or (last in known and not incomplete):
        yield from ((value, "") for value in VALUES.get(before if last == "=" else last, ()))
    else:
        yield from ((f"{name}=", text) for name, text in known.items())


JSON = typer.Option(False, "--json", help="Print JSON instead of a table.")
SETTINGS = typer.Argument(
    None,
    metavar="[PLAN.toml] [key=value …]",
    help="A plan file, settings, or both.",
    autocompletion=complete_setting,
)
DEVICE = typer.Option("cpu", help="cpu or cuda. Changes speed only.", autocompletion=lambda: ["cpu", "cuda"])
DATA = typer.Option(..., help="The client's records: .csv, .parquet or .npz; targets are optional.")
MODEL_OUT = typer.Option(..., help="Where to write the model, a .safetensors file that explains itself.")
LEDGER = typer.Option(
    None,
    help="The client's ledger; by default the folder's ledger.sqlite, if the records lie in a folder of "
    "sites that has one, else NAME.ledger.sqlite beside NAME.csv, the records.",
)
CLIENT = typer.Option(None, help="The client's name in its ledger; by default that of the file of records.")
EPSILON = typer.Option(
    None,
    help="ε that all releases of these records together may reach, kept in the ledger: the strictest ever "
    "set holds until 'sottovoce ledger raise'; 8 at first.",
)
DELTA = typer.Option(None, help="δ at which this client counts, whatever the run's is; 1e-5 at first.")
YES = typer.Option(False, "--yes", help="Agree to the price without being asked, for machines.")
FINISH = typer.Option(
    False,
    "--finish",
    help="Also fit the model to the client's own records, into NAME.home.safetensors, which stays at home.",
)
MODEL = typer.Option(
    None,
    metavar="NAME",
    help="The run's own model, package.module:function, if it has one; what a file names is not imported.",
)
FEATURES = typer.Option(
    None,
    metavar="NAME",
    help="The run's own feature map, package.module:function, if any; what a file names is not imported.",
)
OWN_MODEL = typer.Option(
    None,
    "--model",
    metavar="NAME",
    help="Own model, package.module:function; what a file names is not imported.",
)
OWN_FEATURES = typer.Option(
    None, "--features", metavar="NAME", help="Own feature map, package.module:function, likewise."
)
