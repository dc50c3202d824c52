"""`POST /v1/onboard`: one context in, coefficients or a model out.

Plain ASGI: what a web framework does with a request costs several times what is done here, and this is the
one address that is asked a thousand times a second. The cheapest checks come first, then the body is read,
and what cannot be done soon is shed.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Address
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import KEY_BYTES
from sottovoce.onboarding.batches import Batches
from sottovoce.onboarding.contexts import SecondContext
from sottovoce.onboarding.gate import Gate
from sottovoce.onboarding.metrics import Metrics
from sottovoce.onboarding.server import Answer, Onboarding, Request
from sottovoce.onboarding.specification import VERSION

COEFFICIENTS = b"application/octet-stream"
MODEL = b"application/safetensors"
BODY_SECONDS = 10.0


class Endpoint:
    """Answers requests in batches, and counts them."""

    def __init__(self, server: Onboarding, gate: Gate, metrics: Metrics, digest: str) -> None:
        self._largest = server.largest_body
        self._gate = gate
        self._metrics = metrics
        self._digest = digest.encode()
        self._batches: Batches[Request, Answer] = Batches(server.answer)

    def close(self) -> None:
        """Answers what waits, and ends."""
        self._batches.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 500
        headers: dict[bytes, bytes] = dict(scope["headers"])
        kind = MODEL if MODEL in headers.get(b"accept", b"") else COEFFICIENTS
        try:
            answer = await self._answer(scope, headers, receive, kind)
            status = 200
        except HTTPException as error:
            status = error.status_code
            raise
        except SottovoceError as error:
            status = 409 if isinstance(error, SecondContext) else 422
            raise HTTPException(status, str(error)) from None
        finally:
            self._metrics.answered(status, time.perf_counter() - started)
        length = str(len(answer)).encode()
        described = [(b"content-type", kind), (b"content-length", length)]
        await send({"type": "http.response.start", "status": status, "headers": described})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, kind: bytes
    ) -> bytes:
        who = Address(*scope["client"]) if scope.get("client") else None
        client = self._gate.check(who, headers.get(b"authorization", b"").decode("latin-1"))
        if headers.get(b"sottovoce-version") != str(VERSION).encode():
            raise HTTPException(400, f"this service speaks version {VERSION}: update your client")
        if headers.get(b"sottovoce-specification") != self._digest:
            raise HTTPException(409, "your specification is another run's or outdated: fetch it again")
        self._gate.look()
        body = await self._body(receive)
        with self._gate:  # who sends slowly takes no place of those who wait for their model
            answer = await self._batches.ask(Request(client or body[:KEY_BYTES].hex(), body, kind is MODEL))
        self._metrics.retries += answer.again
        return answer.body

    async def _body(self, receive: Receive) -> bytes:
        """The body, read no further than a context can be long, and no longer than a moment."""
        received, more = bytearray(), True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(408, "the context broke off")
                    received += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(received) > self._largest:
                        raise HTTPException(413, f"a context of this run has at most {self._largest} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the context did not arrive within {BODY_SECONDS:g} s") from None
        return bytes(received)
