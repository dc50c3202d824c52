"""The web application of a finished run: specification, onboarding, health and metrics.

It listens on loopback. The nginx that we ship stands before it (`deploy/nginx.conf`): TLS, and the limits of
connections, slow senders, sizes and rates, are its work, so nobody's address is seen here. The cheapest
checks of a request come first (host, places, token, version, specification, size). A refusal is JSON with one
sentence, is counted and stores nothing; requests are logged nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, exposition
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sottovoce import __version__
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import VERSION
from sottovoce.federation.onboarding import server as finished
from sottovoce.federation.onboarding.server import Answer, Onboarding, SecondContext
from sottovoce.federation.sealing import KEY_BYTES
from sottovoce.machine.tokens import Tokens, read_tokens

ONBOARD = "/v1/onboard"
WAITING = 128
"""Connections at a time: more are shed with 503."""
KEPT_SECONDS = 75
"""An idle connection is kept longer than nginx keeps it, so that nginx never asks one that is gone."""
COEFFICIENTS, MODEL = "application/octet-stream", "application/safetensors"
BINARY = {"schema": {"type": "string", "format": "binary"}}
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds of the histogram."""

Authorization = Annotated[str, Header(description="Bearer, and the client's token")]
Version = Annotated[str, Header(alias="Sottovoce-Version", description="of the protocol")]
Digest = Annotated[
    str,
    Header(
        alias="Sottovoce-Specification",
        description="digest of the specification that the context was made for",
    ),
]

log = logging.getLogger("sottovoce.onboarding")
REASONS = {
    400: "another version of the protocol",
    401: "no good token",
    404: "there is none",
    409: "another run's specification, or a second context",
    413: "more bytes than a context has",
    422: "not a context of this run",
    503: "the tokens cannot be read",
}


class Refusal(BaseModel):
    """Why a request was refused, and what to do."""

    error: str


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Refusal, "description": REASONS[status]} for status in statuses}


@dataclass
class Asked:
    """A request, and its answer once there is one."""

    request: finished.Request
    answer: Answer | Exception | None = None


class Together:
    """Requests that arrive while others are being answered are answered together next, by one thread.

    The busier the service, the more requests share one visit to the disk and one product. A refusal among the
    answers is raised where its request was made.
    """

    def __init__(self, work: Callable[[Sequence[finished.Request]], Sequence[Answer | Exception]]) -> None:
        self._work = work
        self._waiting: deque[Asked] = deque()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onboarding")
        self.close = self._worker.shutdown

    async def ask(self, request: finished.Request) -> Answer:
        """Waits for the answer to one request."""
        asked = Asked(request)
        self._waiting.append(asked)
        await asyncio.get_running_loop().run_in_executor(self._worker, self._answer_waiting)
        if not isinstance(asked.answer, Answer):
            raise asked.answer or AssertionError("whoever waits is answered")
        return asked.answer

    def _answer_waiting(self) -> None:
        """Answers all who wait, perhaps nobody: a turn before this one may have."""
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not batch:
            return
        try:
            answers = self._work([asked.request for asked in batch])
        except Exception as failure:
            answers = [failure] * len(batch)
        for asked, answer in zip(batch, answers, strict=True):
            asked.answer = answer


