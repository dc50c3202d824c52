"""What the command line shows: tables for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

out = Console()
err = Console(stderr=True)


def problem(text: str) -> None:
    """An error on standard error, on one line."""
    line = escape(" ".join(text.split()))
    err.print(f"[bold red]error:[/] {line}", soft_wrap=True, highlight=False)


def as_json(value: Mapping[str, Any] | list[Any]) -> None:
    """A value on standard output for another program."""
    typer.echo(json.dumps(value, indent=1))


def table(title: str, rows: Mapping[str, str]) -> None:
    """Names and values, aligned."""
    grid = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        show_header=False,
        box=None,
        padding=(0, 2),
    )
    for name, value in rows.items():
        grid.add_row(f"[dim]{name}[/]", escape(value))
    out.print(grid)


def personalized(answer: Mapping[str, Any]) -> None:
    """What a future client's model cost."""
    table(
        f"Model written to {answer['model']}",
        {
            "ε of this context": f"{answer['epsilon']:.4f} at δ = {answer['delta']:g} "
            f"({answer['accounting']} accounting)",
            "ε spent by these records": f"{answer['epsilon_total']:.4f}, over all runs in {answer['ledger']}",
            "context": f"{answer['context']}, {size(answer['context_bytes'])}"
            + (", made of labels" if answer["uses_labels"] else ""),
            "accuracy on your other records": percent(answer["accuracy"]) + " (stays here)",
        },
    )


@contextmanager
def round_progress(rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar over rounds with rate and time left; yields the callback for each round's line.

    The bar appears with the first round, so that a run that is refused shows its error alone.
    """
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


def size(count: float) -> str:
    """Bytes in the decimal units of the paper: 65.55 MB is 65,550,000 bytes.

    >>> size(65_552_000), size(512)
    ('65.55 MB', '512 B')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def epsilon(value: float | None) -> str:
    return "no privacy" if value is None else f"{value:.3f}"


def duration(seconds: float) -> str:
    """
    >>> duration(75), duration(3.2)
    ('1 min 15 s', '3.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
