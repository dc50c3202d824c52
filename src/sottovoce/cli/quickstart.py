"""`sottovoce quickstart`: the stories of a federation on the data that ship with the package."""

from __future__ import annotations

import csv
import shlex
import shutil
from pathlib import Path

import click
import typer

from sottovoce.cli.display import as_json, hidden, out
from sottovoce.cli.options import JSON
from sottovoce.cli.runs import run_plan
from sottovoce.errors import SottovoceError, nearest
from sottovoce.plan import Plan

STORIES = ("pictures", "tables")
SETTINGS = ["epsilon=4", "future_clients=west", "channel=direct"]
"""A message of 68 numbers is small uncoded, and a story should not wait until a coder is compiled."""
SOME = 20
"""Records of the file that is predicted."""


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command(epilog="Example: sottovoce quickstart tables --out runs/hospitals")(quickstart)


def quickstart(
    story: str = typer.Argument(
        "pictures", help="pictures, or tables.", autocompletion=lambda: list(STORIES)
    ),
    out: Path = typer.Option(None, help="Directory of what comes out; by default one below runs/."),
    json: bool = JSON,
) -> None:
    """Train a private federation on shipped data, in about a minute, and write its report.

    pictures: digits at 20 clients, one run. tables: a folder of generated hospitals, from check over compare,
    train and models to predict and personalize, every command shown.
    """
    if story not in STORIES:
        raise SottovoceError(f"no quickstart '{story}': {nearest(story, STORIES)}")
    name = "quickstart" if story == "pictures" else "quickstart-tables"
    folder = _unused(Path("runs") / name) if out is None else out
    if story == "pictures":
        run_plan(Plan.load(overrides={"preset": "best"}), folder, json=json)
    else:
        _tables(folder, json=json)


def _tables(folder: Path, *, json: bool) -> None:
    """What an engineer of a network of hospitals would type, on a copy of the shipped sites."""
    from sottovoce import data

    sites = folder / "hospitals"
    if sites.exists():
        raise SottovoceError(f"{folder} already holds a story: choose another --out")
    shutil.copytree(Path(data.__file__).parent / "shipped" / "hospitals", sites)
    _without_target(sites / "cedar.csv", folder / "new.csv")
    cedar, west = folder / "models" / "cedar.safetensors", folder / "west.safetensors"
    plan = [f"dataset={sites}", *SETTINGS, "--out"]
    commands = [
        ["check", str(sites)],
        ["compare", *plan, str(folder / "compare")],
        ["train", *plan, str(folder / "run")],
        ["models", str(folder / "run"), "--out", str(folder / "models")],
        ["predict", str(cedar), "--data", str(folder / "new.csv"), "--out", str(folder / "predictions.csv")],
        ["personalize", str(folder / "run"), "--data", str(sites / "west.csv"), "--out", str(west), "--yes"],
        ["ledger", "show", str(sites / "ledger.sqlite")],
    ]
    for words in commands:
        if not json:
            out.print(f"\n[bold]$ sottovoce {shlex.join(words)}[/]", soft_wrap=True, highlight=False)
        _invoke(words, quiet=json)
    if json:
        as_json({"folder": str(folder), "commands": commands})


def _invoke(words: list[str], *, quiet: bool) -> None:
    """Runs a command of this program as if it had been typed."""
    program = click.get_current_context().find_root().command
    with hidden(quiet):
        try:
            program.main(words, "sottovoce", standalone_mode=False)
        except click.exceptions.Exit as ended:
            if ended.exit_code:
                raise SottovoceError(
                    f"'sottovoce {shlex.join(words)}' ended with {ended.exit_code}"
                ) from None


def _without_target(source: Path, to: Path) -> None:
    """Some records of a site whose diagnosis nobody knows yet."""
    with source.open(newline="", encoding="utf-8") as file, to.open("w", newline="", encoding="utf-8") as new:
        writer = csv.writer(new)
        for row, _ in zip(csv.reader(file), range(SOME + 1), strict=False):
            writer.writerow(row[:-1])


def _unused(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, … where earlier stories lie."""
    count, candidate = 1, path
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}-{count}")
    return candidate