class Counted:
    """Counts the requests to onboard, none of them by client: what Prometheus reads at /metrics."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        name = "sottovoce_onboarding_{}".format
        self._requests = Counter(
            name("requests_total"), "Onboarding requests by status.", ["status"], registry=registry
        )
        self._seconds = Histogram(
            name("request_seconds"), "Time of an onboarding request.", buckets=BOUNDS, registry=registry
        )
        self._waiting = Gauge(name("waiting"), "Onboarding requests under way.", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != ONBOARD:
            await self._app(scope, receive, send)
            return
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            with self._waiting.track_inprogress(), self._seconds.time():
                await self._app(scope, receive, noted)
        finally:
            self._requests.labels(status).inc()


async def _body(request: Request, largest: int) -> bytes:
    """The body, read no further than a context can be long."""
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > largest:
            raise HTTPException(413, f"a context of this run has at most {largest} bytes")
    return bytes(received)


def create_service(
    run: str | Path,
    *,
    open_to_all: bool = False,
    model: str | None = None,
    features: str | None = None,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The application of a finished run; `open_to_all` needs no tokens and is for trying out.

    `model` and `features` name the run's where they are code of the operator's own. `hosts` are names besides
    those of this machine under which the service may be asked.
    """
    server, tokens, registry = Onboarding(run, model, features), Tokens(Path(run)), CollectorRegistry()
    if not read_tokens(Path(run)) and not open_to_all:
        raise SottovoceError("nobody has a token: make a new one", "new_token")
    specification, context_model = server.specification.fields(server.blueprint), server.context_model()
    largest, together = server.largest_body, Together(server.answer)
    again = Counter(
        "sottovoce_onboarding_retries_total", "Contexts that had been received before.", registry=registry
    )
    ProcessCollector(registry=registry)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        together.close()
        server.close()

    service = FastAPI(
        title="Sottovoce onboarding",
        version=__version__,
        description="One context in, one personal model out. The context is charged at the client.",
        lifespan=lifespan,
    )
    service.add_middleware(TrustedHostMiddleware, ["localhost", "127.0.0.1", *hosts], www_redirect=False)
    service.add_middleware(Counted, registry)

    def client_of(authorization: str) -> str:
        """The client behind a token; without tokens nobody, and the key in the body says who it is."""
        if open_to_all:
            return ""
        scheme, _, token = authorization.partition(" ")
        try:
            name = tokens.name(token) if scheme.lower() == "bearer" else None
        except SottovoceError as error:
            log.error("%s", error)
            raise HTTPException(503, "the tokens cannot be read: ask the operator") from None
        if not name:
            raise HTTPException(
                401, "no such token: ask the operator for one", {"WWW-Authenticate": "Bearer"}
            )
        return name

    @service.exception_handler(StarletteHTTPException)
    async def refuse(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @service.exception_handler(SottovoceError)
    async def refuse_context(_: Request, error: SottovoceError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 409 if isinstance(error, SecondContext) else 422)

    @service.get("/v1/specification", summary="What a context of this run is made of")
    async def get_specification() -> dict[str, Any]:
        return specification

    @service.get(
        "/v1/context-model",
        summary="Shared coefficients behind context=predictions, float32",
        response_class=Response,
        responses={200: {"content": {COEFFICIENTS: BINARY}}, **_refusals(404)},
    )
    async def get_context_model() -> Response:
        if context_model is None:
            raise HTTPException(404, "contexts of this run need no model")
        return Response(context_model, media_type=COEFFICIENTS)

    @service.get(
        "/v1/access",
        summary="Whether a token is good, before anything is charged",
        responses=_refusals(401, 503),
    )
    async def get_access(authorization: Authorization = "") -> dict[str, bool]:
        client_of(authorization)
        return {"access": True}

    @service.post(
        ONBOARD,
        summary="One context in, coefficients or a model out",
        description="Body: 32 bytes X25519 public key, then the channel message, padded as the specification "
        "says. The same body again gives the same answer and costs nothing new. `Accept: "
        "application/safetensors` returns the whole model instead of float32 coefficients.",
        response_class=Response,
        responses={
            200: {"description": "The client's own", "content": {COEFFICIENTS: BINARY, MODEL: BINARY}},
            **_refusals(400, 401, 409, 413, 422, 503),
        },
        openapi_extra={"requestBody": {"required": True, "content": {COEFFICIENTS: BINARY}}},
    )
    async def onboard(
        request: Request, authorization: Authorization = "", version: Version = "", digest: Digest = ""
    ) -> Response:
        client = client_of(authorization)
        if version != str(VERSION):
            raise HTTPException(400, f"this service speaks version {VERSION}: update your client")
        if digest != specification["digest"]:
            raise HTTPException(409, "your specification is another run's or outdated: fetch it again")
        kind = MODEL if MODEL in request.headers.get("accept", "") else COEFFICIENTS
        body = await _body(request, largest)
        asked = finished.Request(client or body[:KEY_BYTES].hex(), body, kind == MODEL)
        answer = await together.ask(asked)
        again.inc(answer.again)
        return Response(answer.body, media_type=kind)

    @service.get("/health", summary="Whether the service is up")
    async def health() -> dict[str, str]:
        return {"status": "ok", "run": server.specification.run}

    @service.get("/metrics", summary="For Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(exposition.generate_latest(registry), media_type=exposition.CONTENT_TYPE_LATEST)

    return service


def configured(service: FastAPI, *, host: str, port: int, waiting: int = WAITING) -> uvicorn.Config:
    """Returns how the service is served: no request is logged, and what cannot be answered soon is shed."""
    return uvicorn.Config(
        service,
        host=host,
        port=port,
        limit_concurrency=waiting,
        timeout_keep_alive=KEPT_SECONDS,
        proxy_headers=False,
        access_log=False,
        log_level="error",
        ws="none",
    )
