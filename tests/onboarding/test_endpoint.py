"""The one address that contexts are sent to."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sottovoce.onboarding import endpoint
from sottovoce.onboarding.gate import Limits
from sottovoce.onboarding.service import create_service

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
