"""The web application: specification, onboarding, health and metrics of one run.

The cheapest checks of a request come first (load, token, rate, size, specification), then it is decoded, and
what cannot be done soon is shed with 503 at once, so that memory and waiting time stay bounded. Refusals are
JSON with one sentence, and store nothing.
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
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from sottovoce import __version__
from sottovoce.errors import SottovoceError
from sottovoce.federation.client_log import shown
from sottovoce.federation.keys import KEY_BYTES
from sottovoce.onboarding.contexts import SecondContext
from sottovoce.onboarding.metrics import Metrics
from sottovoce.onboarding.server import Onboarding
from sottovoce.onboarding.specification import VERSION
from sottovoce.onboarding.tokens import Rate, read_tokens, token_hash

COEFFICIENTS = "application/octet-stream"
MODEL = "application/safetensors"
BODY_SECONDS = 10.0
SHED = (429, 503)
"""Refusals for want of time, which are counted and not logged."""

LOGGED_PER_SECOND, LOGGED_AT_ONCE = 1.0, 20
"""Refusals that are logged, of all that are counted: strangers must not fill the disk."""

log = logging.getLogger("sottovoce.onboarding")


@dataclass(frozen=True)
class Limits:
    """What the service takes on: requests at a time, and per client in a second and at once."""

    waiting: int = 64
    per_second: float = 5.0
    burst: int = 10


def create_service(run: str | Path, limits: Limits | None = None, *, open_to_all: bool = False) -> FastAPI:
    """The application of a finished run; `open_to_all` needs no tokens and is for trying out."""
    server, metrics, chosen = Onboarding(run), Metrics(), limits or Limits()
    tokens = read_tokens(Path(run))
    if not tokens and not open_to_all:
        raise SottovoceError(f"nobody has a token: make one with 'sottovoce serve {run} --new-token NAME'")
    gate = _Gate(chosen, tokens, open_to_all)
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

    @service.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code not in SHED and logged.admits("refusals"):
            log.warning("refused %s (%d): %s", request.url.path, error.status_code, shown(error.detail))
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @service.get("/v1/specification", summary="What a context of this run is made of")
    async def get_specification() -> JSONResponse:
        return JSONResponse(specification)

    @service.get("/v1/context-model", summary="Shared coefficients behind context=predictions, float32")
    async def get_context_model() -> Response:
        if context_model is None:
            raise HTTPException(404, "contexts of this run need no model")
        return Response(context_model, media_type=COEFFICIENTS)

    @service.get("/v1/access", summary="Whether a token is good, before anything is charged")
    async def get_access(authorization: Annotated[str, Header()] = "") -> JSONResponse:
        gate.check(authorization)
        return JSONResponse({"access": True})

    @service.post(
        "/v1/onboard",
        summary="One context in, coefficients or a model out",
        response_class=Response,
        responses={200: {"content": {COEFFICIENTS: {}, MODEL: {}}}},
    )
    async def onboard(
        request: Request,
        authorization: Annotated[str, Header()] = "",
        sottovoce_version: Annotated[str, Header()] = "",
        sottovoce_specification: Annotated[str, Header()] = "",
        accept: Annotated[str, Header()] = COEFFICIENTS,
    ) -> Response:
        """Body: 32 bytes X25519 public key, then the channel message.

        The same body again gives the same answer and costs nothing new. `Accept: application/safetensors`
        returns the whole model instead of float32 coefficients.
        """
        started, status = time.perf_counter(), 500
        try:
            with gate:
                if sottovoce_version != str(VERSION):
                    raise HTTPException(400, f"this service speaks version {VERSION}: update your client")
                if sottovoce_specification != specification["digest"]:
                    raise HTTPException(
                        409, "your specification is another run's or outdated: fetch it again"
                    )
                gate.check(authorization)
                body = await _body(request, server.largest_body)
                client = gate.client(authorization, body)
                wants_model = MODEL in accept

                def work() -> tuple[bytes, bool]:
                    coefficients, again = server.coefficients(client, body)
                    return (server.model(coefficients) if wants_model else server.packed(coefficients)), again

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

    @service.get("/health", summary="Whether the service is up")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "run": server.specification.run})

    @service.get("/metrics", summary="For Prometheus", response_class=PlainTextResponse)
    async def get_metrics() -> PlainTextResponse:
        return PlainTextResponse(metrics.text(waiting=gate.waiting))

    return service


class _Gate:
    """Lets in as many as can be served soon, and knows who they are."""

    def __init__(self, limits: Limits, tokens: dict[str, str], open_to_all: bool) -> None:
        self.waiting = 0
        self._limits = limits
        self._tokens = tokens
        self._open = open_to_all
        self._rate = Rate(limits.per_second, limits.burst)

    def __enter__(self) -> None:
        if self.waiting >= self._limits.waiting:
            raise HTTPException(503, "busy: try again soon", {"Retry-After": "1"})
        self.waiting += 1

    def __exit__(self, *unused: object) -> None:
        self.waiting -= 1

    def check(self, authorization: str) -> None:
        """Refuses a wrong token, and a client that asks too often, before its body is read."""
        if not self._open and not self._rate.admits(self.client(authorization, b"")):
            raise HTTPException(429, "too many requests with this token: slow down", {"Retry-After": "1"})

    def client(self, authorization: str, body: bytes) -> str:
        """The client behind a token; without tokens, the one behind the public key in the body."""
        if self._open:
            return body[:KEY_BYTES].hex()
        scheme, _, token = authorization.partition(" ")
        name = self._tokens.get(token_hash(token)) if scheme.lower() == "bearer" else None
        if name is None:
            raise HTTPException(
                401, "no such token: ask the operator for one", {"WWW-Authenticate": "Bearer"}
            )
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
