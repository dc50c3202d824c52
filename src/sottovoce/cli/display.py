"""What the command line shows: tables for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

out = Console()
err = Console(stderr=True)


def problem(text: str) -> None:
    """An error on standard error, on one line."""
    err.print(f"[bold red]error:[/] {' '.join(text.split())}", soft_wrap=True, highlight=False, markup=True)


def as_json(value: Mapping[str, Any] | list[Any]) -> None:
    """A value on standard output for another program."""
    typer.echo(json.dumps(value, indent=1))


def table(title: str, rows: Mapping[str, str]) -> None:
    """Names and values, aligned."""
    grid = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2)
    )
    for name, value in rows.items():
        grid.add_row(f"[dim]{name}[/]", value)
    out.print(grid)


@contextmanager
def round_progress(rounds: int, done: int = 0) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar over rounds with rate and time left; yields the callback for each round's line."""
    bar = Progress(
        TextColumn("[bold]training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("[green]{task.fields[accuracy]}"),
        console=err,
    )
    with bar:
        task = bar.add_task("rounds", total=rounds, completed=done, rate="", accuracy="")

        def advance(line: dict[str, Any]) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=line["round"], rate=f"{speed:.1f} rounds/s" if speed else "")
            if line["future"] is not None:
                bar.update(task, accuracy=f"future clients {line['future']:.1f} %")

        yield advance


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
