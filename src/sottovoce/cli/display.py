"""What commands show: tables for people, JSON for programs, progress on standard error.

The owner of records is asked before something is released, or before a limit is moved.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from sottovoce.errors import SottovoceError, visible
from sottovoce.report.table import Table, count, data_size, label, number, percent

if TYPE_CHECKING:
    from sottovoce.privacy.terms import Price


out = Console()
err = Console(stderr=True)
MOST_LINES = 20

Advance = Callable[..., None]
"""What moves a bar: how many are done, of how many if that is known, and a word about them."""


def say(*parts: str | tuple[str, str], to: Console = out) -> None:
    """Prints texts, of which some have a (text, style); nothing in them is markup, or moves a cursor."""
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    to.print(Text.assemble(*((visible(text), style) for text, style in styled)), soft_wrap=True)


def note(text: str) -> None:
    """Lines on standard error about what is going on."""
    say(text, to=err)


def problem(text: str) -> None:
    """An error on standard error, on one line."""
    say(("error: ", "bold red"), " ".join(text.split()), to=err)


def bullet(text: str, style: str = "dark_orange", *, to: Console = out) -> None:
    """One of several things that should be read."""
    say(("• ", style), text, to=to)


def bullets(texts: Sequence[str], style: str) -> None:
    """Up to `MOST_LINES` of them."""
    for text in texts[:MOST_LINES]:
        bullet(text, style)
    if len(texts) > MOST_LINES:
        bullet(f"and {len(texts) - MOST_LINES} more: --json lists all", style)


def as_json(value: Mapping[str, Any] | list[Any]) -> None:
    """A value on standard output for another program."""
    typer.echo(json.dumps(value, indent=1))


def answer(value: Mapping[str, Any] | list[Any], text: str, *, json: bool) -> None:
    """A short answer: JSON for another program, else the text."""
    if json:
        as_json(value)
    else:
        say(text)


def show_table(table: Table) -> None:
    """A table on standard output."""
    out.print(table.terminal())


def facts(title: str, rows: Mapping[str, str]) -> None:
    """Names and values, aligned."""
    show_table(Table([], [list(row) for row in rows.items()], title))


def personalized(answer: Mapping[str, Any], *, json: bool) -> None:
    """Prints what a future client's model cost."""
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
        bullet(line)
    if "home" in answer:
        finished(answer["home"], newcomer=True)


@contextmanager
def released_anyway(*, json: bool) -> Iterator[None]:
    """Tells what was released and written also where finishing it at home fails afterwards."""
    from sottovoce.federation.onboarding.client import NotFinished

    try:
        yield
    except NotFinished as refused:
        personalized(refused.found, json=json)
        raise


def finished(told: Mapping[str, Any], *, newcomer: bool = False) -> None:
    """Prints what a finish gives, in words; a `newcomer` has not trained."""
    from sottovoce.personal.finishing import Worth

    rows = [
        [name, number(row["loss"], 3, zeros=True), percent(row[told["metric"]])]
        for name, row in told["rows"].items()
    ]
    measured = f"on {count(told['held_out'], 'record')} set aside"
    if not told["held_out"]:
        measured = "by cross-validation"
    loss = "log loss" if told["task"] != "number" else "loss"
    show_table(Table(["", loss, label(told["metric"])], rows, measured))
    if told["held_out"]:
        say(
            "The run held these out if it trained on this file as it is now. Of another file the published "
            "model may have seen some, which flatters it and finished."
        )
    elif newcomer:
        say("The finished model was chosen by these records, which flatters it a little.")
    else:
        say("The published model may have been trained on these records, which flatters it and finished.")
    share, pull = told["chosen"]["share"], told["chosen"]["pull"]
    chosen = "the published model as it is" if pull is None else f"τ = {share:g}, λ = {pull:.3g}"
    say(f"chosen: {chosen}")
    if told["left_out"]:
        bullet(f"{count(told['left_out'], 'record')} left out: no target that the model knows, or not finite")
    say(str(Worth(**told["worth"])))
    say(f"home model, for this house alone: {told['model']}")


@contextmanager
def progress(doing: str, *, keep: bool = False, rate: str = "") -> Iterator[Advance]:
    """A bar on standard error, gone when all is done unless it is to `keep`; yields what moves it.

    With `rate`, such as records, it says how many of them a second.
    It appears only while there is work, so that what is refused shows its error alone.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"[bold]{doing}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), console=err, transient=not keep)
    task = bar.add_task("", total=None)
    begun: list[tuple[float, int]] = []

    def advance(done: int, of: int | None = None, about: str = "") -> None:
        if not begun:
            begun.append((time.monotonic(), done))
        seconds, here = time.monotonic() - begun[0][0], done - begun[0][1]
        if rate and seconds > 1 and here:
            about = f"{here / seconds:.1f} {rate}/s"
        bar.update(task, completed=done, total=of, description=escape(visible(about)))
        if keep or done != of:
            bar.start()
        else:
            stop()

    def stop() -> None:
        if bar.live.is_started:  # else it would end a line that it has not begun
            bar.stop()

    try:
        yield advance
    finally:
        stop()


class RoundProgress:
    """Moves a bar as the callback of a run, whose records may decide how many rounds its plan has."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._accuracy = advance, ""
        self._rounds: int | None = None

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        self._rounds = plan["rounds"]

    def on_round(self, line: Mapping[str, Any]) -> None:
        if line["future"] is not None:
            self._accuracy = f", future clients {line['future']:.1f} %"
        rate = 1 / max(line["seconds"], 1e-6)
        self._advance(line["round"], self._rounds, f"{rate:.1f} rounds/s{self._accuracy}")


@contextmanager
def round_progress() -> Iterator[RoundProgress]:
    """A bar over rounds with their rate and the last accuracy; yields the callback that moves it."""
    with progress("training", keep=True) as advance:
        yield RoundProgress(advance)


@contextmanager
def client_progress(doing: str) -> Iterator[Callable[[str, int], None]]:
    """A bar over clients; yields a callback for each name, when it begins, and their number."""
    begun = itertools.count()
    with progress(doing) as advance:
        yield lambda client, clients: advance(next(begun), clients, client)


def epsilon(value: float | None) -> str:
    """ε, or that there is none."""
    return "no privacy" if value is None else number(value, 4, zeros=True)


def consent(*, yes: bool) -> Callable[[Price], None]:
    """Shows a price and asks; raises unless the owner agrees."""

    def agree(price: Price) -> None:
        note(str(price))
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
