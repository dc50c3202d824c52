"""Onboarding over HTTP: what a future client gets, pays and is refused."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save

from sottovoce.errors import SottovoceError
from sottovoce.onboarding import service
from sottovoce.onboarding.endpoint import Endpoint
from sottovoce.onboarding.gate import Limits
from sottovoce.onboarding.remote import onboard
from sottovoce.onboarding.server import CONTEXTS_FILE, Onboarding, Request
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.tokens import new_token

from .live import live
from .web import get, headers, post


def test_damaged_foreign_and_oversized_bodies_are_refused_and_not_stored(
    run: Path, records: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = new_token(run, "alice")
    with live(create_service(run, Limits(per_second=100, burst=100))) as url:
        good = headers(url, token)
        for body, status in ((b"", 422), (bytes(32), 422), (bytes(100), 422), (bytes(10**6), 413)):
            code, answer = post(url, body, good)
            assert code == status, answer
            assert json.loads(answer)["error"]
        assert post(url, bytes(64), {**good, "Sottovoce-Version": "1"})[0] == 400
        assert post(url, bytes(64), {**good, "Sottovoce-Specification": "0" * 32})[0] == 409
        assert post(url, bytes(64), {**good, "Authorization": "Bearer wrong"})[0] == 401
        for reason in ("(413): a context", "(400): this service speaks", "(409): your", "(401): no such"):
            assert reason in caplog.text
        with sqlite3.connect(run / CONTEXTS_FILE) as contexts:
            assert contexts.execute("SELECT COUNT(*) FROM context").fetchone() == (0,)
        onboard(url, records, records.with_name("one"), token=token)


def test_refusals_do_not_fill_the_log(
    run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOGGED_PER_SECOND", 0.001)
    monkeypatch.setattr(service, "LOGGED_AT_ONCE", 3)
    with live(create_service(run, open_to_all=True)) as url:
        for _ in range(10):
            post(url, b"", headers(url, ""))
        assert b'sottovoce_requests_total{status="422"} 10' in get(f"{url}/metrics")
    assert caplog.text.count("(422)") == 3


def test_one_client_cannot_ask_too_often(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = new_token(run, "alice")
    with live(create_service(run, Limits(per_second=0.01, burst=2))) as url:
        good = headers(url, token)
        statuses = [post(url, bytes(64), good)[0] for _ in range(3)]
    assert statuses == [422, 422, 429]
    assert "(422)" in caplog.text
    assert "(429)" not in caplog.text  # what is shed is counted and not logged


def test_more_requests_than_can_wait_are_shed_and_the_service_recovers(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, honest = threading.Event(), Onboarding.answer

    def slowly(onboarding: Onboarding, requests: Sequence[Request]) -> object:
        release.wait(10)
        return honest(onboarding, requests)

    monkeypatch.setattr(Onboarding, "answer", slowly)
    with live(create_service(run, Limits(waiting=2), open_to_all=True)) as url:
        good, statuses = headers(url, ""), Counter[int]()
        threads = [
            threading.Thread(target=lambda i=i: statuses.update([post(url, bytes([i] * 64), good)[0]]))
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for _ in range(200):
            if statuses[503] == 4:
                break
            threading.Event().wait(0.02)
        release.set()
        for thread in threads:
            thread.join()
        assert statuses == {503: 4, 422: 2}
        onboard(url, records, records.with_name("one"))


def test_nobody_serves_without_tokens_by_accident(run: Path) -> None:
    with pytest.raises(SottovoceError, match="nobody has a token"):
        create_service(run)


def test_the_service_describes_itself(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        stated = json.loads(get(f"{url}/v1/specification"))
        assert stated["context"]["records"] == 40
        assert {"reference", "basis"} == set(stated["seeds"])
        assert "/v1/onboard" in json.loads(get(f"{url}/openapi.json"))["paths"]
        assert json.loads(get(f"{url}/health"))["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/v1/context-model")


def test_a_seeded_or_noiseless_run_is_not_served(run: Path, tmp_path: Path) -> None:
    path = run / "model.safetensors"
    with safe_open(path, "pt") as file:
        metadata, state = file.metadata(), load_file(path)
    for changes in ({"seeded": True}, {"seeded": True, "epsilon": float("inf"), "channel": "direct"}):
        plan = {**json.loads(metadata["plan"]), **changes}
        path.write_bytes(save(state, {**metadata, "plan": json.dumps(plan)}))
        with pytest.raises(SottovoceError, match="protects nobody"):
            create_service(run, open_to_all=True)


def test_what_is_shed_for_want_of_time_is_not_logged_and_of_the_rest_a_line_a_second() -> None:
    assert set(service.SHED) == {429, 503}
    assert (service.LOGGED_PER_SECOND, service.LOGGED_AT_ONCE) == (1.0, 20)


def test_strangers_are_counted_at_every_address_of_the_service(run: Path) -> None:
    token = new_token(run, "alice")
    limits = Limits(strangers_per_second=1e-6, strangers_burst=1)
    paths = ("/v1/specification", "/v1/context-model", "/v1/access", "/health", "/metrics")
    with live(create_service(run, limits)) as url:
        for stranger in (url, *(f"{url}{path}" for path in paths)):
            with pytest.raises(urllib.error.HTTPError) as refused:  # the first one counts, and finds nothing
                get(f"{url}/v1/access" if stranger == url else stranger)
            assert refused.value.code == (401 if stranger == url else 429)
        asked = urllib.request.Request(f"{url}/v1/access", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert json.loads(answer.read()) == {"access": True}


def test_the_coefficients_behind_contexts_are_served_and_everything_is_closed_at_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(Onboarding, "context_model", lambda _: b"model")
    for kind in (Onboarding, Endpoint):
        honest = kind.close

        def close(self: Any, honest: Any = honest, name: str = kind.__name__) -> None:
            closed.append(name)
            honest(self)

        monkeypatch.setattr(kind, "close", close)
    with live(create_service(run, open_to_all=True)) as url:
        assert get(f"{url}/v1/context-model") == b"model"
    assert closed == ["Endpoint", "Onboarding"]


def test_what_is_no_request_of_the_service_is_refused_in_a_line(run: Path) -> None:
    app = create_service(run, open_to_all=True)
    handler: Any = app.exception_handlers[RequestValidationError]
    answer = asyncio.run(handler(None, RequestValidationError([])))
    assert answer.status_code == 422
    assert "see /docs" in json.loads(answer.body)["error"]


def test_every_refusal_of_onboarding_is_described(run: Path) -> None:
    described = create_service(run, open_to_all=True).openapi()["paths"]["/v1/onboard"]["post"]
    assert described["requestBody"]["required"] is True
    refusals = {"400", "401", "408", "409", "413", "422", "429", "503"}
    assert set(described["responses"]) == {"200", *refusals}
