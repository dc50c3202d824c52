"""What the network can do to an onboarding service that stands behind nginx as the deployment page says.

Real nginx with the shipped configuration, the real command, TLS. Attackers have the CA certificate and
addresses of their own (127.0.0.2 and so on), and no token. Time limits are for hangs.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sottovoce.federation.onboarding import remote
from sottovoce.federation.onboarding.remote import onboard
from sottovoce.machine.tokens import new_token
from tests.federation.processes import Processes, free_port, nginx
from tests.federation.world import World

from .test_service import metrics
from .web import get, headers

pytestmark = pytest.mark.slow

CLIENT = "127.0.0.1"
HALF_OPEN = 2_000


class Door:
    """The documented server: a service on loopback, and nginx before it."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.port = processes, processes.onboarding_port
        self.url = f"https://127.0.0.1:{self.port}"
        self.service = f"http://127.0.0.1:{processes.service_port}"
        self.authority = processes.folder / "tls" / "ca.crt"
        self._trusted = ssl.create_default_context(cafile=self.authority)

    def token(self, name: str) -> str:
        return new_token(self.processes.folder / "run", name)

    def dial(self, source: str = CLIENT, port: int | None = None) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.port), 120, (source, 0))

    def connect(self, source: str = CLIENT, port: int | None = None) -> ssl.SSLSocket:
        return self._trusted.wrap_socket(self.dial(source, port), server_hostname="127.0.0.1")

    def ask(self, request: str, source: str = CLIENT, body: bytes = b"") -> bytes:
        """Everything that is answered to one request on a connection of its own."""
        with self.connect(source) as line:
            line.sendall(f"{request}\r\nConnection: close\r\n\r\n".encode() + body)
            return heard(line)

    def statuses(self, requests: list[str], source: str) -> Counter[int]:
        """Statuses of requests that are sent at once."""
        *first, last = requests
        text = "\r\n\r\n".join([*first, f"{last}\r\nConnection: close\r\n\r\n"])
        with self.connect(source) as line:
            threading.Thread(target=line.sendall, args=[text.encode()], daemon=True).start()
            return Counter(int(code) for code in re.findall(rb"HTTP/1.1 (\d+)", heard(line)))


def heard(line: socket.socket) -> bytes:
    """What comes until the other end has ended the connection."""
    said = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := line.recv(65536):
            said += part
    return said


