"""One address cannot keep another out, however many requests it begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import selectors
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from sottovoce.errors import SottovoceError
from sottovoce.onboarding import connections
from sottovoce.onboarding.connections import Doorkeeper, Requests, configure
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.tokens import new_token
from tests.federation.processes import free_port, write_certificates

from .live import live

ATTACKER, CLIENT = "127.0.0.2", "127.0.0.1"
HALF_OPEN = 2_000


def dial(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))


@contextlib.contextmanager
def serving(run: Path, *options: str) -> Iterator[int]:
    """The real command in a process of its own; yields its port."""
    port, program = free_port(), "from sottovoce.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", str(run), "--port", str(port), *options]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), dial(port, CLIENT):
                    break
                assert process.poll() is None
                time.sleep(0.1)
            yield port
        finally:
            process.kill()


def half_open(port: int, sent: bytes) -> tuple[list[socket.socket], int]:
    """Requests begun from one address, and how many of them were let in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HALF_OPEN + 500
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"this test needs {wanted} open files"
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    held = []
    for _ in range(HALF_OPEN):
        attacker = dial(port, ATTACKER)
        with contextlib.suppress(OSError):
            attacker.sendall(sent)
        held.append(attacker)
    time.sleep(0.5)
    with selectors.DefaultSelector() as ready:  # what was ended at once can be read: the end
        for attacker in held:
            ready.register(attacker, selectors.EVENT_READ)
        ended = len(ready.select(timeout=0))
    return held, HALF_OPEN - ended


def waiting_times(port: int, token: str, tls: ssl.SSLContext | None) -> list[float]:
    """Seconds of requests of a client at another address, each on a connection of its own."""
    request = (
        f"GET /v1/access HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    seconds = []
    for _ in range(100):
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(dial(port, CLIENT))
            if tls is not None:
                client = stack.enter_context(tls.wrap_socket(client, server_hostname="127.0.0.1"))
            client.sendall(request.encode())
            assert b" 200 " in client.recv(4096)
        seconds.append(time.perf_counter() - started)
    return seconds


@pytest.mark.parametrize("secure", [False, True])
def test_two_thousand_half_open_connections_of_one_address_leave_another_its_answers(
    run: Path, tmp_path: Path, secure: bool
) -> None:
    token, tls = new_token(run, "alice"), None
    options = ["--per-second", "1000", "--burst", "1000"]
    sent = b"POST /v1/onboard HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf"
    if secure:
        write_certificates(tmp_path / "tls")
        options += ["--certificate", f"{tmp_path}/tls/server.crt", "--key", f"{tmp_path}/tls/server.key"]
        tls, sent = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt"), b"\x16\x03\x01\x02"
    with serving(run, *options) as port:
        waiting_times(port, token, tls)
        held, admitted = half_open(port, sent)
        try:
            seconds = waiting_times(port, token, tls)
        finally:
            for attacker in held:
                attacker.close()
    assert np.quantile(seconds, 0.99) < 1.0
    assert admitted <= 128


def test_a_request_that_is_never_finished_is_answered_with_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with live(create_service(run, open_to_all=True)) as url:
        port = int(url.rsplit(":", 1)[1])
        for sent in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf"):
            with dial(port, CLIENT) as slow:
                slow.sendall(sent)
                answer = b""
                while piece := slow.recv(4096):
                    answer += piece
                assert b" 408 " in answer
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.5)
        with dial(port, CLIENT) as kept:
            for _ in range(3):  # time runs for each request, not for the connection
                kept.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
                assert b" 200 " in kept.recv(4096)
                time.sleep(0.8)


def test_an_endless_head_is_cut_off(run: Path) -> None:
    with (
        live(create_service(run, open_to_all=True)) as url,
        dial(int(url.rsplit(":", 1)[1]), CLIENT) as endless,
    ):
        with contextlib.suppress(OSError):
            endless.sendall(b"GET /health HTTP/1.1\r\n")
            for number in range(2_000):
                endless.sendall(b"X-%d: %s\r\n" % (number, b"x" * 100))
        endless.settimeout(10)
        with contextlib.suppress(ConnectionError):
            assert endless.recv(4096) == b""


