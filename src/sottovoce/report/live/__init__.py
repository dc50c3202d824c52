"""A live page for a run, a federation or a client of one, on loopback: its events, health, and metrics.

The page is one document without outside resources. Its script gets server-sent events, each with the parts
that have changed, and puts them in their place; a chart that has not changed is left alone. Of a run it shows
results of a simulation or totals over clients; of a federation what its server may know, and nothing that
depends on the records of one client; of a client what is its owner's own.

Every account of a machine reaches its loopback, so the page wants a token, as the password of any user name:
that of the link which its owner is shown, good until the page ends and kept nowhere, or one that was made for
somebody. A password belongs to this port alone; a cookie would go to whoever listens on another one. Requests
under another name than this machine's are refused, so that no page of the web can ask; the nginx that we ship
(`deploy/nginx.conf`), through which the page is seen from elsewhere, asks under a name of its own. Nothing is
written.

Prometheus reads the same as numbers, with a token; nothing has a label that names a client. Without one there
is a word of health, and no reason.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import get_args

import uvicorn
from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sottovoce import report
from sottovoce.errors import SottovoceError
from sottovoce.machine.tokens import TOKEN_BYTES, Tokens
from sottovoce.report.chart import Chart
from sottovoce.report.figures import over_rounds, percent_tick, scores, times
from sottovoce.report.look import look
from sottovoce.report.status import EXIT_CODES, Standing, Status
from sottovoce.report.table import UNKNOWN, Table, equals, number

HOST = "127.0.0.1"
PROXY = "proxy"
"""The name under which nginx asks."""
TOKENS_FILE = "watch-tokens.txt"
EVERY_SECONDS = 1.0
LISTED = 100
"""Clients that a page names."""
NOTHING_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
WHO = {"WWW-Authenticate": 'Basic realm="Sottovoce", charset="UTF-8"'}


def create_watch(
    run: str | Path, ended: Callable[[], bool], link: str, *, behind_proxy: bool = False
) -> Starlette:
    """The web application: the page at /, and its events until `ended` says that the server is to end.

    `link` is the token of the link that the owner is shown.
    """
    tokens = Tokens(Path(run), TOKENS_FILE)

    def may_see(request: Request) -> bool:
        return _known(link, tokens, request.headers.get("authorization", ""))

    async def show(request: Request) -> Response:
        if not may_see(request):
            return _refused()
        found = await asyncio.to_thread(look, run)
        return HTMLResponse(document(found), headers=NOTHING_KEPT)

    async def changes(request: Request) -> AsyncIterator[str]:
        known: dict[str, str] = {}
        while not ended() and may_see(request):
            shown = parts(await asyncio.to_thread(look, run))
            new = {part: text for part, text in shown.items() if known.get(part) != text}
            known = shown
            yield f"data: {json.dumps(new)}\n\n"  # also where nothing is new: so both ends know of each other
            await asyncio.sleep(EVERY_SECONDS)

    async def events(request: Request) -> Response:
        if not may_see(request):
            return _refused()
        return StreamingResponse(changes(request), media_type="text/event-stream", headers=NOTHING_KEPT)

    async def health(request: Request) -> JSONResponse:
        found = await asyncio.to_thread(look, run)
        well = found.state not in ("failed", "unknown")
        why = {"why": found.why} if may_see(request) else {}
        return JSONResponse({"status": found.state, **why}, 200 if well else 503)

    async def measured(request: Request) -> Response:
        if not may_see(request):
            return _refused()
        text = await asyncio.to_thread(metrics, lambda: look(run))
        return Response(text, media_type=exposition.CONTENT_TYPE_LATEST)

    hosts = ["localhost", HOST, *([PROXY] if behind_proxy else [])]
    allowed = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    routes = {"/": show, "/events": events, "/health": health, "/metrics": measured}
    return Starlette(routes=[Route(path, end) for path, end in routes.items()], middleware=[allowed])


def _refused() -> Response:
    return PlainTextResponse(
        "a token is needed, as the password: sottovoce watch shows a link with one", 401, WHO
    )


def _known(link: str, tokens: Tokens, authorization: str) -> bool:
    """Returns whether a request brings a token: as a password, or as a bearer's."""
    scheme, _, said = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            said = base64.b64decode(said, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    if secrets.compare_digest(said.encode(), link.encode()):
        return True
    try:
        return tokens.name(said) is not None
    except SottovoceError:
        return False


def open_watch(
    run: str | Path, port: int, *, behind_proxy: bool = False
) -> tuple[uvicorn.Server, socket.socket, str]:
    """A server for the live page of a run, the socket that it is to listen on, and the token of its link.

    Port 0 is any free one.
    """
    found = look(run)
    if found.state == "unknown":
        raise SottovoceError(found.why)
    try:
        listening = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        reason = {errno.EADDRINUSE: "it is in use", errno.EACCES: "the system does not let you"}.get(
            getattr(error, "errno", None) or 0, str(error)
        )
        raise SottovoceError(f"cannot listen on port {port}, {reason}: give another port", "port") from None
    link = secrets.token_urlsafe(TOKEN_BYTES)
    application = create_watch(run, lambda: server.should_exit, link, behind_proxy=behind_proxy)
    server = uvicorn.Server(uvicorn.Config(application, access_log=False, log_level="error", ws="none"))
    return server, listening, link


def parts(found: Status) -> dict[str, str]:
    """The parts of the page that change, by the id of the element that holds each; the title is no markup."""
    made, grid = report.macros("report/live/parts.html"), report.macros("report/parts.html").grid
    shown = {"title": _title(found), "state": made.state(found), "figures": "", "charts": "", "clients": ""}
    if found.role == "client":
        if found.client:
            shown["figures"] = made.node_figures(found)
        return {**shown, "clients": made.log(_errors(found))}
    if found.rounds:
        shown |= {"figures": made.run_figures(found), "charts": grid(_charts(found))}
    if found.engine:
        shown["clients"] = made.federation(found, _clients(found), _errors(found))
    return shown


def document(found: Status) -> str:
    """The whole page as it is now; its script replaces the parts."""
    return report.page(
        "report/live/page.html",
        live=True,
        name=_name(found),
        facts=_facts(found),
        seeded=found.seeded,
        parts=parts(found),
    )


def _title(found: Status) -> str:
    rounds = f" {found.round} of {found.rounds}" if found.rounds else ""
    return f"{found.state}{rounds} · {_name(found)}"


def _name(found: Status) -> str:
    """Returns what a page is called: a client by its name, everything else by its directory."""
    return found.client or Path(found.directory).name


def _facts(found: Status) -> list[str]:
    if found.role == "client":
        return ["a client of a federation", *([found.noise_words] if found.noise else [])]
    if found.noise is None:  # nothing is known of its plan
        return []
    about = [found.dataset or "", found.method or "", f"{number(found.participants)} participants"]
    target = found.epsilon.get("target")
    promise = "without privacy" if target is None else f"{equals('ε', target)} at {equals('δ', found.delta)}"
    return [*about, found.noise_words, promise]


def _charts(found: Status) -> list[Chart]:
    note = "Waiting for clients included." if found.engine else "Evaluation is not counted."
    charts, lines = [times(found.history, note)], scores(found.history)
    if any(line.points for line in lines):
        note = "Mean over clients, where it was evaluated."
        charts.insert(0, over_rounds("On held-out records", note, lines, percent_tick))
    return charts


def _clients(found: Status) -> Table:
    why = {one["name"]: one["why"] for one in found.waiting}
    rows = [
        [
            client["name"],
            *(word if client[word] else UNKNOWN for word in ("enrolled", "connected")),
            why.get(client["name"], "waited for" if client["late"] else ""),
        ]
        for client in found.clients[:LISTED]
    ]
    return Table(["Client", "Enrolled", "Connected", "Waited for"], rows, "Clients", words=4)


def _errors(found: Status) -> list[str]:
    return [
        error["text"] if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M} {error['text']}"
        for error in found.errors
        for at in [error["time"]]
    ]


