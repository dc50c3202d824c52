"""A live page for a run, on this machine only: what `run.status` says, as it happens.

The page is one document without outside resources. Its script hears server-sent events, each with the parts
that have changed, and puts them in their place; a chart that has not changed is left alone. Requests under
another name than this machine's are refused, so that no page of the web can ask. What is shown is a result of
a simulation or a total over clients, and nothing is written.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route

from sottovoce.errors import SottovoceError
from sottovoce.report import page
from sottovoce.report.chart import Chart, Format, linear
from sottovoce.report.figures import Series, line_of, trend
from sottovoce.report.numbers import data_size, duration, equals, number, percent
from sottovoce.report.run_figures import percent_tick
from sottovoce.report.table import Html, tag
from sottovoce.run.status import Status, read_status

HOST = "127.0.0.1"
EVERY_SECONDS = 1.0
NOTHING_KEPT = {"Cache-Control": "no-store"}


def parts(found: Status) -> dict[str, str]:
    """The parts of the page that change, by the id of the element that holds each; the title is no markup."""
    return {
        "title": _title(found),
        "state": tag("p", tag("strong", found.state), f": {found.why}"),
        "figures": page.cards(*_cards(found)) if found.rounds else Html(),
        "charts": page.grid(*_charts(found)) if found.rounds else Html(),
    }


def document(found: Status) -> Html:
    """The whole page as it is now; its script replaces the parts."""
    shown = parts(found)
    facts = [
        found.dataset or "",
        found.method or "",
        f"{number(found.participants)} participants",
        found.noise_words,
    ]
    if found.epsilon.get("target") is None:
        facts.append("without privacy")
    else:
        facts.append(f"{equals('ε', found.epsilon['target'])} at {equals('δ', found.delta)}")
    lost = "The connection is lost; what you see is what was last known. Trying again."
    return page.page(
        _title(found),
        page.header(Path(found.directory).name, facts, "Sottovoce, live"),
        tag("p", lost, id="lost", class_="alert", role="alert", hidden=True),
        Html() if not found.seeded else tag("p", "A seeded simulation protects nobody.", class_="alert"),
        tag("div", shown["state"], id="state", class_="state", role="status"),
        *(tag("div", shown[part], id=part) for part in ("figures", "charts")),
        live=True,
    )


def _title(found: Status) -> str:
    rounds = f" {found.round} of {found.rounds}" if found.rounds else ""
    return f"{found.state}{rounds} · {Path(found.directory).name}"


def _cards(found: Status) -> list[Html]:
    left = "" if found.seconds_left is None else f"about {duration(found.seconds_left)} left"
    silent = found.seconds_since_progress
    age = "" if silent is None or found.state != "running" else f"last progress {duration(round(silent))} ago"
    bar = tag("progress", value=found.round, max=found.rounds, aria_label="rounds")
    kinds = [
        f"{kind} alone {number(value)}"
        for kind, value in found.epsilon.items()
        if kind not in ("target", "spent")
    ]
    target, spent = found.epsilon.get("target"), found.epsilon.get("spent")
    privacy = (
        page.card("epsilon", "Privacy spent", "no limit", None, "no noise is added")
        if target is None
        else page.card(
            "epsilon",
            "Privacy spent",
            equals("ε", spent),
            spent,
            f"of {number(target)} at {equals('δ', found.delta)}, by who spent most in this run",
            ", ".join(kinds) if len(kinds) > 1 else "",
        )
    )
    judged = found.accuracy
    after = f"after round {judged['round']}" if judged else "not evaluated yet"
    future = judged.get("future")
    sent = page.card(
        "bytes",
        "To the server",
        data_size(found.bytes_up),
        found.bytes_up,
        f"{data_size(found.bytes_down)} to clients, all together",
    )
    return [
        page.card("round", "Rounds", f"{found.round} of {found.rounds}", found.round, bar, left, age),
        privacy,
        page.card(
            "seen",
            "On held-out records",
            percent(judged.get("seen")),
            judged.get("seen"),
            after,
            f"future clients {percent(future)}" if future is not None else "",
        ),
        sent,
    ]


def _charts(found: Status) -> list[Chart]:
    lines = found.history
    scores = [
        line_of("Participants", "blue", ((line["round"], line["seen"]) for line in lines)),
        line_of("Future clients", "orange", ((line["round"], line["future"]) for line in lines)),
    ]
    times = [line_of("Time", "gray", ((line["round"], line["seconds"]) for line in lines), dots=False)]
    charts = [_chart("Time of each round", "Evaluation is not counted.", times, duration)]
    if any(series.x for series in scores):
        note = "Mean over clients, where it was evaluated."
        charts.insert(0, _chart("On held-out records", note, scores, percent_tick))
    return charts


def _chart(title: str, note: str, series: list[Series], show: Format) -> Chart:
    values = [y for line in series for y in line.y]
    return trend(
        title, note, series, x_name="round", y=linear(values, zero=True) if values else None, show=show
    )


def create_watch(run: str | Path, ended: Callable[[], bool]) -> Starlette:
    """The web application: the page at /, and its events until `ended` says that the server is to end."""

    async def show(_: Request) -> HTMLResponse:
        found = await asyncio.to_thread(read_status, run)
        return HTMLResponse(document(found), headers=NOTHING_KEPT)

    async def changes() -> AsyncIterator[str]:
        known: dict[str, str] = {}
        while not ended():
            shown = parts(await asyncio.to_thread(read_status, run))
            new = {part: text for part, text in shown.items() if known.get(part) != text}
            known = shown
            yield f"data: {json.dumps(new)}\n\n"  # also where nothing is new: so both ends know of each other
            await asyncio.sleep(EVERY_SECONDS)

    async def events(_: Request) -> StreamingResponse:
        return StreamingResponse(changes(), media_type="text/event-stream", headers=NOTHING_KEPT)

    allowed = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST], www_redirect=False)
    return Starlette(routes=[Route("/", show), Route("/events", events)], middleware=[allowed])


def open_watch(run: str | Path, port: int) -> tuple[uvicorn.Server, socket.socket]:
    """A server for the live page of a run and the socket that it is to listen on; port 0: any free one."""
    found = read_status(run)
    if found.state == "unknown":
        raise SottovoceError(found.why)
    try:
        listening = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        reason = {errno.EADDRINUSE: "it is in use", errno.EACCES: "the system does not let you"}.get(
            getattr(error, "errno", None) or 0, str(error)
        )
        raise SottovoceError(f"cannot listen on port {port}, {reason}: give another port", "port") from None
    application = create_watch(run, ended=lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(application, access_log=False, log_level="error", ws="none"))
    return server, listening
