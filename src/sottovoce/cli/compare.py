"""`sottovoce compare`: a rehearsal of what a site has today beside what joining gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from sottovoce.cli.display import as_json, err, feature_progress
from sottovoce.cli.display import out as stdout
from sottovoce.cli.options import JSON, OWN_FEATURES, OWN_MODEL, SETTINGS
from sottovoce.cli.runs import plan_of

MOST_LINES = 30
"""Sites that the terminal lists; the report has them all."""


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    example = "compare dataset=hospitals/ epsilon=4 --out runs/c"
    app.command(epilog=f"Example: sottovoce {example}")(compare)


def compare(
    settings: list[str] = SETTINGS,
    out: Path = typer.Option(..., help="Folder for compare.json, compare.html, compare.svg and ledgers."),
    repeats: int = typer.Option(5, help="Splits of all records; more narrow the intervals."),
    model: str = OWN_MODEL,
    features: str = OWN_FEATURES,
    json: bool = JSON,
) -> None:
    """Rehearse: what a site has today beside what joining gives it; who gains, who loses, how sure that is.

    Rows: a constant, alone at home without noise, one shared model, the published model, and that model
    finished at home. Several splits of all records give intervals. For records of which nothing is
    published. Ledgers are its own, no model is written, and a choice made by
    looking at the accuracies is not covered by ε.
    """
    from sottovoce.report.comparison import clients_table, rows_table, summary, write_comparison
    from sottovoce.run.comparison import ROWS
    from sottovoce.run.comparison import compare as compare_rows

    words = list(settings or [])
    if all("=" in word for word in words) and not any(word.startswith("preset=") for word in words):
        words.append("preset=best")
    plan = plan_of(words, model, features)
    with ExitStack() as stack:
        found = compare_rows(
            plan,
            out,
            repeats=repeats,
            on_round=stack.enter_context(_rows_progress(max(repeats, 1) * len(ROWS) * plan.rounds)),
            on_features=stack.enter_context(feature_progress()),
        )
    path = write_comparison(out)
    if json:
        as_json(found)
        return
    stdout.print(f"[bold]{escape(summary(found))}[/]", soft_wrap=True, highlight=False)
    stdout.print(rows_table(found).terminal())
    if len(found["gain"]["per_client"]) <= MOST_LINES:
        stdout.print(clients_table(found).terminal())
    stdout.print(f"[dark_orange]•[/] {escape(found['warning'])}", soft_wrap=True, highlight=False)
    stdout.print(f"report: {escape(str(path))}", soft_wrap=True, highlight=False)


@contextmanager
def _rows_progress(rounds: int) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """A bar over the rounds of all rows, gone when they are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("[bold]rehearsing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, TextColumn("{task.description}"), console=err, transient=True) as bar:
        task = bar.add_task("", total=rounds)
        yield lambda row, line: bar.update(task, advance=1, description=row)