@pytest.fixture(scope="module")
def door(finished: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("onboarding-door")
    shutil.copytree(finished.folder / "run", folder / "run")
    with Processes(folder, tls=True) as processes:
        door = Door(processes)
        door.token("first")
        processes.start_service()
        processes.start_proxy()
        yield door


def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HALF_OPEN + 500
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"this test needs {wanted} open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


SPECIFICATION = "GET /v1/specification HTTP/1.1\r\nHost: h"
FORBIDDEN = "GET /v1/onboard HTTP/1.1\r\nHost: h"
"""Is answered by nginx itself, and counted."""
HALF_SENT = b"POST /v1/onboard HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nhalf"


def test_a_client_gets_its_model_through_the_proxy_and_its_bytes_are_kept_nowhere(
    door: Door, records: Path
) -> None:
    token, out = door.token("alice"), records.with_name("one")
    found = onboard(door.url, records, out, token=token, authority=door.authority)
    assert out.exists()
    assert found["epsilon"] > 0
    files = [path.name for path in (door.processes.folder / "proxy").rglob("*") if path.is_file()]
    assert files == ["nginx.pid"]
    assert door.processes.log("proxy") == door.processes.log("service") == ""


def test_two_thousand_half_open_connections_of_one_address_leave_another_its_answers(door: Door) -> None:
    many_files()
    with contextlib.ExitStack() as crowd:
        lines = [crowd.enter_context(door.dial("127.0.0.2")) for _ in range(HALF_OPEN)]
        for line in lines:
            line.sendall(b"\x16\x03")  # the first bytes of a TLS greeting
        assert b" 200 " in door.ask(SPECIFICATION)
        lines[-1].setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has ended it: it was held meanwhile
            lines[-1].recv(1)
        for _ in range(50):
            assert b" 200 " in door.ask(SPECIFICATION)


def test_one_address_holds_at_most_128_requests_and_takes_no_place_of_another(
    door: Door, tmp_path: Path
) -> None:
    """Rates are lifted here, so that connections are what is counted."""
    port, configuration = free_port(), (door.processes.folder / "nginx.conf").read_text()
    for documented, ours in (
        (f":{door.port} ", f":{port} "),
        ("rate=20r/s", "rate=100000r/s"),
        ("burst=100 ", "burst=100000 "),
    ):
        assert documented in configuration
        configuration = configuration.replace(documented, ours)
    superlink = rf"listen 127.0.0.1:(?!{port} )\d+"  # and the live page
    configuration = re.sub(superlink, lambda _: f"listen 127.0.0.1:{free_port()}", configuration)
    (door.processes.folder / "loose.conf").write_text(configuration)
    (tmp_path / "loose").mkdir()
    door.processes.start(
        "loose",
        nginx(),
        "-e",
        "stderr",
        *("-p", str(tmp_path / "loose")),
        "-c",
        f"{door.processes.folder}/loose.conf",
    )
    door.processes.wait_for_port(port)
    with contextlib.ExitStack() as crowd:
        lines = [crowd.enter_context(door.connect("127.0.0.3", port)) for _ in range(200)]
        for line in lines:
            line.sendall(HALF_SENT)
        refused = 0
        for line in lines:
            line.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                refused += b" 429 " in line.recv(4096)
        assert 200 - refused <= 128
        with door.connect(CLIENT, port) as line:
            line.sendall(f"{SPECIFICATION}\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 " in heard(line)
    door.processes.kill("loose")


def test_slow_senders_hold_no_place_of_the_service(door: Door, records: Path) -> None:
    token = door.token("patient")
    stated = "\r\n".join(f"{name}: {value}" for name, value in headers(door.service, token).items())
    with contextlib.ExitStack() as crowd:
        for _ in range(90):  # of an address that has tokens for a hundred
            line = crowd.enter_context(door.connect("127.0.0.4"))
            line.sendall(HALF_SENT.replace(b"Host: h", f"Host: h\r\n{stated}".encode()))
        assert metrics(door.service)["sottovoce_onboarding_waiting"] == 0
        mine = door.token("quick")
        onboard(door.url, records, records.with_name("one"), token=mine, authority=door.authority)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "greeting"])
def test_who_never_greets_is_cut_off(door: Door, sent: bytes) -> None:
    with door.dial("127.0.0.5") as line:
        line.sendall(sent)
        assert heard(line) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /v1/speci", HALF_SENT], ids=["nothing", "head", "body"])
def test_a_request_that_is_never_finished_is_cut_off(door: Door, sent: bytes) -> None:
    with door.connect("127.0.0.6") as line:
        line.sendall(sent)
        assert b" 200 " not in heard(line)


def test_an_endless_head_is_cut_off(door: Door) -> None:
    with door.connect("127.0.0.7") as line:
        with contextlib.suppress(OSError):
            line.sendall(b"GET /v1/specification HTTP/1.1\r\nHost: h\r\n")
            for number in range(2_000):
                line.sendall(b"X-%d: %s\r\n" % (number, b"x" * 100))
        assert b" 200 " not in heard(line)


def test_a_body_of_more_than_64_kilobytes_reaches_the_service_neither_stated_nor_in_pieces(
    door: Door,
) -> None:
    before = metrics(door.service)
    head = "POST /v1/onboard HTTP/1.1\r\nHost: h"
    assert b" 413 " in door.ask(f"{head}\r\nContent-Length: 65537", "127.0.0.8")
    pieces = 2 * (b"8001\r\n" + bytes(0x8001) + b"\r\n")  # and never ends
    assert b" 413 " in door.ask(f"{head}\r\nTransfer-Encoding: chunked", "127.0.0.8", pieces)
    counted = "sottovoce_onboarding_request_seconds_count"
    assert metrics(door.service)[counted] == before[counted]


