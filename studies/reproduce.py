"""`sottovoce reproduce`: the paper's tables and figures on this machine, ours beside the published values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sottovoce.cli.display import as_json, err, out
from sottovoce.cli.options import DEVICE, JSON, VALUES
from sottovoce.errors import SottovoceError
from studies.cells import (
    EXPERIMENTS,
    QUICK_ROUNDS,
    QUICK_SEEDS,
    SEEDS,
    Cell,
    open_cells,
    read_table,
)

if TYPE_CHECKING:
    from studies.execution import Outcome, Resources
    from studies.grid import CellRun


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command(epilog="Example: sottovoce reproduce main-table --quick")(reproduce)


def reproduce(
    experiment: str = typer.Argument(
        help=f"{', '.join(EXPERIMENTS)}, or all.", autocompletion=lambda: [*EXPERIMENTS, "all"]
    ),
    dataset: list[str] = typer.Option(
        [],
        help="mnist, cifar10, …; may be repeated. Default: the paper's.",
        autocompletion=lambda: list(VALUES["dataset"]),
    ),
    seeds: str = typer.Option("", help="Seeds, as 41-45 or 41,43. Default: 41-45; with --quick 41."),
    epsilon: list[float] = typer.Option([], help="ε; may be repeated. Default: the paper's."),
    device: str = DEVICE,
    jobs: int = typer.Option(
        0,
        min=0,
        help="Processes; 0: one per core. On a GPU run nvidia-cuda-mps-control -d before: they share it.",
    ),
    cluster: str = typer.Option(
        "", metavar="ADDRESS", help="Work on a Ray cluster; auto: the one this machine belongs to."
    ),
    batch: int = typer.Option(0, min=0, help="Runs of one shape in each process; 0: 1 on a CPU, 5 on a GPU."),
    law: bool = typer.Option(
        False, "--law", help="Draw releases by their decoded law on the device: fast, without messages."
    ),
    quick: bool = typer.Option(
        False, "--quick", help=f"{QUICK_ROUNDS} rounds, one seed, ε = 16: minutes on a laptop."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Continue unfinished runs instead of restarting them."
    ),
    folder: Path = typer.Option(Path("runs/reproduce"), "--out", help="Folder of runs, index and report."),
    json: bool = JSON,
) -> None:
    """Regenerate a table or figure of the paper, ours beside the published values.

    EXPERIMENT is main-table, frontier, heterogeneity, geometry, codecs, dimension, or all. Finished runs are
    reused.
    """
    from studies.execution import Resources, pending
    from studies.grid import runs_of
    from studies.reproduction import write_reproduction

    names = EXPERIMENTS if experiment == "all" else (experiment,)
    cells = [
        cell for name in names for cell in open_cells(name, datasets=dataset, epsilons=epsilon, quick=quick)
    ]
    chosen = _seeds(seeds) if seeds else list(QUICK_SEEDS if quick else SEEDS)
    runs = runs_of(cells, chosen)
    todo = pending(folder, runs)
    resources = Resources(device=device, jobs=jobs, batch=batch, law=law, cluster=cluster)
    outcome = _carry_out(folder, runs, todo, resources, resume=resume)
    failure = ""
    if outcome.problems:
        failure = f"{len(todo) - outcome.finished} of {len(todo)} runs failed: {outcome.problems[0]}"
    index = _index(folder, cells, chosen, runs, quick)
    ours = [entry for entry in index if entry["id"] in {cell.id for cell in cells}]
    if not ours:
        raise SottovoceError(failure)
    page = write_reproduction(index, folder / f"reproduction{'-quick' if quick else ''}.html")
    if json:
        as_json({"quick": quick, "problems": outcome.problems, "report": str(page), "cells": ours})
    else:
        _show(ours)
        out.print(f"\nreport: {page}", soft_wrap=True)
    if failure:
        raise SottovoceError(failure)


def _carry_out(
    folder: Path, runs: Sequence[CellRun], todo: Sequence[CellRun], resources: Resources, *, resume: bool
) -> Outcome:
    from studies.execution import run_grid

    ready = len(runs) - len(todo)
    err.print(f"{len(runs)} runs, {ready} of them finished before; seeded simulations, which protect nobody")
    with _progress(todo) as (on_rounds, on_run):
        try:
            return run_grid(folder, todo, resources, resume=resume, on_rounds=on_rounds, on_run=on_run)
        except KeyboardInterrupt:
            raise SottovoceError(
                "interrupted; nothing finished is lost: repeat the command with --resume to continue"
            ) from None


def _index(
    folder: Path, cells: Sequence[Cell], seeds: Sequence[int], runs: Sequence[CellRun], quick: bool
) -> list[dict[str, Any]]:
    from studies.bench.channel import milliseconds_per_event
    from studies.index import add_to_index, build_index
    from studies.summary import collect

    timed = {cell.settings.get("channel", "direct") for cell in cells if cell.experiment == "codecs"}
    new = build_index(cells, seeds, collect(folder, runs), milliseconds_per_event(sorted(timed)))
    return add_to_index(folder / f"index{'-quick' if quick else ''}.json", new)


def _show(index: Sequence[dict[str, Any]]) -> None:
    """Prints every table of an index, ours before the published value and the difference in points."""
    from studies.tables import accuracy, by_dataset, details

    for experiment in EXPERIMENTS:
        entries = [entry for entry in index if entry["experiment"] == experiment]
        if not entries:
            continue
        quick = f" (quick: {entries[0]['rounds']} rounds, the published runs had 500)"
        title = read_table(experiment)["title"] + (quick if entries[0]["quick"] else "")
        out.print(f"\n[bold]{title}[/]; percent, ours (published, difference in points)", highlight=False)
        for table in [t for group in by_dataset(entries) for t in accuracy(group)] + details(
            experiment, entries
        ):
            out.print(table.terminal())


@contextmanager
def _progress(todo: Sequence[CellRun]) -> Iterator[tuple[Callable[[int], None], Callable[[CellRun], None]]]:
    """A bar over the rounds of all runs, with runs done and time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("[bold]runs {task.fields[runs]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[last]}"),
        console=err,
    )
    done = 0
    with bar:
        total = sum(run.plan.rounds for run in todo)
        task = bar.add_task("grid", total=total, runs=f"0/{len(todo)}", last="")

        def on_run(run: CellRun) -> None:
            nonlocal done
            done += 1
            last = f"{run.cell.dataset}, {run.cell.label}, seed {run.plan.seed}"
            bar.update(task, runs=f"{done}/{len(todo)}", last=last)

        yield (lambda rounds: bar.advance(task, rounds)), on_run


def _seeds(text: str) -> list[int]:
    """
    >>> _seeds("41-43"), _seeds("41,45")
    ([41, 42, 43], [41, 45])
    """
    try:
        found: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        raise SottovoceError(f"--seeds {text} is not understood: give 41-45 or 41,43") from None
    if not found:
        raise SottovoceError(f"--seeds {text} names no seed: give 41-45 or 41,43")
    return found
