"""The commands that look at a run while it is running, or afterwards: status, watch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from sottovoce.cli.display import as_json, facts, out, problem
from sottovoce.cli.options import JSON
from sottovoce.errors import SottovoceError, visible
from sottovoce.report.numbers import data_size, duration, number, percent

if TYPE_CHECKING:
    from sottovoce.run.status import Status

RUN = typer.Argument(help="Directory of a run.")


def register(app: typer.Typer) -> None:
    """Adds these commands to the application."""
    app.command(epilog="Example: sottovoce status runs/mnist --json")(status)
    app.command(epilog="Example: sottovoce watch runs/mnist")(watch)


def status(run: Path = RUN, json: bool = JSON) -> None:
    """Say what a run is doing. Exit code: 0 finished, 1 failed, 2 unknown, 3 running, 4 waiting.

    A run that was killed has failed. Nothing is disturbed: the command only reads.
    """
    from sottovoce.run.status import read_status

    found = read_status(run)
    if json:
        as_json(found.fields(history=False))
    elif found.state == "unknown":
        problem(found.why)
    else:
        _show(found)
    raise typer.Exit(found.exit_code)


def watch(
    run: Path = RUN,
    port: int = typer.Option(8445, min=0, max=65535, help="Port to listen on, on this machine; 0: any free."),
) -> None:
    """Show a run live in a browser on this machine: rounds, time left, ε spent, accuracies. Ctrl-C ends it.

    The page changes by itself. It needs nothing from elsewhere, and disturbs nothing.
    """
    try:
        from sottovoce.watch import open_watch
    except ModuleNotFoundError as error:
        raise SottovoceError(f"{error.name} is missing: pip install 'sottovoce[serve]'") from None
    server, listening = open_watch(run, port)
    address = f"http://{listening.getsockname()[0]}:{listening.getsockname()[1]}"
    out.print(f"{address} shows {escape(visible(str(run)))}; Ctrl-C ends it", soft_wrap=True, highlight=False)
    with suppress(KeyboardInterrupt), listening:
        server.run(sockets=[listening])


def _show(found: Status) -> None:
    rows = {
        "state": f"{found.state}: {found.why}",
        "rounds": f"{found.round} of {found.rounds}, {duration(found.seconds)}",
        "to the server, to clients": f"{data_size(found.bytes_up)}, {data_size(found.bytes_down)}",
    }
    if found.seconds_left is not None:
        rows["time left"] = f"about {duration(found.seconds_left)}"
    if found.seconds_since_progress is not None and found.state == "running":
        rows["last progress"] = f"{duration(found.seconds_since_progress)} ago"
    spent = {name: value for name, value in found.epsilon.items() if name not in ("target", "spent")}
    if found.epsilon.get("target") is not None:
        kinds = f" ({', '.join(f'{name} {number(value, 3)}' for name, value in spent.items())})"
        rows["ε spent in this run"] = (
            f"{number(found.epsilon.get('spent'), 3)} of {number(found.epsilon['target'], 3)} at δ = "
            f"{found.delta:g}{kinds if len(spent) > 1 else ''}, {found.noise_words}"
        )
    if found.accuracy:
        rows[f"accuracy after round {found.accuracy['round']}"] = (
            f"participants {percent(found.accuracy['seen'])}, future clients "
            f"{percent(found.accuracy['future'])}"
        )
    facts(found.directory, rows)
