"""The web application: specification, onboarding, health and metrics of one run.

The cheapest checks of a request come first (token, rate, version, specification, size), then it is decoded,
and what cannot be done soon is shed with 503 at once, so that memory and waiting time stay bounded. Whoever
shows no good token is served seldom, by address (`connections` bounds what an address may hold open).
Refusals are JSON with one sentence, and store nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from sottovoce import __version__
from sottovoce.errors import SottovoceError
from sottovoce.federation.client_log import shown
from sottovoce.federation.keys import KEY_BYTES
from sottovoce.onboarding.contexts import SecondContext
from sottovoce.onboarding.metrics import Metrics
from sottovoce.onboarding.server import Onboarding
from sottovoce.onboarding.specification import VERSION
from sottovoce.onboarding.tokens import Rate, Tokens, read_tokens

COEFFICIENTS = "application/octet-stream"
MODEL = "application/safetensors"
BODY_SECONDS = 10.0
RETRY = {"Retry-After": "1"}
BINARY = {"schema": {"type": "string", "format": "binary"}}
BYTES = {"content": {COEFFICIENTS: BINARY}}
EITHER = {"content": {COEFFICIENTS: BINARY, MODEL: BINARY}}
REFUSED = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
SHED_REFUSAL = {"content": REFUSED, "description": "too many requests, or busy"}
Authorization = Annotated[str, Header(description="Bearer, and the client's token")]
SHED = (429, 503)
"""Refusals for want of time, which are counted and not logged."""

LOGGED_PER_SECOND, LOGGED_AT_ONCE = 1.0, 20
"""Refusals that are logged, of all that are counted: strangers must not fill the disk."""

log = logging.getLogger("sottovoce.onboarding")


@dataclass(frozen=True)
class Limits:
    """What the service takes on: requests at a time, and per client in a second and at once.

    Strangers are requests without a good token, counted by address.
    """

    waiting: int = 64
    per_second: float = 5.0
    burst: int = 10
    strangers_per_second: float = 20.0
    strangers_burst: int = 100


class Refusal(BaseModel):
    """Why a request was refused, and what to do."""

    error: str


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    reasons = {
        400: "another version of the protocol",
        401: "no good token",
        404: "there is none",
        408: "the body came too slowly",
        409: "another run's specification, or a second context",
        413: "more bytes than a context has",
        422: "not a context of this run",
        429: "too many requests with this token, or from this address",
        503: "busy, or the tokens cannot be read",
    }
    return {status: {"model": Refusal, "description": reasons[status]} for status in statuses}


def create_service(
    run: str | Path, limits: Limits | None = None, *, open_to_all: bool = False, model: str | None = None
) -> FastAPI:
    """The application of a finished run; `open_to_all` needs no tokens and is for trying out.

    `model` names the run's model where it is code of the operator's own.
    """
    server, metrics, chosen = Onboarding(run, model), Metrics(), limits or Limits()
    if not read_tokens(Path(run)) and not open_to_all:
        raise SottovoceError(f"nobody has a token: make one with 'sottovoce serve {run} --new-token NAME'")
    gate = _Gate(chosen, Tokens(Path(run)), open_to_all)
    specification = server.specification.fields(server.blueprint)
    context_model = server.context_model()
    logged = Rate(LOGGED_PER_SECOND, LOGGED_AT_ONCE)
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onboarding")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.shutdown()
        server.close()

    service = FastAPI(
        title="Sottovoce onboarding",
        version=__version__,
        description="One context in, one personal model out. The context is charged at the client.",
        lifespan=lifespan,
    )

    @service.exception_handler(StarletteHTTPException)
    async def refuse(request: Request, error: StarletteHTTPException) -> JSONResponse:
        if error.status_code not in SHED and logged.admits("refusals"):
            log.warning("refused %s (%d): %s", request.url.path, error.status_code, shown(error.detail))
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @service.exception_handler(RequestValidationError)
    async def refuse_parameters(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"error": "that is not a request of this service: see /docs"}, 422)

    @service.get(
        "/v1/specification",
        summary="What a context of this run is made of",
        responses=_refusals(429, 503),
    )
    async def get_specification(request: Request, authorization: Authorization = "") -> dict[str, Any]:
        gate.glance(request, authorization)
        return specification

    @service.get(
        "/v1/context-model",
        summary="Shared coefficients behind context=predictions, float32",
        response_class=Response,
        responses={200: BYTES, **_refusals(404, 429, 503)},
    )
    async def get_context_model(request: Request, authorization: Authorization = "") -> Response:
        gate.glance(request, authorization)
        if context_model is None:
            raise HTTPException(404, "contexts of this run need no model")
        return Response(context_model, media_type=COEFFICIENTS)

    @service.get(
        "/v1/access",
        summary="Whether a token is good, before anything is charged",
        responses=_refusals(401, 429, 503),
    )
    async def get_access(request: Request, authorization: Authorization = "") -> dict[str, bool]:
        gate.check(request, authorization)
        return {"access": True}

    @service.post(
        "/v1/onboard",
        summary="One context in, coefficients or a model out",
        response_class=Response,
        responses={200: EITHER, **_refusals(400, 401, 408, 409, 413, 422, 429, 503)},
        openapi_extra={"requestBody": {"required": True, **BYTES}},
    )
    async def onboard(
        request: Request,
        authorization: Authorization = "",
        sottovoce_version: Annotated[str, Header()] = "",
        sottovoce_specification: Annotated[str, Header()] = "",
        accept: Annotated[str, Header()] = COEFFICIENTS,
    ) -> Response:
        """Body: 32 bytes X25519 public key, then the channel message, padded as the specification says.

        The same body again gives the same answer and costs nothing new. `Accept: application/safetensors`
        returns the whole model instead of float32 coefficients.
        """
        started, status = time.perf_counter(), 500
        try:
            client = gate.check(request, authorization)
            if sottovoce_version != str(VERSION):
                raise HTTPException(400, f"this service speaks version {VERSION}: update your client")
            if sottovoce_specification != specification["digest"]:
                raise HTTPException(409, "your specification is another run's or outdated: fetch it again")
            gate.look()
            body = await _body(request, server.largest_body)
            client = client or body[:KEY_BYTES].hex()
            wants_model = MODEL in accept
            with gate:  # who sends slowly takes no place of those who wait for their model

                def work() -> tuple[bytes, bool]:
                    coefficients, again = server.coefficients(client, body)
                    model = server.model(client, coefficients) if wants_model else None
                    return model or server.packed(coefficients), again

                answer, again = await asyncio.get_running_loop().run_in_executor(worker, work)
                metrics.retries += again
                status = 200
                return Response(answer, media_type=MODEL if wants_model else COEFFICIENTS)
        except HTTPException as error:
            status = error.status_code
            raise
        except SecondContext as error:
            status = 409
            raise HTTPException(status, str(error)) from None
        except SottovoceError as error:
            status = 422
            raise HTTPException(status, str(error)) from None
        finally:
            metrics.answered(status, time.perf_counter() - started)

    @service.get("/health", summary="Whether the service is up", responses=_refusals(429, 503))
    async def health(request: Request, authorization: Authorization = "") -> dict[str, str]:
        gate.glance(request, authorization)
        return {"status": "ok", "run": server.specification.run}

    @service.get(
        "/metrics",
        summary="For Prometheus",
        response_class=PlainTextResponse,
        responses={429: SHED_REFUSAL, 503: SHED_REFUSAL},
    )
    async def get_metrics(request: Request, authorization: Authorization = "") -> PlainTextResponse:
        gate.glance(request, authorization)
        return PlainTextResponse(metrics.text(waiting=gate.waiting))

    return service


class _Gate:
    """Lets in as many as can be served soon, and knows who they are."""

    def __init__(self, limits: Limits, tokens: Tokens, open_to_all: bool) -> None:
        self.waiting = 0
        self._limits = limits
        self._tokens = tokens
        self._open = open_to_all
        self._rate = Rate(limits.per_second, limits.burst)
        self._strangers = Rate(limits.strangers_per_second, limits.strangers_burst)

    def look(self) -> None:
        """Sheds a request that could not be served soon."""
        if self.waiting >= self._limits.waiting:
            raise HTTPException(503, "busy: try again soon", RETRY)

    def __enter__(self) -> None:
        self.look()
        self.waiting += 1

    def __exit__(self, *unused: object) -> None:
        self.waiting -= 1

    def glance(self, request: Request, authorization: str) -> str:
        """The client behind a token, or nobody; strangers who ask too often from one address are refused."""
        if self._open:
            return ""
        scheme, _, token = authorization.partition(" ")
        try:
            name = self._tokens.name(token) if scheme.lower() == "bearer" else None
        except SottovoceError as error:
            log.error("%s", error)
            raise HTTPException(503, "the tokens cannot be read: ask the operator", RETRY) from None
        if name is None and not self._strangers.admits(request.client.host if request.client else ""):
            raise HTTPException(429, "too many requests from this address: slow down", RETRY)
        return name or ""

    def check(self, request: Request, authorization: str) -> str:
        """The client behind a token; a wrong token, and a client that asks too often, are refused.

        Without tokens it is nobody: the public key in the body says who it is.
        """
        name = self.glance(request, authorization)
        if self._open:
            return ""
        if not name:
            raise HTTPException(
                401, "no such token: ask the operator for one", {"WWW-Authenticate": "Bearer"}
            )
        if not self._rate.admits(name):
            raise HTTPException(429, "too many requests with this token: slow down", RETRY)
        return name


async def _body(request: Request, largest: int) -> bytes:
    """The body, read no further than a context can be long, and no longer than a moment."""
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                received += piece
                if len(received) > largest:
                    raise HTTPException(413, f"a context of this run has at most {largest} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the context did not arrive within {BODY_SECONDS:g} s") from None
    return bytes(received)
