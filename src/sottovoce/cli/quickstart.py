"""`sottovoce quickstart`: the stories of a federation on the data that ship with the package."""

from __future__ import annotations

import csv
import itertools
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path

import typer

from sottovoce.cli import options
from sottovoce.cli.display import as_json, say
from sottovoce.cli.display import out as shown
from sottovoce.errors import SottovoceError, nearest

STORIES = ("pictures", "tables")
SETTINGS = ["epsilon=4", "channel=direct"]
"""A message of 76 numbers is small uncoded, and a story should not wait until a coder is compiled."""
NEWCOMER = "longbeach"
SOME, LABELLED = 20, 40
"""Records of the file that is predicted, and of those that the newcomer knows a diagnosis of."""


def quickstart(
    program: typer.Context,
    story: str = typer.Argument(
        "pictures", help="pictures, or tables.", autocompletion=lambda: list(STORIES)
    ),
    out: Path = typer.Option(None, help="Directory of what comes out; by default one below runs/."),
    json: bool = options.JSON,
) -> None:
    """Train a private federation on shipped data, in about a minute, and write its report.

    pictures: digits at 20 clients, one run. tables: four real hospitals, from check over compare, train and
    models to predictions, and one that joins later without labels, then with a few; every command is shown.
    """
    if story not in STORIES:
        raise SottovoceError(f"no quickstart '{story}': {nearest(story, STORIES)}")
    name = "quickstart" if story == "pictures" else "quickstart-tables"
    folder = _unused(Path("runs") / name) if out is None else out
    if story == "pictures":
        _invoke(program, ["train", "preset=best", "--out", str(folder), *(["--json"] if json else [])])
    else:
        _tables(program, folder, json=json)


def _tables(program: typer.Context, folder: Path, *, json: bool) -> None:
    """Runs what an engineer of a network of hospitals would type, on a copy of the shipped ones."""
    from sottovoce import data

    sites, new, later = folder / "hospitals", folder / "new.csv", folder / f"{NEWCOMER}.csv"
    if sites.exists():
        raise SottovoceError(f"{folder} already holds a story: choose another --out")
    data.copy_shipped("heart", sites)
    shutil.move(sites / later.name, folder / "later.csv")  # it joins when all is done
    _records(sites / "cleveland.csv", new, SOME)
    _records(folder / "later.csv", later)
    _records(folder / "later.csv", folder / "labelled.csv", LABELLED, target=True)
    run, models, joined = folder / "run", folder / "models", folder / "models" / f"{NEWCOMER}.safetensors"
    home = folder / f"{NEWCOMER}.home.safetensors"
    cleveland = models / "cleveland.safetensors"
    rehearsed = ["dataset=heart", *SETTINGS, f"future_clients={NEWCOMER}", "--out", str(folder / "compare")]
    commands = [
        ["check", str(sites)],
        ["compare", *rehearsed],
        ["train", f"dataset={sites}", *SETTINGS, "--out", str(run)],
        ["models", str(run), "--out", str(models)],
        ["predict", str(cleveland), "--data", str(new), "--out", str(folder / "predictions.csv")],
        ["personalize", str(run), "--data", str(later), "--out", str(joined), "--yes"],
        ["finish", str(joined), "--data", str(folder / "labelled.csv"), "--out", str(home)],
        ["ledger", "show", str(sites / "ledger.sqlite")],
    ]
    for words in commands:
        if not json:
            say((f"\n$ sottovoce {shlex.join(words)}", "bold"))
        _invoke(program, words, quiet=json)
    if json:
        as_json({"folder": str(folder), "commands": commands})


def _invoke(program: typer.Context, words: list[str], *, quiet: bool = False) -> None:
    """Runs a command of this program as if it had been typed."""
    with shown.capture() if quiet else nullcontext():
        ended = program.find_root().command.main(words, "sottovoce", standalone_mode=False)
    if ended:
        raise SottovoceError(f"'sottovoce {shlex.join(words)}' ended with {ended}")


def _records(source: Path, to: Path, most: int | None = None, *, target: bool = False) -> None:
    """The first records of a site, or all; without `target`, as before anybody knows a diagnosis."""
    with source.open(newline="", encoding="utf-8") as file, to.open("w", newline="", encoding="utf-8") as new:
        rows = csv.reader(file)
        lines = rows if most is None else itertools.islice(rows, most + 1)
        csv.writer(new).writerows(row if target else row[:-1] for row in lines)


def _unused(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, … where earlier stories lie."""
    further = (path.with_name(f"{path.name}-{count}") for count in itertools.count(2))
    return next(each for each in itertools.chain([path], further) if not each.exists())
