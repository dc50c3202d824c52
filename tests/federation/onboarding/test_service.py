"""Onboarding over HTTP: what a future client gets, pays and is refused, and how requests share their work.

What nginx keeps from the service is tried in `test_door.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sqlite3
import threading
import urllib.error
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors import safe_open
from safetensors.torch import load_file, save

from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import service
from sottovoce.federation.onboarding.remote import onboard
from sottovoce.federation.onboarding.server import CONTEXTS_FILE, Answer, Onboarding, Request
from sottovoce.federation.onboarding.service import Together, configured, create_service
from sottovoce.machine.tokens import new_token

from .live import live
from .web import get, headers, post


def metrics(url: str) -> dict[str, float]:
    """What Prometheus would read, by name and status."""
    families = text_string_to_metric_families(get(f"{url}/metrics").decode())
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


def test_damaged_foreign_and_oversized_bodies_are_refused_and_not_stored(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    with live(create_service(run)) as url:
        good = headers(url, token)
        for body, status in ((b"", 422), (bytes(32), 422), (bytes(100), 422), (bytes(10**6), 413)):
            code, answer = post(url, body, good)
            assert code == status, answer
            assert json.loads(answer)["error"]
        for changes, status, said in (
            ({"Sottovoce-Version": "1"}, 400, "update your client"),
            ({"Sottovoce-Specification": "0" * 32}, 409, "fetch it again"),
            ({"Authorization": "Bearer wrong"}, 401, "ask the operator"),
            ({"Authorization": f"Basic {token}"}, 401, "ask the operator"),
        ):
            code, answer = post(url, bytes(64), {**good, **changes})
            assert code == status
            assert said in json.loads(answer)["error"]
        with sqlite3.connect(run / CONTEXTS_FILE) as contexts:
            assert contexts.execute("SELECT COUNT(*) FROM context").fetchone() == (0,)
        onboard(url, records, records.with_name("one"), token=token)


def test_a_body_without_a_stated_length_is_read_no_further_than_a_context_is_long(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        lines = ["POST /v1/onboard HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers(url, "").items()]
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=600) as endless:
            endless.sendall("\r\n".join([*lines, "", "2000", "x" * 0x2000, ""]).encode())  # and never ends
            assert b" 413 " in endless.recv(4096)


def test_requests_are_counted_by_status_and_logged_nowhere(
    run: Path, records: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "sottovoce")
    with live(create_service(run, open_to_all=True)) as url:
        for _ in range(10):
            post(url, b"", headers(url, ""))
        for name in ("one", "two"):
            onboard(url, records, records.with_name(name))
        counted = metrics(url)
    assert counted["sottovoce_onboarding_requests_total 422"] == 10
    assert counted["sottovoce_onboarding_requests_total 200"] == 2
    assert counted["sottovoce_onboarding_retries_total"] == 1
    assert counted["sottovoce_onboarding_request_seconds_count"] == 12
    assert 0 < counted["sottovoce_onboarding_request_seconds_sum"] < 1200
    assert counted["sottovoce_onboarding_waiting"] == 0
    assert counted["process_resident_memory_bytes"] > 0
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_a_failure_is_counted_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Onboarding, "answer", fail)
    with live(create_service(run, open_to_all=True)) as url:
        assert post(url, bytes(64), headers(url, ""))[0] == 500
        assert metrics(url)["sottovoce_onboarding_requests_total 500"] == 1


def test_no_metric_is_about_a_client(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    with live(create_service(run)) as url:
        onboard(url, records, records.with_name("one"), token=token)
        text = get(f"{url}/metrics").decode()
    labels = {
        label
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for label in sample.labels
    }
    assert labels <= {"status", "le"}
    assert "alice" not in text


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", ""])
def test_under_another_name_than_this_machines_nothing_is_answered(run: Path, host: str) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=600) as stranger:
            stranger.sendall(f"GET /v1/specification HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert b" 400 " in stranger.recv(4096)
        assert get(f"{url.replace('127.0.0.1', 'localhost')}/v1/specification")


def test_more_requests_than_can_wait_are_shed_and_the_service_recovers(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, honest = threading.Event(), Onboarding.answer

    def slowly(onboarding: Onboarding, requests: Sequence[Request]) -> object:
        release.wait(1200)
        return honest(onboarding, requests)

    monkeypatch.setattr(Onboarding, "answer", slowly)
    with live(create_service(run, open_to_all=True), waiting=3) as url:
        good, statuses = headers(url, ""), Counter[int]()
        threads = [
            threading.Thread(target=lambda i=i: statuses.update([post(url, bytes([i] * 64), good)[0]]))
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        while statuses[503] < 4:
            threading.Event().wait(0.02)
        release.set()
        for thread in threads:
            thread.join()
        # Three connections are served at once: two of these, or one while an earlier one is still open.
        assert statuses in ({503: 4, 422: 2}, {503: 5, 422: 1})
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
        assert json.loads(get(f"{url}/health")) == {"status": "ok", "run": stated["run"]}
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


def test_the_coefficients_behind_contexts_are_served_and_everything_is_closed_at_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    honest = Onboarding.close

    def close(onboarding: Onboarding) -> None:
        closed.append("contexts")
        honest(onboarding)

    monkeypatch.setattr(Onboarding, "context_model", lambda _: b"model")
    monkeypatch.setattr(Onboarding, "close", close)
    with live(create_service(run, open_to_all=True)) as url:
        assert get(f"{url}/v1/context-model") == b"model"
    assert closed == ["contexts"]


def test_the_service_logs_no_request_and_outlives_the_connections_that_nginx_keeps(run: Path) -> None:
    config = configured(create_service(run, open_to_all=True), host="127.0.0.1", port=1)
    assert not config.access_log
    assert not config.proxy_headers
    assert config.log_level == "error"
    assert config.limit_concurrency == service.WAITING == 128
    assert config.timeout_keep_alive > 60  # nginx's own, which is not changed in deploy/nginx.conf


def _asked(numbers: Sequence[int], work: Any, *, given: threading.Event | None = None) -> list[Any]:
    """What requests that are made at once are answered, or fail with."""

    async def ask() -> list[Any]:
        together = Together(work)
        asked = [asyncio.create_task(together.ask(Request(str(number), b""))) for number in numbers]
        await asyncio.sleep(0.01)
        if given is not None:
            given.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        together.close()
        return answers

    return asyncio.run(ask())


def test_who_waits_while_others_are_answered_shares_the_next_turn_and_gets_an_own_answer() -> None:
    sizes, go = list[int](), threading.Event()

    def work(requests: Sequence[Request]) -> list[Answer]:
        go.wait(1200)
        sizes.append(len(requests))
        return [Answer(request.client.encode(), False) for request in requests]

    answers = _asked(range(9), work, given=go)
    assert [answer.body for answer in answers] == [b"%d" % number for number in range(9)]
    assert sum(sizes) == 9
    assert len(sizes) <= 2  # the first alone, or with whoever came before the thread looked


def test_a_refusal_reaches_only_its_own_request_and_a_failure_all_of_its_turn() -> None:
    go = threading.Event()

    def work(requests: Sequence[Request]) -> list[Answer | Exception]:
        go.wait(1200)
        if any(request.client == "7" for request in requests):
            raise OSError("the disk is gone")
        odd = ValueError("odd")
        return [odd if int(request.client) % 2 else Answer(b"", False) for request in requests]

    kinds = [type(answer) for answer in _asked(range(4), work, given=go)]
    assert kinds == [Answer, ValueError, Answer, ValueError]
    go.clear()
    assert {type(answer) for answer in _asked([7] * 9, work, given=go)} == {OSError}


def test_who_has_gone_disturbs_nobody() -> None:
    go = threading.Event()

    def work(requests: Sequence[Request]) -> list[Answer]:
        go.wait(1200)
        return [Answer(request.client.encode(), False) for request in requests]

    async def ask() -> list[bytes]:
        together = Together(work)
        gone, *stay = (asyncio.create_task(together.ask(Request(name, b""))) for name in "abc")
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0)
        go.set()
        answers = [(await task).body for task in stay]
        together.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            await together.ask(Request("late", b""))
        return answers

    assert asyncio.run(ask()) == [b"b", b"c"]