def test_a_body_that_is_longer_than_a_context_is_refused_with_the_size_that_it_may_have(door: Door) -> None:
    stated = headers(door.service, door.token("large"))
    lines = [f"{name}: {value}" for name, value in stated.items()]
    request = "\r\n".join(["POST /v1/onboard HTTP/1.1\r\nHost: h", *lines, "Content-Length: 60000"])
    answer = door.ask(request, "127.0.0.9", bytes(60000))
    assert b" 413 " in answer
    assert b"a context of this run has at most" in answer


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
        "/v1/",
        "/v1/access/",
        "/v1/access/../metrics",
        "/v1/access/../../metrics",
        "/v1/%2e%2e/metrics",
        "/v1/onboard%2f..%2f..%2fmetrics",
        "//metrics",
        "/V1/ACCESS",
        "/v1/fleet/get-run",
    ],
)
def test_the_network_sees_four_paths_and_no_other(door: Door, path: str) -> None:
    for method in ("GET", "POST"):
        answer = door.ask(f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0", "127.0.0.10")
        assert b" 404 " in answer
        assert b"sottovoce" not in answer


def test_other_methods_are_refused(door: Door) -> None:
    for request in ("GET /v1/onboard", "DELETE /v1/onboard", "POST /v1/specification", "PUT /v1/access"):
        answer = door.ask(f"{request} HTTP/1.1\r\nHost: h\r\nContent-Length: 0", "127.0.0.11")
        assert b" 403 " in answer, request


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1"])
def test_whatever_name_is_asked_for_the_service_hears_its_own(door: Door, host: str) -> None:
    answer = door.ask(f"GET /v1/specification HTTP/1.1\r\nHost: {host}", "127.0.0.12")
    assert b" 200 " in answer
    assert host.encode() not in answer


def test_one_token_is_answered_ten_times_at_once_and_disturbs_no_other(door: Door) -> None:
    alice, bob = door.token("eager"), door.token("modest")
    asked = door.statuses([f"{FORBIDDEN}\r\nAuthorization: Bearer {alice}"] * 90, "127.0.0.13")
    assert asked[429] > 0
    assert asked[403] >= 11
    access = f"GET /v1/access HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {bob}"
    assert b" 200 " in door.ask(access, "127.0.0.13")


def test_one_address_is_answered_a_hundred_times_at_once_and_disturbs_no_other(door: Door) -> None:
    asked = door.statuses([FORBIDDEN] * 900, "127.0.0.14")
    assert asked[429] > 0
    assert asked[403] >= 101
    assert b" 200 " in door.ask(SPECIFICATION, "127.0.0.15")


def test_a_request_hidden_in_anothers_body_is_not_answered(door: Door) -> None:
    hidden = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for framing in (
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (len(hidden) + 5),
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden),
    ):
        with door.connect("127.0.0.16") as line:
            line.sendall(b"POST /v1/onboard HTTP/1.1\r\nHost: x\r\n" + framing + hidden)
            answer = heard(line)
        assert b" 200 " not in answer
        assert b"sottovoce_onboarding" not in answer


def test_who_asks_while_the_service_is_started_again_gets_the_model_when_it_is_back(
    door: Door, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TRIES", 60)
    door.processes.kill("service")
    assert b" 502 " in door.ask(SPECIFICATION)
    starting = threading.Thread(target=lambda: (time.sleep(1), door.processes.start_service()))
    starting.start()
    token, out = door.token("late"), records.with_name("one")
    onboard(door.url, records, out, token=token, authority=door.authority)
    starting.join()
    assert json.loads(get(f"{door.service}/health"))["status"] == "ok"


def test_after_all_of_this_the_logs_hold_no_token_and_no_body(door: Door) -> None:
    for name in ("proxy", "service"):
        text = door.processes.log(name)
        assert "Bearer" not in text
        assert "half" not in text
        assert "limiting" not in text  # whoever comes too often fills no log
