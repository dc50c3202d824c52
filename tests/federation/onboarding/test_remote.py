"""A service as a future client reaches it."""

from __future__ import annotations

import email.message
import http.client
import http.server
import io
import json
import ssl
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import BUCKET, SpecificationError, remote
from sottovoce.federation.onboarding.remote import Connection, OnboardingError, Service, onboard
from sottovoce.federation.onboarding.service import create_service
from sottovoce.federation.sealing import pad
from sottovoce.machine.tokens import new_token
from sottovoce.models.tensors import HomeModel
from sottovoce.personal import PersonalModel
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.kind import Release
from sottovoce.run.training import train
from tests.federation.world import World
from tests.run.test_folder import planned, sites

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


def test_a_service_that_states_something_else_than_its_plan_means_is_not_used(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        connection = Connection(url)
        stated = json.loads(connection.get("/v1/specification"))
    asked: list[str] = []

    class Other(Connection):
        def get(self, path: str) -> bytes:
            asked.append(path)
            return json.dumps({**stated, "coefficients": stated["coefficients"] + 1}).encode()

    with pytest.raises(SpecificationError, match="nothing was released"):
        Service(Other(url))
    assert asked == ["/v1/specification"]


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
        "https://ex\x01mple.org",
        "https://exämple.org",
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


def newcomer(folder: Path, *, labels: bool) -> Path:
    """A table of sixty records, with or without what is to be predicted."""
    rng = np.random.default_rng(3)
    rows = ["a,b,ill" if labels else "a,b"]
    for a, b in rng.normal(size=(60, 2)):
        rows.append(f"{a:.3f},{b:.3f}" + (f",{'yes' if a + b > 0 else 'no'}" if labels else ""))
    folder.mkdir()
    (folder / "east.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "east.csv"


def test_labels_of_a_newcomer_enter_its_home_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(sites(tmp_path / "sites"), context="shares", context_records=16, context_share=0.1)
    train(plan, tmp_path / "run")
    drawn = Release.encode

    def seeded(self: Release, u: np.ndarray, **said: Any) -> bytes:
        return drawn(self, u, **{**said, "seed": 7})  # one noise for both, to compare by bytes

    monkeypatch.setattr(Release, "encode", seeded)
    published = []
    with live(create_service(tmp_path / "run", open_to_all=True)) as url:
        for labels in (False, True):
            source = newcomer(tmp_path / f"labels-{labels}", labels=labels)
            answer = onboard(url, source, source.with_name("model.safetensors"), finish=labels)
            published.append(source.with_name("model.safetensors").read_bytes())
            assert ("home" in answer) is labels
    assert published[0] == published[1]
    home = tmp_path / "labels-True" / "model.home.safetensors"
    assert home.stat().st_mode & 0o777 == 0o600
    assert PersonalModel.read(home, home=True).home
    with pytest.raises(HomeModel):
        PersonalModel.read(home)
    assert answer["home"]["rows"]["finished"]["loss"] < answer["home"]["rows"]["constant"]["loss"]
    with Ledger.open(tmp_path / "labels-True" / "east.ledger.sqlite", scope=None) as book:
        assert [entry.charge.kind for entry in book.charges()] == ["context"]
    bare = tmp_path / "labels-False" / "east.csv"
    with live(create_service(tmp_path / "run", open_to_all=True)) as url, pytest.raises(SottovoceError):
        onboard(url, bare, bare.with_name("again.safetensors"), finish=True)
    assert not (tmp_path / "labels-False" / "again.home.safetensors").exists()


class Opener:
    """Answers with what it is given, one by one, and remembers what it was asked and with which patience."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers, self.requests, self.timeouts = (
            list(answers),
            list[urllib.request.Request](),
            set[float](),
        )

    def open(self, request: urllib.request.Request, timeout: float) -> io.BytesIO:
        self.requests.append(request)
        self.timeouts.add(timeout)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)


def refusal(code: int, body: bytes = b'{"error": "why"}') -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://h", code, "Reason", email.message.Message(), io.BytesIO(body))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", seconds.append)
    return seconds


def connected(opener: Opener, monkeypatch: pytest.MonkeyPatch, tries: int = 3) -> Connection:
    monkeypatch.setattr(remote, "TRIES", tries)
    connection = Connection("http://127.0.0.1:9/", "secret")
    connection._opener = opener  # type: ignore[assignment]
    return connection


def test_a_busy_or_silent_service_is_asked_again_after_longer_and_longer_pauses(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [refusal(code) for code in (503, 429, 502, 504)]
    failures += [urllib.error.URLError(OSError("gone"))]
    failures += [ConnectionResetError("reset"), http.client.IncompleteRead(b""), TimeoutError()]
    opener = Opener(*failures, b"answer")
    assert connected(opener, monkeypatch, tries=9).get("/v1/x") == b"answer"
    assert slept == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert opener.timeouts == {30.0}


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (lambda: refusal(503), r"refused \(503\): why"),
        (lambda: refusal(429, b"not JSON"), r"refused \(429\): Reason"),
        (lambda: urllib.error.URLError(OSError("gone")), "cannot reach http://127.0.0.1:9: gone"),
        (lambda: ConnectionResetError("reset"), "connection to http://127.0.0.1:9 broke"),
        (lambda: http.client.BadStatusLine("?"), "connection to http://127.0.0.1:9 broke"),
    ],
)
def test_after_the_last_try_the_reason_is_told(
    failure: Callable[[], Exception], said: str, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = Opener(failure(), failure(), failure(), b"too late")
    with pytest.raises(OnboardingError, match=said):
        connected(opener, monkeypatch).get("/v1/x")
    assert len(opener.requests) == 3
    assert len(slept) == 2


@pytest.mark.parametrize("code", [400, 401, 404, 409, 413, 422, 428, 430, 500, 501, 505])
def test_a_refusal_that_will_not_change_is_told_at_once(
    code: int, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OnboardingError, match=rf"refused \({code}\): why"):
        connected(Opener(refusal(code), b"x"), monkeypatch).get("/v1/x")
    assert slept == []


def test_a_certificate_that_is_not_trusted_is_told_at_once(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ssl.SSLCertVerificationError("bad")
    error.verify_message = "self-signed"
    with pytest.raises(OnboardingError, match="not trusted: self-signed"):
        connected(Opener(urllib.error.URLError(error), b"x"), monkeypatch).get("/v1/x")
    assert slept == []


def test_an_answer_may_be_as_long_as_is_said_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connected(Opener(bytes(10), bytes(11)), monkeypatch)
    assert connection.most == 2**20
    connection.most = 10
    assert connection.get("/v1/x") == bytes(10)
    with pytest.raises(OnboardingError, match="more than 10 bytes"):
        connection.get("/v1/x")


def test_what_is_asked_and_sent_goes_to_the_service_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    opener = Opener(b"", b"", b"")
    connection = connected(opener, monkeypatch)
    connection.get("/v1/x")
    connection.post("/v1/y", b"body", {"Sottovoce-Version": "3"})
    got, posted = opener.requests
    assert (got.full_url, got.data, got.headers) == (
        "http://127.0.0.1:9/v1/x",
        None,
        {"Authorization": "Bearer secret"},
    )
    assert (posted.full_url, posted.data) == ("http://127.0.0.1:9/v1/y", b"body")
    assert posted.headers["Content-type"] == "application/octet-stream"
    assert posted.headers["Sottovoce-version"] == "3"
    stranger = Connection("http://127.0.0.1:9")
    stranger._opener = opener  # type: ignore[assignment]
    stranger.get("/v1/x")
    assert opener.requests[-1].headers == {}


@pytest.mark.parametrize("token", ["naïve", "two\nlines", "tab\t"])
def test_a_token_of_other_characters_is_refused(token: str) -> None:
    with pytest.raises(OnboardingError, match="not a token"):
        Connection("http://127.0.0.1:9", token)


def test_an_answer_has_room_for_all_coefficients_of_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        connection = Connection(url)
        monkeypatch.setattr(remote, "MOST_TEXT", 10)
        service = Service(connection)
    assert connection.most == 4 * service.blueprint.coefficients == 1024
    monkeypatch.setattr(remote, "MOST_TEXT", 10**6)
    assert service.context_model() is None


def test_coefficients_behind_contexts_are_asked_for_where_contexts_need_them(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        service = Service(Connection(url))
    sent = struct.pack("<256f", *range(256))
    opener = Opener(sent)
    service._connection._opener = opener  # type: ignore[assignment]
    uses = SimpleNamespace(context_traits=SimpleNamespace(future_uses_model=True))
    service.blueprint = SimpleNamespace(plan=uses, coefficients=256)  # type: ignore[assignment]
    model = service.context_model()
    assert model is not None
    assert model.tolist() == list(range(256))
    assert opener.requests[0].full_url.endswith("/v1/context-model")
