"""One address cannot keep another out, however many requests it begins."""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sottovoce.onboarding import connections
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
        with dial(port, CLIENT) as kept:
            for _ in range(2):  # time runs for each request, not for the connection
                kept.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
                assert b" 200 " in kept.recv(4096)
                time.sleep(0.4)


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
