"""Who may stay connected to the service, and for how long: counted by address, before anything is read.

A connection is counted from the moment it is accepted, TLS handshake included. Handshake, request and answer
each have a time within which they must be finished, and a request's head a size; whoever is slower or sends
more is disconnected. So one address, however many half-sent requests it holds, takes no place of another.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sottovoce.errors import SottovoceError

HANDSHAKE_SECONDS = 5.0
REQUEST_SECONDS = 12.0
"""From the connection or the first byte to the last byte of a request; a body alone has less (`service`)."""
ANSWER_SECONDS = 60.0
"""For whoever reads slowly."""
IDLE_SECONDS = 30.0
MOST_HEAD = 2**15
"""Bytes of a request before its body."""
TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
SPARE_FILES = 256
"""Descriptors for everything but connections."""


class Doorkeeper:
    """Counts connections: `connections` in all, and `per_address` of them from one address.

    >>> keeper = Doorkeeper(per_address=1, connections=10)
    >>> keeper.admits("10.0.0.1"), keeper.admits("10.0.0.1"), keeper.admits("10.0.0.2")
    (True, False, True)
    >>> keeper.leaves("10.0.0.1")
    >>> keeper.admits("10.0.0.1")
    True
    """

    def __init__(self, per_address: int, connections: int) -> None:
        self._per_address = per_address
        self._connections = connections
        self._open: Counter[str] = Counter()
        self._total = 0

    def admits(self, address: str) -> bool:
        """Whether one more may stay; if so, it is counted."""
        if self._open[address] >= self._per_address or self._total >= self._connections:
            return False
        self._open[address] += 1
        self._total += 1
        return True

    def leaves(self, address: str) -> None:
        """Forgets one of them."""
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class Requests(HttpToolsProtocol):
    """A connection whose requests and answers must be finished in time."""

    _deadline: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._within(REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._within(REQUEST_SECONDS)  # the next request of a connection that was kept
        self._head += len(data)
        super().data_received(data)
        if self._head > MOST_HEAD:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head = -(2**62)  # the body is counted by who reads it

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head = 0
        self._within(None if self.cycle.response_complete else ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        if not self.cycle.more_body:
            self._within(None)
        super().on_response_complete()

    def _within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(TIMED_OUT)
            self.transport.close()
        else:
            self.transport.abort()


class _Handshake(SSLProtocol):
    """TLS around a connection; tells the doorkeeper when it ends, also where it never was one."""

    def __init__(self, keeper: Doorkeeper, address: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keeper, self._address = keeper, address

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._keeper.leaves(self._address)


def door(keeper: Doorkeeper, tls: ssl.SSLContext | None) -> type[asyncio.Protocol]:
    """The protocol class that uvicorn gives every connection to."""

    class Plain(Requests):
        """Counted until it is lost."""

        address = ""

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            keeper.leaves(self.address)

    class Door(asyncio.Protocol):
        """Lets a connection in, or ends it at once."""

        def __init__(self, **given: Any) -> None:
            self._given = given

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            name = transport.get_extra_info("peername")
            address = name[0] if isinstance(name, tuple) else ""
            if not keeper.admits(address):
                transport.abort()
                return
            inner: asyncio.BaseProtocol
            if tls is None:
                inner = Plain(**self._given)
                inner.address = address
            else:
                inner = _Handshake(
                    keeper,
                    address,
                    asyncio.get_running_loop(),
                    Requests(**self._given),
                    tls,
                    None,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=HANDSHAKE_SECONDS,
                )
            transport.set_protocol(inner)
            inner.connection_made(transport)

    return Door


def configure(
    service: FastAPI,
    *,
    host: str,
    port: int,
    per_address: int = 128,
    connections: int = 2048,
    certificate: Path | None = None,
    key: Path | None = None,
    behind_proxy: bool = False,
) -> uvicorn.Config:
    """How the service is served; behind a proxy, whose address all share, the proxy must count."""
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise SottovoceError(
                f"{certificate} and {key} are not a certificate and its key: {error}"
            ) from None
    keeper = Doorkeeper(connections if behind_proxy else per_address, connections)
    _allow_files(connections + SPARE_FILES)
    return uvicorn.Config(
        service,
        host=host,
        port=port,
        http=door(keeper, tls),
        proxy_headers=behind_proxy,
        access_log=False,
        ws="none",
        log_level="warning",
        timeout_keep_alive=int(IDLE_SECONDS),
    )


def _allow_files(wanted: int) -> None:
    """As many open files as connections need, if the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
