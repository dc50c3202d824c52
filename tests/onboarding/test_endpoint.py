"""The one address that contexts are sent to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from sottovoce.errors import SottovoceError
from sottovoce.onboarding import endpoint
from sottovoce.onboarding.contexts import SecondContext
from sottovoce.onboarding.endpoint import COEFFICIENTS, MODEL, Endpoint
from sottovoce.onboarding.gate import Gate, Limits
from sottovoce.onboarding.metrics import Metrics
from sottovoce.onboarding.server import Answer, Request
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.tokens import Tokens, new_token

from .live import live
from .web import headers, post


def test_a_client_that_stalls_does_not_keep_its_place(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_SECONDS", 0.2)
    with live(create_service(run, Limits(waiting=1), open_to_all=True)) as url:
        lines = ["POST /v1/onboard HTTP/1.1", "Host: here", "Content-Length: 100"]
        lines += [f"{name}: {value}" for name, value in headers(url, "").items()]
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=20) as slow:
            slow.sendall("\r\n".join([*lines, "", "too little"]).encode())
            assert b" 408 " in slow.recv(4096)
        assert post(url, bytes(64), headers(url, ""))[0] == 422


def test_a_request_of_another_version_or_run_is_refused_before_its_body_is_read(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        good = headers(url, "")
        status, answer = post(url, bytes(64), {**good, "Sottovoce-Version": "99"})
        assert status == 400
        assert "update your client" in json.loads(answer)["error"]
        status, answer = post(url, bytes(64), {**good, "Sottovoce-Specification": "another"})
        assert status == 409
        assert "fetch it again" in json.loads(answer)["error"]
        assert post(url, bytes(10**6), good)[0] == 413


class Told:
    """An endpoint before a server that notes what it is asked, without any network."""

    def __init__(self, folder: Path, answers: list[Answer | Exception] | None = None, **limits: int) -> None:
        self.asked: list[Request] = []
        self.places: list[int] = []
        self.sent: list[dict[str, Any]] = []
        self.answers = answers if answers is not None else [Answer(b"model", False)]
        self.metrics = Metrics()
        self.token = new_token(folder, "alice")
        self.gate = Gate(Limits(**limits), Tokens(folder), open_to_all=False)
        self.client: tuple[str, int] | None = ("10.0.0.1", 1)

    def answer(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        self.asked += requests
        self.places.append(self.gate.waiting)
        if self.answers == []:
            raise OSError("the disk is gone")
        return self.answers

    def ask(self, *messages: dict[str, Any], **headers: str) -> None:
        """Sends one request, whose messages come in this order."""
        arriving = iter(messages)
        said = {"authorization": f"Bearer {self.token}", "sottovoce-version": "2"}
        said = {**said, "sottovoce-specification": "digest", **headers}

        async def receive() -> dict[str, Any]:
            return next(arriving)

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        async def converse() -> None:
            server = SimpleNamespace(largest_body=100, answer=self.answer)
            door = Endpoint(server, self.gate, self.metrics, "digest")  # type: ignore[arg-type]
            named = [(name.replace("_", "-").encode(), value.encode()) for name, value in said.items()]
            try:
                await door({"headers": named, "client": self.client}, receive, send)  # type: ignore[arg-type]
            finally:
                door.close()
            with pytest.raises(RuntimeError, match="shutdown"):
                await door._batches.ask(Request("late", b""))

        asyncio.run(converse())

    def refused(self, *messages: dict[str, Any], **headers: str) -> int:
        with pytest.raises(HTTPException) as refused:
            self.ask(*messages, **headers)
        status = refused.value.status_code
        assert f'status="{status}"' in self.metrics.text(waiting=0)
        assert self.sent == []
        return status


def test_a_context_in_pieces_is_put_together_and_answered_with_what_was_asked_for(tmp_path: Path) -> None:
    told = Told(tmp_path, [Answer(b"model", True)])
    pieces = [{"type": "http.request", "body": bytes(60), "more_body": True}]
    pieces += [{"type": "http.request", "more_body": True}, {"type": "http.request", "body": bytes(40)}]
    told.ask(*pieces)
    start, body = told.sent
    assert start["status"] == 200
    assert dict(start["headers"]) == {b"content-type": COEFFICIENTS, b"content-length": b"5"}
    assert body["body"] == b"model"
    told.ask(*pieces, accept="text/html, application/safetensors")
    assert dict(told.sent[2]["headers"])[b"content-type"] == MODEL
    assert told.asked == [Request("alice", bytes(100), False), Request("alice", bytes(100), True)]
    counted = told.metrics.text(waiting=0)
    assert 'status="200"} 2' in counted
    assert "retries_total 2" in counted
    [seconds] = [float(line.split()[1]) for line in counted.splitlines() if "seconds_sum" in line]
    assert 0 < seconds < 10


def test_without_tokens_the_key_in_the_body_says_who_it_is(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.gate = Gate(Limits(), Tokens(tmp_path), open_to_all=True)
    told.client = None
    told.ask({"type": "http.request", "body": bytes(range(64))})
    assert told.asked[0].client == bytes(range(32)).hex()


def test_what_is_refused_is_not_read_and_counted_with_its_status(tmp_path: Path) -> None:
    told = Told(tmp_path)
    assert told.refused(authorization="Bearer wrong") == 401
    assert told.refused(sottovoce_version="1") == 400
    assert told.refused(sottovoce_specification="other") == 409
    whole = {"type": "http.request", "body": bytes(101)}
    assert told.refused(whole) == 413
    assert told.refused({**whole, "body": bytes(9), "more_body": True}, {"type": "http.disconnect"}) == 408
    assert told.asked == []


def test_a_request_that_finds_no_place_is_shed_before_its_body_is_read(tmp_path: Path) -> None:
    told = Told(tmp_path, waiting=1)
    with told.gate:
        assert told.refused() == 503
    told.client = None
    told.ask({"type": "http.request", "body": b"x"})
    assert told.places == [1]  # while it was answered
    assert told.gate.waiting == 0


def test_a_second_context_a_bad_one_and_a_failure_are_told_apart(tmp_path: Path) -> None:
    message = {"type": "http.request", "body": b"x"}
    told = Told(tmp_path, [SecondContext("again")])
    assert told.refused(message) == 409
    told.answers = [SottovoceError("no context")]
    assert told.refused(message) == 422
    told.answers = []
    with pytest.raises(OSError, match="disk"):
        told.ask(message)
    assert 'status="500"' in told.metrics.text(waiting=0)


def test_a_body_has_ten_seconds() -> None:
    assert endpoint.BODY_SECONDS == 10.0
