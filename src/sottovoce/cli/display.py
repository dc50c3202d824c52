"""What all commands share: options and arguments, how a shell completes them, and what is shown: tables for
people, JSON for programs, progress on standard error.

The owner of records is asked before something is released, or before a limit is moved.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from sottovoce.errors import SottovoceError, visible
from sottovoce.plan import CHOICES, keys
from sottovoce.plan.presets import FOLDERS, TUNED
from sottovoce.report.table import count, data_size, label, number, percent

if TYPE_CHECKING:
    from sottovoce.privacy import Price


out = Console()
err = Console(stderr=True)


def problem(text: str) -> None:
    """An error on standard error, on one line."""
    line = escape(visible(" ".join(text.split())))
    err.print(f"[bold red]error:[/] {line}", soft_wrap=True, highlight=False)


def as_json(value: Mapping[str, Any] | list[Any]) -> None:
    """A value on standard output for another program."""
    typer.echo(json.dumps(value, indent=1))


def answer(value: Mapping[str, Any] | list[Any], text: str, *, json: bool) -> None:
    """A short answer: JSON for another program, else the text."""
    if json:
        as_json(value)
    else:
        out.print(escape(visible(text)), soft_wrap=True, highlight=False)


def note(text: str) -> None:
    """A line on standard error about what is going on."""
    err.print(escape(visible(text)), soft_wrap=True, highlight=False)


@contextmanager
def hidden(quiet: bool) -> Iterator[None]:
    """Standard output of our own shows nothing inside, if `quiet`."""
    before, out.quiet = out.quiet, quiet
    try:
        yield
    finally:
        out.quiet = before


def facts(title: str, rows: Mapping[str, str]) -> None:
    """Names and values, aligned."""
    from sottovoce.report.table import Table

    out.print(Table([], [list(row) for row in rows.items()], title).terminal())


def personalized(answer: Mapping[str, Any], *, json: bool) -> None:
    """What a future client's model cost."""
    if json:
        as_json(answer)
        return
    facts(
        f"Model written to {answer['model']}",
        {
            "ε of this context": f"{number(answer['epsilon'], 5)} at δ = {answer['delta']:g} "
            f"({answer['accounting']} accounting)",
            "ε spent by these records": f"{number(answer['epsilon_total'], 5)} of {answer['budget']:g}, "
            f"over all runs in {answer['ledger']}",
            "context": f"{answer['context']}, {data_size(answer['context_bytes'])}"
            + (", made of labels" if answer["uses_labels"] else ""),
            f"{label(answer['metric'])} on your other records": percent(answer["accuracy"], 2)
            + " (stays here)",
        },
    )
    for line in answer["uncovered"]:
        out.print(f"[dark_orange]•[/] {escape(visible(line))}", soft_wrap=True, highlight=False)
    if "home" in answer:
        finished(answer["home"])


def finished(told: Mapping[str, Any]) -> None:
    """What a finish gives, in words."""
    from sottovoce.finishing import Worth
    from sottovoce.report.table import Table

    rows = [
        [name, number(row["loss"], 3), percent(row[told["metric"]], 1)] for name, row in told["rows"].items()
    ]
    measured = f"on {count(told['held_out'], 'record')} that the run held out"
    if not told["held_out"]:
        measured = "by cross-validation"
    table = Table(
        ["", "log loss" if told["task"] != "number" else "loss", label(told["metric"])], rows, measured
    )
    out.print(table.terminal())
    if not told["held_out"]:
        out.print("The published model may have been trained on these records, which flatters it.")
    share, pull = told["chosen"]["share"], told["chosen"]["pull"]
    chosen = "the published model as it is" if pull is None else f"τ = {share:g}, λ = {pull:.3g}"
    out.print(f"chosen: {chosen}; {told['left_out']} records left out", highlight=False)
    out.print(str(Worth(**told["worth"])), highlight=False)
    out.print(f"home model, for this house alone: {escape(told['model'])}", soft_wrap=True, highlight=False)


@contextmanager
def share_progress(what: str) -> Iterator[Callable[[float], None]]:
    """A bar over the share that is done, gone at the end."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"[bold]{what}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def round_progress(rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar over rounds with rate and time left; yields the callback for each round's line.

    The bar appears with the first round, so that a run that is refused shows its error alone.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("[bold]training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("[green]{task.fields[accuracy]}"),
        console=err,
    )
    task = bar.add_task("rounds", total=rounds, rate="", accuracy="", start=False)

    def advance(line: dict[str, Any]) -> None:
        if not bar.live.is_started:
            bar.start()
            bar.start_task(task)
        speed = bar.tasks[0].speed
        bar.update(task, completed=line["round"], rate=f"{speed:.1f} rounds/s" if speed else "")
        if line["future"] is not None:
            bar.update(task, accuracy=f"future clients {line['future']:.1f} %")

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def feature_progress(doing: str = "features") -> Iterator[Callable[[int, int], None]]:
    """A progress bar over so many of all, such as records described; it appears only while it has work."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"[bold]{doing}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=err, transient=True)
    task = bar.add_task("records", total=None)

    def advance(done: int, of: int) -> None:
        if done < of and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=of)
        if done == of:
            bar.stop()

    try:
        yield advance
    finally:
        bar.stop()


def epsilon(value: float | None) -> str:
    """ε, or that there is none."""
    return "no privacy" if value is None else number(value, 4, zeros=True)


@contextmanager
def progress_over(doing: str) -> Iterator[Callable[[str, int], None]]:
    """Shows a bar over clients, gone when all are done; yields a callback for each name and their number."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn(f"[bold]{doing}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, TextColumn("{task.description}"), console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        done = 0

        def advance(client: str, clients: int) -> None:
            nonlocal done
            bar.update(task, completed=done, total=clients, description=escape(visible(client)))
            done += 1

        yield advance


def consent(*, yes: bool) -> Callable[[Price], None]:
    """Shows a price and asks; raises unless the owner agrees."""

    def agree(price: Price) -> None:
        err.print(str(price), soft_wrap=True, highlight=False)
        confirm("release it?", yes=yes)

    return agree


def attended() -> bool:
    """Returns whether somebody is here to ask."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Asks on the terminal; where there is none, `--yes` must have been said."""
    if yes:
        return
    if not attended():
        raise SottovoceError(
            "nobody is here to ask: repeat the command with --yes to agree; nothing was done"
        )
    if not typer.confirm(question, err=True):
        raise SottovoceError("declined: nothing was done")


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
