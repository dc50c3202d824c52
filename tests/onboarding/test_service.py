"""Onboarding over HTTP: what a future client gets, pays and is refused."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import stat
import threading
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load, load_file, save
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.client import OWN_RECORDS
from sottovoce.data import fingerprint
from sottovoce.errors import SottovoceError
from sottovoce.federation.result import write_run
from sottovoce.models import open_model
from sottovoce.onboarding import remote, service
from sottovoce.onboarding.future_client import personalize
from sottovoce.onboarding.keys import Keys
from sottovoce.onboarding.remote import OnboardingError, onboard
from sottovoce.onboarding.server import CONTEXTS_FILE, Onboarding
from sottovoce.onboarding.service import Limits, create_service
from sottovoce.onboarding.specification import SpecificationError
from sottovoce.onboarding.tokens import new_token, read_tokens
from sottovoce.privacy.ledger import Ledger
from tests.federation.world import World

from .live import live


@pytest.fixture
def records(finished: World, tmp_path: Path) -> Path:
    """The future client's file, with nothing charged yet."""
    return Path(shutil.copy(finished.folder / "clients" / "future-0.npz", tmp_path / "mine.npz"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TRIES", 1)


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{url}/v1/onboard", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        body: bytes = answer.read()
        return body


def headers(url: str, token: str) -> dict[str, str]:
    digest = json.loads(get(f"{url}/v1/specification"))["digest"]
    return {
        "Authorization": f"Bearer {token}",
        "Sottovoce-Version": "2",
        "Sottovoce-Specification": digest,
    }


def spent(records: Path) -> int:
    with Ledger.open(records.with_suffix(".ledger.sqlite"), scope=fingerprint(records)) as ledger:
        return ledger.releases(OWN_RECORDS)


def test_a_client_gets_its_model_for_one_charge_however_often_it_asks(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    with live(create_service(run)) as url:
        first = onboard(url, records, records.with_name("one"), token=token)
        again = onboard(url, records, records.with_name("two"), token=token)
        assert b"sottovoce_retries_total 1" in get(f"{url}/metrics")
    assert first["epsilon"] == again["epsilon"] > 0
    assert spent(records) == 1
    assert records.with_name("one").read_bytes() == records.with_name("two").read_bytes()
    model = open_model("lenet", (1, 28, 28), 10, 0)
    model.load_state_dict(load_file(records.with_name("one")))


def test_the_service_can_send_the_whole_model(run: Path, records: Path) -> None:
    captured: list[bytes] = []

    class Spy(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            captured.append(body)
            return super().post(path, body, headers)

    with pytest.MonkeyPatch.context() as patch, live(create_service(run, open_to_all=True)) as url:
        patch.setattr(remote, "Connection", Spy)
        onboard(url, records, records.with_name("built"))
        status, model = post(url, captured[0], {**headers(url, ""), "Accept": "application/safetensors"})
    assert status == 200
    built, sent = load_file(records.with_name("built")), load(model)
    assert built.keys() == sent.keys()
    assert all(built[name].equal(sent[name]) for name in built)


def test_the_service_and_personalize_give_models_of_equal_price(run: Path, records: Path) -> None:
    other = Path(shutil.copy(records, records.with_name("other.npz")))
    with live(create_service(run, open_to_all=True)) as url:
        over_http = onboard(url, records, records.with_name("one"))
    at_home = personalize(run, other, records.with_name("two"))
    assert over_http["epsilon"] == at_home["epsilon"]


def test_a_wrong_token_is_refused_before_anything_is_charged(run: Path, records: Path) -> None:
    new_token(run, "alice")
    with live(create_service(run)) as url:
        with pytest.raises(OnboardingError, match="no such token"):
            onboard(url, records, records.with_name("one"), token="guess")
        assert post(url, bytes(64), headers(url, "guess"))[0] == 401
    assert not records.with_suffix(".ledger.sqlite").exists()


def test_a_second_context_from_one_client_is_refused(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    restored = Path(shutil.copy(records, records.with_name("restored.npz")))
    with live(create_service(run)) as url:
        onboard(url, records, records.with_name("one"), token=token)
        with pytest.raises(OnboardingError, match="another context before"):
            onboard(url, restored, records.with_name("two"), token=token)
    assert not records.with_name("two").exists()


def test_a_restored_ledger_pays_for_the_lost_context_and_encodes_under_a_new_key(
    run: Path, records: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[bytes] = []

    class Lost(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            sent.append(body)
            raise OnboardingError("lost on the way")

    with pytest.MonkeyPatch.context() as patch, live(create_service(run, open_to_all=True)) as url:
        patch.setattr(remote, "Connection", Lost)
        for _ in range(2):
            with pytest.raises(OnboardingError, match="lost on the way"):
                onboard(url, records, records.with_name("model"))
        for file in records.parent.glob("*.ledger.sqlite*"):
            if file.suffix != ".key":
                file.unlink()  # the backup is from before the release
        with pytest.raises(OnboardingError, match="lost on the way"):
            onboard(url, records, records.with_name("model"))
        with pytest.raises(OnboardingError, match="lost on the way"):
            onboard(url, records, records.with_name("model"))
    assert sent[0] == sent[1]
    assert sent[2][:32] != sent[0][:32]
    assert sent[3] == sent[2]
    assert spent(records) == 2
    assert "charged for a context that left" in caplog.text


def test_a_client_killed_before_its_charge_pays_once(run: Path, records: Path) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with live(create_service(run, open_to_all=True)) as url:
        for name in ("commit", "keep"):  # before the charge; after it, before anything leaves
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Ledger if name == "commit" else Keys, name, killed)
                with pytest.raises(KeyboardInterrupt):
                    onboard(url, records, records.with_name("model"))
        onboard(url, records, records.with_name("model"))
    assert spent(records) == 1
    assert not list(records.parent.glob("*.draft"))


def test_a_context_whose_key_is_gone_is_not_sent(run: Path, records: Path) -> None:
    personalize(run, records, records.with_name("at-home"))
    with live(create_service(run, open_to_all=True)) as url:
        with pytest.raises(SottovoceError, match="was made for another key"):
            onboard(url, records, records.with_name("model"))
        assert b'sottovoce_requests_total{status="422"}' not in get(f"{url}/metrics")


def test_two_processes_on_one_ledger_send_the_same_bytes(run: Path, records: Path) -> None:
    honest, sent = Ledger.commit, list[bytes]()

    class Spy(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            sent.append(body)
            return super().post(path, body, headers)

    def slowly(ledger: Ledger, *arguments: Any) -> None:
        threading.Event().wait(0.5)
        honest(ledger, *arguments)

    def ask(out: str) -> None:
        onboard(url, records, records.with_name(out))

    with pytest.MonkeyPatch.context() as patch, live(create_service(run, open_to_all=True)) as url:
        patch.setattr(remote, "Connection", Spy)
        patch.setattr(Ledger, "commit", slowly)
        threads = [threading.Thread(target=ask, args=(out,)) for out in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Not the models: threads of one process disturb each other's seeds.
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert spent(records) == 1
    assert records.with_name("one").exists()
    assert records.with_name("two").exists()


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


def test_a_context_of_another_run_size_or_sigma_is_refused(run: Path, records: Path, tmp_path: Path) -> None:
    other = World(tmp_path / "other", context="labels", epsilon=2.0, seeded=False)
    other.enrol_all()
    other.finish()
    write_run(tmp_path / "other" / "run", other.coordinator, other.store)
    captured: list[bytes] = []

    class Spy(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            captured.append(body)
            return super().post(path, body, headers)

    with (
        pytest.MonkeyPatch.context() as patch,
        live(create_service(tmp_path / "other" / "run", open_to_all=True)) as url,
    ):
        patch.setattr(remote, "Connection", Spy)
        onboard(url, records, records.with_name("one"))
    with live(create_service(run, open_to_all=True)) as url:
        code, answer = post(url, captured[0], headers(url, ""))
    assert code == 422
    assert "does not match its tag" in json.loads(answer)["error"]


def test_a_specification_that_contradicts_its_plan_is_refused_before_anything_is_charged(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("version", 1), ("context", {"sigma": 1e-9}), ("coefficients", 7)):
        with live(create_service(run, open_to_all=True)) as url:
            honest = remote.Connection.get

            def lie(door: remote.Connection, path: str, name: str = name, value: object = value) -> bytes:
                body = honest(door, path)  # noqa: B023
                return json.dumps({**json.loads(body), name: value}).encode()

            with monkeypatch.context() as patch:
                patch.setattr(remote.Connection, "get", lie)
                with pytest.raises(SpecificationError):
                    onboard(url, records, records.with_name("one"))
    assert not records.with_suffix(".ledger.sqlite").exists()


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


def test_one_client_cannot_ask_too_often(run: Path) -> None:
    token = new_token(run, "alice")
    with live(create_service(run, Limits(per_second=0.01, burst=2))) as url:
        good = headers(url, token)
        statuses = [post(url, bytes(64), good)[0] for _ in range(3)]
    assert statuses == [422, 422, 429]


def test_more_requests_than_can_wait_are_shed_and_the_service_recovers(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, honest = threading.Event(), Onboarding.coefficients

    def slowly(desk: Onboarding, client: str, body: bytes) -> object:
        release.wait(10)
        return honest(desk, client, body)

    monkeypatch.setattr(Onboarding, "coefficients", slowly)
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


def test_a_client_that_stalls_does_not_keep_its_place(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_SECONDS", 0.2)
    with live(create_service(run, Limits(waiting=1), open_to_all=True)) as url:
        lines = ["POST /v1/onboard HTTP/1.1", "Host: here", "Content-Length: 100"]
        lines += [f"{name}: {value}" for name, value in headers(url, "").items()]
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=20) as slow:
            slow.sendall("\r\n".join([*lines, "", "too little"]).encode())
            assert b" 408 " in slow.recv(4096)
        assert post(url, bytes(64), headers(url, ""))[0] == 422


def test_tokens_are_kept_as_hashes_for_their_owner_only(run: Path) -> None:
    token = new_token(run, "alice")
    file = run / "tokens.txt"
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(read_tokens(run).values()) == ["alice"]
    with pytest.raises(SottovoceError, match="already"):
        new_token(run, "alice")


def test_nobody_serves_without_tokens_by_accident(run: Path) -> None:
    with pytest.raises(SottovoceError, match="nobody has a token"):
        create_service(run)


def test_a_seeded_or_noiseless_run_is_not_served(run: Path, tmp_path: Path) -> None:
    path = run / "model.safetensors"
    with safe_open(path, "pt") as file:
        metadata, state = file.metadata(), load_file(path)
    for changes in ({"seeded": True}, {"seeded": True, "epsilon": float("inf"), "channel": "direct"}):
        plan = {**json.loads(metadata["plan"]), **changes}
        path.write_bytes(save(state, {**metadata, "plan": json.dumps(plan)}))
        with pytest.raises(SottovoceError, match="protects nobody"):
            create_service(run, open_to_all=True)


def test_the_command_serves_nothing_unencrypted_to_the_world(run: Path) -> None:
    new_token(run, "alice")
    for options, reason in (
        (["--host", "0.0.0.0"], "unencrypted"),
        (["--certificate", "server.crt"], "go together"),
    ):
        result = CliRunner().invoke(app, ["serve", str(run), *options])
        assert isinstance(result.exception, SottovoceError)
        assert reason in str(result.exception)


def test_records_do_not_travel_unencrypted(records: Path) -> None:
    with pytest.raises(OnboardingError, match="not encrypted"):
        onboard("http://example.org", records, records.with_name("one"))


def test_the_service_describes_itself(run: Path) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        stated = json.loads(get(f"{url}/v1/specification"))
        assert stated["context"]["records"] == 40
        assert {"reference", "basis"} == set(stated["seeds"])
        assert "/v1/onboard" in json.loads(get(f"{url}/openapi.json"))["paths"]
        assert json.loads(get(f"{url}/health"))["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/v1/context-model")
