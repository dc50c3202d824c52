"""The web application: specification, onboarding, health and metrics of one run.

The cheapest checks of a request come first (token, rate, version, specification, size), then it is decoded,
and what cannot be done soon is shed with 503 at once, so that memory and waiting time stay bounded. Whoever
shows no good token is served seldom, by address (`connections` bounds what an address may hold open).
Refusals are JSON with one sentence, and store nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route

from sottovoce import __version__
from sottovoce.errors import SottovoceError
from sottovoce.federation.client_log import shown
from sottovoce.onboarding.endpoint import COEFFICIENTS, MODEL, Endpoint
from sottovoce.onboarding.gate import Gate, Limits
from sottovoce.onboarding.metrics import Metrics
from sottovoce.onboarding.server import Onboarding
from sottovoce.onboarding.tokens import Rate, Tokens, read_tokens

ONBOARD = "/v1/onboard"
BINARY = {"schema": {"type": "string", "format": "binary"}}
BYTES = {"content": {COEFFICIENTS.decode(): BINARY}}
EITHER = {"content": {COEFFICIENTS.decode(): BINARY, MODEL.decode(): BINARY}}
REFUSED = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
SHED_REFUSAL = {"content": REFUSED, "description": "too many requests, or busy"}
Authorization = Annotated[str, Header(description="Bearer, and the client's token")]
SHED = (429, 503)
"""Refusals for want of time, which are counted and not logged."""

LOGGED_PER_SECOND, LOGGED_AT_ONCE = 1.0, 20
"""Refusals that are logged, of all that are counted: strangers must not fill the disk."""

log = logging.getLogger("sottovoce.onboarding")


class Refusal(BaseModel):
    """Why a request was refused, and what to do."""

    error: str


REASONS = {
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


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Refusal, "description": REASONS[status]} for status in statuses}


def _onboard_described() -> dict[str, Any]:
    """What OpenAPI says of the one address that is served without the framework."""
    headers = {
        "Authorization": "Bearer, and the client's token",
        "Sottovoce-Version": "of the protocol",
        "Sottovoce-Specification": "digest of the specification that the context was made for",
    }
    refusals = {
        str(status): {"description": REASONS[status], "content": REFUSED}
        for status in (400, 401, 408, 409, 413, 422, 429, 503)
    }
    return {
        "summary": "One context in, coefficients or a model out",
        "description": "Body: 32 bytes X25519 public key, then the channel message, padded as the "
        "specification says. The same body again gives the same answer and costs nothing new. "
        "`Accept: application/safetensors` returns the whole model instead of float32 coefficients.",
        "operationId": "onboard",
        "parameters": [
            {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}
            for name, description in headers.items()
        ],
        "requestBody": {"required": True, **BYTES},
        "responses": {"200": {"description": "The client's own", **EITHER}, **refusals},
    }


def create_service(
    run: str | Path, limits: Limits | None = None, *, open_to_all: bool = False, model: str | None = None
) -> FastAPI:
    """The application of a finished run; `open_to_all` needs no tokens and is for trying out.

    `model` names the run's model where it is code of the operator's own.
    """
    server, metrics, chosen = Onboarding(run, model), Metrics(), limits or Limits()
    if not read_tokens(Path(run)) and not open_to_all:
        raise SottovoceError("nobody has a token: make a new one", "new_token")
    gate = Gate(chosen, Tokens(Path(run)), open_to_all)
    specification = server.specification.fields(server.blueprint)
    context_model = server.context_model()
    logged = Rate(LOGGED_PER_SECOND, LOGGED_AT_ONCE)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        endpoint.close()
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
        gate.glance(request.client, authorization)
        return specification

    @service.get(
        "/v1/context-model",
        summary="Shared coefficients behind context=predictions, float32",
        response_class=Response,
        responses={200: BYTES, **_refusals(404, 429, 503)},
    )
    async def get_context_model(request: Request, authorization: Authorization = "") -> Response:
        gate.glance(request.client, authorization)
        if context_model is None:
            raise HTTPException(404, "contexts of this run need no model")
        return Response(context_model, media_type=COEFFICIENTS.decode())

    @service.get(
        "/v1/access",
        summary="Whether a token is good, before anything is charged",
        responses=_refusals(401, 429, 503),
    )
    async def get_access(request: Request, authorization: Authorization = "") -> dict[str, bool]:
        gate.check(request.client, authorization)
        return {"access": True}

    endpoint = Endpoint(server, gate, metrics, specification["digest"])
    service.router.routes.append(Route(ONBOARD, endpoint, methods=["POST"]))

    @service.get("/health", summary="Whether the service is up", responses=_refusals(429, 503))
    async def health(request: Request, authorization: Authorization = "") -> dict[str, str]:
        gate.glance(request.client, authorization)
        return {"status": "ok", "run": server.specification.run}

    @service.get(
        "/metrics",
        summary="For Prometheus",
        response_class=PlainTextResponse,
        responses={429: SHED_REFUSAL, 503: SHED_REFUSAL},
    )
    async def get_metrics(request: Request, authorization: Authorization = "") -> PlainTextResponse:
        gate.glance(request.client, authorization)
        return PlainTextResponse(metrics.text(waiting=gate.waiting))

    service.openapi()["paths"][ONBOARD] = {"post": _onboard_described()}
    return service