def test_connections_that_end_make_room_for_others(run: Path, tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls")
    secure = {"certificate": tmp_path / "tls" / "server.crt", "key": tmp_path / "tls" / "server.key"}
    trusted = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
    service = create_service(run, open_to_all=True)
    for options in ({}, secure):
        with live(service, per_address=2, **options) as url:
            port = int(url.rsplit(":", 1)[1])
            for _ in range(3):
                with dial(port, CLIENT), dial(port, CLIENT), dial(port, CLIENT) as third:
                    third.settimeout(10)
                    with contextlib.suppress(ConnectionError):
                        assert third.recv(1) == b""
                time.sleep(0.2)
            with contextlib.ExitStack() as stack:
                client = stack.enter_context(dial(port, CLIENT))
                if options:
                    client = stack.enter_context(trusted.wrap_socket(client, server_hostname="127.0.0.1"))
                client.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                answer = b""
                while piece := client.recv(4096):
                    answer += piece
                assert json.loads(answer.split(b"\r\n\r\n")[1])["status"] == "ok"


def test_a_doorkeeper_counts_by_address_and_in_all() -> None:
    keeper = Doorkeeper(per_address=2, connections=3)
    assert [keeper.admits(address) for address in "aaabb"] == [True, True, False, True, False]
    keeper.leaves("a")
    assert [keeper.admits(address) for address in "cc"] == [True, False]
    for address in "abc":
        keeper.leaves(address)
    assert [keeper.admits(address) for address in "cccab"] == [True, True, False, True, False]


def test_who_leaves_one_of_several_connections_is_still_counted_for_the_others() -> None:
    keeper = Doorkeeper(per_address=2, connections=9)
    assert [keeper.admits("a") for _ in range(2)] == [True, True]
    keeper.leaves("a")
    assert [keeper.admits("a") for _ in range(2)] == [True, False]
    keeper.leaves("a")
    keeper.leaves("a")
    assert list(keeper._open) == []  # of who has left altogether nothing is kept


def test_a_handshake_that_is_never_finished_ends(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.2)
    write_certificates(tmp_path / "tls")
    secure = {"certificate": tmp_path / "tls" / "server.crt", "key": tmp_path / "tls" / "server.key"}
    with (
        live(create_service(run, open_to_all=True), **secure) as url,
        dial(int(url.rsplit(":", 1)[1]), CLIENT) as silent,
    ):
        silent.settimeout(3)
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""


async def _app(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"o", "more_body": True})
    await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"k"})


class Fake:
    """A connection without any network, in a loop that runs."""

    def __init__(self) -> None:
        self.loop, self.transport, self.state = asyncio.get_running_loop(), Mock(), ServerState()
        self.transport.is_closing.return_value = False
        self.transport.get_extra_info.return_value = None
        config = uvicorn.Config(_app, log_level="warning", ws="none")  # type: ignore[arg-type]
        self.protocol = Requests(config, self.state, {}, self.loop)
        self.protocol.connection_made(self.transport)

    def left(self) -> float | None:
        timer = self.protocol._deadline
        return None if timer is None else round(timer.when() - self.loop.time(), 1)

    async def answered(self) -> None:
        for _ in range(500):
            await asyncio.sleep(0.002)
            if self.protocol.cycle.response_complete:
                return
        raise AssertionError("no answer")


def test_a_request_has_twelve_seconds_an_answer_sixty_and_silence_between_them_none() -> None:
    async def converse() -> None:
        fake = Fake()
        protocol = fake.protocol
        assert fake.left() == 12.0
        for _ in range(2):
            protocol.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")
            protocol.data_received(b"ab")
            assert fake.left() == 12.0
            protocol.data_received(b"cd")
            assert fake.left() == 60.0
            await fake.answered()
            assert fake.left() is None
        protocol.data_received(b"GET ")
        waiting = protocol._deadline
        assert waiting is not None
        assert fake.left() == 12.0
        protocol.connection_lost(None)
        assert waiting.cancelled()
        assert fake.left() is None
        assert fake.state.connections == set()

    asyncio.run(converse())


