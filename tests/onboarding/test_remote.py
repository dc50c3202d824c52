"""A service as a future client reaches it."""

from __future__ import annotations

import http.server
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sottovoce.federation.padding import pad
from sottovoce.onboarding import remote
from sottovoce.onboarding.remote import Connection, OnboardingError, onboard
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.specification import BUCKET
from sottovoce.onboarding.tokens import new_token
from tests.federation.world import World

from .live import live
from .web import headers, post


def test_a_wrong_token_is_refused_before_anything_is_charged(run: Path, records: Path) -> None:
    new_token(run, "alice")
    with live(create_service(run)) as url:
        with pytest.raises(OnboardingError, match="no such token"):
            onboard(url, records, records.with_name("one"), token="guess")
        assert post(url, bytes(64), headers(url, "guess"))[0] == 401
    assert not records.with_suffix(".ledger.sqlite").exists()


def test_records_do_not_travel_unencrypted(records: Path) -> None:
    with pytest.raises(OnboardingError, match="not encrypted"):
        onboard("http://example.org", records, records.with_name("one"))


@pytest.mark.parametrize("body", [b"", bytes(4), struct.pack("<256f", *[float("nan")] * 256)], ids=len)
def test_coefficients_of_another_size_or_not_finite_make_no_model(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        monkeypatch.setattr(remote.Connection, "post", lambda *_: body)
        with pytest.raises(OnboardingError, match="no model written"):
            onboard(url, records, records.with_name("one"))
    assert not records.with_name("one").exists()


def test_a_service_that_is_not_there_or_not_one_is_named_before_anything_is_charged(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OnboardingError, match="cannot reach"):
        onboard("http://127.0.0.1:9", records, records.with_name("one"))
    monkeypatch.setattr(remote.Connection, "get", lambda *_: b"<html>")
    with pytest.raises(OnboardingError, match="not an onboarding service"):
        onboard("http://127.0.0.1:9", records, records.with_name("one"))
    assert not records.with_suffix(".ledger.sqlite").exists()


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(OnboardingError, match="certificate of an authority"):
        remote.Connection("https://example.org", authority=tmp_path / "ca.crt")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TRIES", 1)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://127.0.0.1@evil.example",
        "http://localhost:8443@evil.example",
        "https://127.0.0.1@evil.example",
        "http://evil.example",
        "http://127.0.0.1\\@evil.example",
        "http://127.0.0.1#@evil.example",
        "http://127.0.0.1?@evil.example",
        "https://",
        "https://example.org:99999999",
        "https://example.org/?a=b",
        "ftp://127.0.0.1",
        "file:///etc/passwd",
        "localhost:8443",
        "http://127.0.0.1\n.evil.example",
        "",
    ],
)
def test_what_is_not_a_url_of_this_machine_or_encrypted_is_refused(url: str) -> None:
    with pytest.raises(OnboardingError):
        Connection(url, "secret")


@pytest.mark.parametrize(
    "url",
    ["https://example.org", "https://[::1]:8443/", "http://127.0.0.1:80", "http://localhost", "http://[::1]"],
)
def test_what_is_encrypted_or_of_this_machine_is_taken(url: str) -> None:
    Connection(url, "secret")


class Answers(http.server.BaseHTTPRequestHandler):
    """Says what it is told to say, and remembers what it heard."""

    location = ""
    heard: list[str | None]

    def do_GET(self) -> None:
        self.heard.append(self.headers["Authorization"])
        if self.location:
            self.send_response(302)
            self.send_header("Location", self.location)
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 4_000_000)

    do_POST = do_GET

    def log_message(self, *unused: object) -> None: ...


@contextmanager
def answering(location: str) -> Iterator[tuple[str, list[str | None]]]:
    heard: list[str | None] = []
    handler = type("Handler", (Answers,), {"location": location, "heard": heard})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()


def test_a_redirect_is_refused_and_the_token_does_not_travel() -> None:
    with answering("") as (elsewhere, stolen), answering(f"{elsewhere}/v1/x") as (url, heard):
        connection = Connection(url, "secret")
        for ask in (lambda: connection.get("/v1/x"), lambda: connection.post("/v1/x", b"context", {})):
            with pytest.raises(OnboardingError, match="sends us elsewhere"):
                ask()
    assert heard == ["Bearer secret"] * 2
    assert stolen == []


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    with answering("") as (url, _), pytest.raises(OnboardingError, match="more than"):
        Connection(url).get("/v1/specification")


def test_unencrypted_words_pass_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering("") as (url, _), answering("") as (proxy, heard):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(OnboardingError, match="more than"):
            Connection(url, "secret").get("/v1/access")
    assert heard == []


def test_contexts_travel_in_messages_of_one_length(
    run: Path, finished: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []

    class Spy(Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            bodies.append(body)
            return super().post(path, body, headers)

    monkeypatch.setattr(remote, "Connection", Spy)
    records = tmp_path / "mine.npz"
    records.write_bytes((finished.folder / "clients" / "future-0.npz").read_bytes())
    with live(create_service(run, open_to_all=True)) as url:
        onboard(url, records, tmp_path / "model")
    assert (len(bodies[0]) - 32) % BUCKET == 0
    assert len({len(pad(bytes(length), BUCKET)) for length in range(0, BUCKET - 4)}) == 1
