"""The commands that look at a run while it is running, or afterwards: status, watch."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sottovoce.cli import options
from sottovoce.cli.display import answer, as_json, facts, note, problem
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import private_folder
from sottovoce.report.table import data_size, duration, number, percent

if TYPE_CHECKING:
    from sottovoce.report.status import Status

RUN = typer.Argument(
    help="Directory of a run, of a federation's server, or of one of its clients.", readable=False
)
"""Whether it can be read is seen when it is: in one line, or in the state of the object."""


KNOWN = ("finished", "failed", "running", "waiting")


def status(run: Path = RUN, json: bool = options.JSON) -> None:
    """Say what a run, a federation or a client of one is doing, by its directory.

    Exit code: 0 finished, 1 failed (a killed run too), 2 unknown, 3 running, 4 waiting. Nothing is disturbed:
    the command only reads.
    """
    from sottovoce.report.look import look

    found = look(run)
    if json:
        as_json(_told(found))
    elif found.state == "unknown":
        problem(found.why)
    elif found.role == "client":
        _show_client(found)
    else:
        _show(found)
    raise typer.Exit(found.exit_code)


def watch(
    run: Path = RUN,
    port: int = typer.Option(8445, min=0, max=65535, help="Port to listen on, on this machine; 0: any free."),
    behind_proxy: bool = typer.Option(
        False, help="Also answer nginx (deploy/nginx.conf, port 8446), with tokens too."
    ),
    new_token: str = typer.Option(None, metavar="NAME", help="Make a token for somebody, show it, and stop."),
    revoke: str = typer.Option(None, metavar="NAME", help="Revoke somebody's token, and stop."),
    wait: bool = typer.Option(False, help="Wait until there is something to watch."),
    json: bool = options.JSON,
) -> None:
    """Show a run, a federation or a client of one live in a browser on this machine. Ctrl-C ends it.

    The link that is shown opens the page, until it ends; other accounts of the machine see nothing. The page
    changes by itself, needs nothing from elsewhere, and disturbs nothing. /health says whether all is well,
    and /metrics is for Prometheus, with a token.
    """
    try:
        from sottovoce.machine import tokens
        from sottovoce.report.live import TOKENS_FILE, open_watch
    except ModuleNotFoundError as error:
        raise SottovoceError(f"{error.name} is missing: pip install 'sottovoce[serve]'") from None
    if new_token is not None:
        private_folder(run)
        token = tokens.new_token(run, new_token, TOKENS_FILE)
        text = f"{token}\n(shown once; it is the password of {new_token} at the page)"
        answer({"name": new_token, "token": token}, text, json=json)
        return
    if revoke is not None:
        tokens.revoke_token(run, revoke, TOKENS_FILE)
        answer({"name": revoke, "revoked": True}, f"the token of {revoke} is revoked", json=json)
        return
    with suppress(KeyboardInterrupt):
        if wait:
            wait_for(run)
        server, listening, token = open_watch(run, port, behind_proxy=behind_proxy)
        here = "{}:{}".format(*listening.getsockname())
        text = f"http://owner:{token}@{here} shows {run}, to you alone; Ctrl-C ends it"
        answer({"address": f"http://{here}", "token": token}, text, json=json)
        with listening:
            server.run(sockets=[listening])


def wait_for(run: Path, *states: str) -> None:
    """Waits until a run is in one of the states, by default in any that is known; says so once a minute."""
    from sottovoce.report.look import Minutely, look

    minutely = Minutely(note)
    while (found := look(run)).state not in (states or KNOWN):
        minutely.say(f"waiting: {found.why}")
        time.sleep(1.0)


def _told(found: Status) -> dict[str, Any]:
    """What scripts are told: without a line for each round, and how long ago in place of when."""
    told = asdict(found)
    for name in ("history", "since", "ledger", "account", "cost"):
        del told[name]
    what = "contact" if found.role == "client" else "progress"
    return {**told, f"seconds_since_{what}": found.seconds_since}


def _show_client(found: Status) -> None:
    rows = {"state": f"{found.state}: {found.why}"}
    if found.client is not None:
        since = found.seconds_since
        rows["client, run"] = f"{found.client}, {found.run or '–'}"
        rows["privacy"] = f"{found.headroom}" + (f", at δ = {found.delta:g}" if found.delta else "")
        rows["restores"] = found.restores
        rows["rounds"] = f"released in {found.gradients}; the server was at {found.round} of {found.rounds}"
        rows["last contact"] = "–" if since is None else f"{duration(round(since))} ago"
        rows["messages"] = f"{found.answers} answered, {found.refusals} refused"
    _show_errors(found, rows)
    facts(found.directory, rows)


def _show(found: Status) -> None:
    again = f" (sottovoce train --resume --out {shlex.quote(found.directory)})"
    if found.role == "server":
        again = " (sottovoce federate --app APP --on NAME)"
    rows = {
        "state": f"{found.state}: {found.why}{again if found.state == 'failed' else ''}",
        "rounds": f"{found.round} of {number(found.rounds)}, {duration(found.seconds)}",
        "to the server, to clients": f"{data_size(found.bytes_up)}, {data_size(found.bytes_down)}",
    }
    if found.seconds_left is not None:
        rows["time left"] = f"about {duration(found.seconds_left)}"
    if found.seconds_since is not None and found.state in ("running", "waiting"):
        rows["last progress"] = f"{duration(found.seconds_since)} ago"
    spent = {name: value for name, value in found.epsilon.items() if name not in ("target", "spent")}
    if found.epsilon.get("target") is not None:
        kinds = f" ({', '.join(f'{name} {number(value, 3)}' for name, value in spent.items())})"
        rows["ε spent in this run"] = (
            f"{number(found.epsilon.get('spent'), 3)} of {number(found.epsilon['target'], 3)} at δ = "
            f"{found.delta:g}{kinds if len(spent) > 1 else ''}, {found.noise_words}"
        )
    if found.engine:
        here = f"{found.counted('enrolled')} enrolled, {found.counted('connected')} connected"
        rows["phase"] = f"{found.phase}, of {', '.join(found.phases)}"
        rows["clients"] = f"{here} of {found.participants}; {found.refusals} refusals"
    _show_errors(found, rows)
    if found.accuracy:
        rows[f"accuracy after round {found.accuracy['round']}"] = (
            f"participants {percent(found.accuracy['seen'])}, future clients "
            f"{percent(found.accuracy['future'])}"
        )
    facts(found.directory, rows)


def _show_errors(found: Status, rows: dict[str, str]) -> None:
    if found.errors:
        rows["last errors"] = "\n".join(error["text"] for error in found.errors[-3:])