class Looked(Collector):
    """Looks whenever it is asked."""

    def __init__(self, look: Callable[[], Status]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        found = self._look()
        yield from _node(found) if found.role == "client" else _run(found)


def metrics(look: Callable[[], Status]) -> bytes:
    """The page for Prometheus."""
    registry = CollectorRegistry()
    registry.register(Looked(look))
    return exposition.generate_latest(registry)


def _run(found: Status) -> Iterator[Metric]:
    yield _state("sottovoce_run_state", "1 for the state that the run is in.", found)
    yield _gauge("sottovoce_run_round", "Rounds that are closed.", found.round)
    yield _gauge("sottovoce_run_rounds", "Rounds of the plan.", found.rounds)
    since = found.seconds_since
    yield _gauge("sottovoce_run_seconds_since_progress", "Since a phase or a round was closed.", since)
    yield _gauge("sottovoce_run_seconds_left", "Estimated from the last rounds.", found.seconds_left)
    for direction, total in (("up", found.bytes_up), ("down", found.bytes_down)):
        about = f"Bytes {direction}, of rounds that two or more clients answered."
        yield _counter(f"sottovoce_run_bytes_{direction}", about, total)
    yield _gauge(
        "sottovoce_run_epsilon_target", "What the plan allows each client.", found.epsilon.get("target")
    )
    spent = found.epsilon.get("spent")
    yield _gauge("sottovoce_run_epsilon_spent", "Of the client that has spent most in this run.", spent)
    if found.engine:
        yield _gauge("sottovoce_run_participants", "Clients of the plan.", found.participants)
        for what in get_args(Standing):
            yield _gauge(f"sottovoce_run_clients_{what}", f"Clients that are {what}.", found.counted(what))
        yield _counter("sottovoce_run_refusals", "Answers and enrolments refused.", found.refusals)


def _node(found: Status) -> Iterator[Metric]:
    yield _state("sottovoce_node_state", "1 for the state that the client is in.", found)
    yield _gauge("sottovoce_node_round", "The last round that it was asked for.", found.round)
    yield _counter("sottovoce_node_released_rounds", "Rounds it released in.", found.gradients)
    since = found.seconds_since
    yield _gauge("sottovoce_node_seconds_since_contact", "Since a message of the server came.", since)
    yield _counter("sottovoce_node_answers", "Messages that it has answered.", found.answers)
    yield _counter("sottovoce_node_refusals", "Messages that it has refused.", found.refusals)
    spent = found.epsilon
    yield _gauge("sottovoce_node_epsilon_budget", "What its owner allows.", spent.get("budget"))
    yield _gauge("sottovoce_node_epsilon_spent", "Spent by its records, in all runs.", spent.get("spent"))
    yield _gauge("sottovoce_node_epsilon_run", "What the whole of this run costs.", spent.get("run"))
    together = spent.get("together")
    yield _gauge("sottovoce_node_epsilon_together", "What will be spent when this run ends.", together)


def _state(name: str, about: str, found: Status) -> Metric:
    family = GaugeMetricFamily(name, about, labels=["state"])
    for state in EXIT_CODES:
        family.add_metric([state], state == found.state)
    return family


def _gauge(name: str, about: str, value: float | None) -> Metric:
    """One number; none where it is not known."""
    family = GaugeMetricFamily(name, about, labels=[])
    if value is not None:
        family.add_metric([], value)
    return family


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)