def test_requests_that_come_in_one_piece_are_answered_one_by_one_and_who_is_silent_then_is_let_go() -> None:
    async def converse() -> None:
        fake = Fake()
        fake.protocol.data_received(2 * b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert fake.protocol.timeout_keep_alive_task is None
        await fake.answered()
        written = b"".join(call.args[0] for call in fake.transport.write.call_args_list)
        assert written.count(b"HTTP/1.1 200") == 2
        assert fake.protocol.timeout_keep_alive_task is not None
        fake.protocol.connection_lost(None)

    asyncio.run(converse())


def test_a_head_has_a_size_in_every_request_of_a_connection_and_a_body_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_HEAD", 100)

    async def converse() -> None:
        fake = Fake()
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 600\r\nX-Long: "
        head += b"x" * (100 - len(head))
        for _ in range(2):
            fake.protocol.data_received(head)
            fake.protocol.data_received(b"\r\n\r\n" + bytes(150))
            fake.protocol.data_received(bytes(300))
            fake.protocol.data_received(bytes(150))
            await fake.answered()
        assert not fake.transport.abort.called
        fake.protocol.data_received(head + b"x")
        assert fake.transport.abort.called
        fake.protocol.connection_lost(None)

    asyncio.run(converse())


def test_who_is_late_is_told_so_unless_an_answer_is_under_way() -> None:
    protocol = Requests.__new__(Requests)
    for cycle, told in (
        (None, True),
        (Mock(response_complete=True), True),
        (Mock(response_complete=False), False),
    ):
        protocol.cycle, protocol.transport = cycle, Mock()  # type: ignore[assignment]
        protocol._expired()
        assert protocol.transport.write.called == told  # type: ignore[attr-defined]
        assert protocol.transport.close.called == told  # type: ignore[attr-defined]
        assert protocol.transport.abort.called != told  # type: ignore[attr-defined]


def test_the_limits_are_those_of_the_documentation_and_no_address_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (connections.HANDSHAKE_SECONDS, connections.REQUEST_SECONDS, connections.ANSWER_SECONDS) == (
        5,
        12,
        60,
    )
    assert (connections.IDLE_SECONDS, connections.MOST_HEAD) == (30, 32_768)
    keepers, files = Mock(), list[int]()
    monkeypatch.setattr(connections, "Doorkeeper", keepers)
    monkeypatch.setattr(connections, "_allow_files", files.append)
    plain = configure(FastAPI(), host="127.0.0.1", port=1)
    keepers.assert_called_with(128, 2048)
    proxied = configure(FastAPI(), host="127.0.0.1", port=1, behind_proxy=True)
    keepers.assert_called_with(2048, 2048)
    assert files == [2048 + 256] * 2
    assert (plain.proxy_headers, proxied.proxy_headers) == (False, True)
    assert not plain.access_log
    assert plain.timeout_keep_alive == 30


def test_a_certificate_that_is_none_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls")
    right, wrong = tmp_path / "tls" / "server.crt", tmp_path / "tls" / "ca.crt"
    with pytest.raises(SottovoceError, match="not a certificate and its key"):
        configure(FastAPI(), host="127.0.0.1", port=1, certificate=right, key=wrong)


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 4096, 2304),
        (1024, 2000, 2000),
        (1024, resource.RLIM_INFINITY, 2304),
        (2304, 4096, None),
        (4096, 4096, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_as_many_files_may_be_open_as_connections_need_if_the_system_allows(
    soft: int, hard: int, then: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: set_to.append((what, limits)))
    connections._allow_files(2304)
    assert set_to == ([] if then is None else [(resource.RLIMIT_NOFILE, (then, hard))])
