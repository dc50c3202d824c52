"""A finished run that decodes contexts and answers with coefficients."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file

from sottovoce.channel import ChannelError
from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import BUCKET, NAME, remote
from sottovoce.federation.onboarding.remote import OnboardingError, onboard
from sottovoce.federation.onboarding.server import (
    TOGETHER,
    Answer,
    Contexts,
    FinishedRun,
    Onboarding,
    Request,
    SecondContext,
)
from sottovoce.federation.onboarding.service import create_service
from sottovoce.federation.sealing import agreed_secret, new_key, pad, public_key
from sottovoce.federation.status.progress import write_run
from sottovoce.machine.tokens import new_token
from sottovoce.training.server import Server
from tests.federation.world import World
from tests.small import built, small_plan

from .live import live
from .web import headers, post


def test_a_context_of_another_run_size_or_sigma_is_refused(run: Path, records: Path, tmp_path: Path) -> None:
    other = World(tmp_path / "other", context="labels", epsilon=2.0, seeded=False)
    other.enrol_all()
    other.finish()
    write_run(tmp_path / "other" / "run", other.coordinator)
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


def test_a_finished_run_answers_a_context_as_its_server_would(run: Path) -> None:
    finished, private = FinishedRun.load(run), new_key()
    release = finished.blueprint.releases["context"]
    secret = agreed_secret(private, finished.key, run=finished.run, name=NAME)
    message = release.encode(
        np.full(release.size, 0.1), secret=secret, stream=release.stream(finished.run, NAME, 0)
    )
    context = finished.decode(public_key(private) + message)
    assert torch.equal(finished.coefficients(private, message), finished.server.personalize(context))
    with pytest.raises(ChannelError, match="tag"):
        finished.decode(public_key(new_key()) + message)
    with pytest.raises(ChannelError, match="not a context"):
        finished.decode(public_key(private))


def _request(onboarding: Onboarding, seed: int, client: str = "") -> Request:
    """A new client's request, with a key and a context of its own."""
    release, stated, private = onboarding.blueprint.releases["context"], onboarding.specification, new_key()
    secret = agreed_secret(private, stated.key, run=stated.run, name=NAME)
    vector = np.random.default_rng(seed).dirichlet(np.ones(release.size))
    message = release.encode(vector, secret=secret, stream=release.stream(stated.run, NAME, 0))
    return Request(client or str(seed), public_key(private) + pad(message, BUCKET))


def test_an_answer_does_not_depend_on_the_requests_that_came_with_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onboarding, sizes = Onboarding(run), set[int]()
    many = Server.personalize_many
    monkeypatch.setattr(
        Server, "personalize_many", lambda mine, contexts: (sizes.add(len(contexts)), many(mine, contexts))[1]
    )
    requests = [_request(onboarding, seed) for seed in range(19)]
    alone = [onboarding.answer([request])[0] for request in requests]
    for together in (requests, requests[::-1], requests[5:12]):
        for request, answer in zip(together, onboarding.answer(together), strict=True):
            first = alone[requests.index(request)]
            assert isinstance(first, Answer)
            assert not first.again
            assert answer == Answer(first.body, again=True)
    assert sizes == {TOGETHER}  # a product of another shape may be rounded differently
    onboarding.close()


def test_a_bad_request_spoils_no_other_of_its_batch(run: Path) -> None:
    onboarding = Onboarding(run)
    good, bad, second = (_request(onboarding, seed, client="one" if seed else "") for seed in range(3))
    answers = onboarding.answer([good, Request("nobody", bytes(64)), bad, second])
    assert [type(answer) for answer in answers] == [Answer, ChannelError, Answer, SecondContext]
    onboarding.close()
    again = Onboarding(run)
    assert [isinstance(answer, Answer) and answer.again for answer in again.answer([good, bad])] == [True] * 2
    again.close()


def test_nothing_is_answered_before_its_context_is_durable(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onboarding = Onboarding(run)
    request, honest = _request(onboarding, 0), Contexts.query

    def failing(contexts: Contexts, statement: str, *values: object) -> list[object]:
        if statement == "COMMIT":
            raise SottovoceError("the disk is full")
        return honest(contexts, statement, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Contexts, "query", failing)
        with pytest.raises(SottovoceError, match="disk"):
            onboarding.answer([request])
    [answer] = onboarding.answer([request])
    assert isinstance(answer, Answer)
    assert not answer.again
    onboarding.close()


def test_noise_of_future_clients_is_never_seeded_even_if_the_run_was(run: Path) -> None:
    plan = FinishedRun.load(run).blueprint.plan
    assert plan.seeded is False
    assert plan.repeat == 0


def test_a_service_keeps_its_key_and_an_unserved_run_has_one_of_its_own(run: Path) -> None:
    unserved = FinishedRun.load(run).key
    assert FinishedRun.load(run).key == unserved
    first = Onboarding(run)
    first.close()
    second = Onboarding(run)
    second.close()
    assert first.specification == second.specification
    assert first.specification.key == FinishedRun.load(run).key != unserved


def test_a_context_longer_than_its_noise_allows_is_refused(run: Path) -> None:
    finished, private = FinishedRun.load(run), new_key()
    release = finished.blueprint.releases["context"]
    secret = agreed_secret(private, finished.key, run=finished.run, name=NAME)
    u = np.full(release.size, 2 * release.largest_norm)
    message = release.encode(u, secret=secret, stream=release.stream(finished.run, NAME, 0))
    with pytest.raises(ChannelError, match="longer than its noise allows"):
        finished.decode(public_key(private) + message)


@pytest.mark.parametrize("predicted", [True, False])
def test_future_clients_predict_with_the_shared_model_of_the_end_or_that_of_the_contexts_round(
    predicted: bool,
) -> None:
    context = (
        {"context": "shares", "context_share": 0.05}
        if predicted
        else {"context": "predictions", "context_round": 2}
    )
    made = built(small_plan(method="blend", gradient_records=40, **context), Facts((1, 28, 28), 10))
    server = Server(made)
    finished = FinishedRun("run", made, server, bytes(32))
    early = finished.context_model()
    assert early is not None
    server.receive_context(0, np.zeros(10))
    with torch.no_grad():
        for parameter in server.generator.parameters():
            parameter.add_(1.0)
    late = finished.context_model()
    assert late is not None
    assert late.equal(early) != predicted
    assert late.equal(server.shared_coefficients()) == predicted


def _stub(**releases: object) -> Onboarding:
    """Onboarding of a run with these releases, as far as it says anything about them."""
    stub = Onboarding.__new__(Onboarding)
    plan = SimpleNamespace(releases_context=bool(releases))
    stub.blueprint = SimpleNamespace(plan=plan, releases=releases)  # type: ignore[assignment]
    stub._run = Mock()
    return stub


@pytest.mark.parametrize("largest", [0, 1, 252, 253, 1000, 1024])
def test_a_body_is_a_key_and_a_padded_context_which_is_empty_where_none_is_released(largest: int) -> None:
    allowed = _stub(context=SimpleNamespace(largest_message=largest)).largest_body
    assert allowed == 32 + len(pad(bytes(largest), BUCKET))
    assert _stub().largest_body == 32 + len(pad(b"", BUCKET))


def test_without_contexts_everybody_gets_the_shared_model_and_nothing_is_kept() -> None:
    onboarding = _stub()
    onboarding._run.server.personalize.return_value = torch.ones(3)  # type: ignore[attr-defined]
    answers = onboarding.answer([Request("a", b""), Request("b", b"")])
    assert answers == [Answer(np.ones(3, "<f4").tobytes(), again=True)] * 2
    onboarding._run.server.personalize.assert_called_once_with(None)  # type: ignore[attr-defined]
    assert Request("a", b"").model is False


def test_the_model_behind_contexts_travels_as_float32_where_there_is_one() -> None:
    onboarding = _stub()
    onboarding._run.context_model.return_value = None  # type: ignore[attr-defined]
    assert onboarding.context_model() is None
    onboarding._run.context_model.return_value = torch.tensor([1.0, -2.0])  # type: ignore[attr-defined]
    assert onboarding.context_model() == np.array([1.0, -2.0], "<f4").tobytes()


def test_a_service_that_has_ended_answers_nothing(run: Path) -> None:
    onboarding = Onboarding(run)
    request = _request(onboarding, 0)
    onboarding.close()
    with pytest.raises(Exception, match="closed"):
        onboarding.answer([request])


def test_a_second_context_from_one_client_is_refused(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    restored = Path(shutil.copy(records, records.with_name("restored.npz")))
    with live(create_service(run)) as url:
        onboard(url, records, records.with_name("one"), token=token)
        with pytest.raises(OnboardingError, match="another context before"):
            onboard(url, restored, records.with_name("two"), token=token)
    assert not records.with_name("two").exists()


def test_a_context_is_remembered_with_the_bytes_it_came_in(tmp_path: Path) -> None:
    contexts, vector = Contexts(tmp_path / "contexts.sqlite"), np.array([0.1, -2.0, 1e-300])
    assert contexts.known("alice", b"body") is None
    contexts.remember("alice", b"body", vector)
    contexts.close()
    again = Contexts(tmp_path / "contexts.sqlite")
    found = again.known("alice", b"body")
    assert found is not None
    assert (found == vector).all()
    assert again.known("bob", b"body") is None
    with pytest.raises(SecondContext, match="another context before"):
        again.known("alice", b"other")
    with pytest.raises(SottovoceError):
        again.remember("alice", b"other", vector)
    assert stat.S_IMODE((tmp_path / "contexts.sqlite").stat().st_mode) == 0o600
    assert b"body" not in (tmp_path / "contexts.sqlite").read_bytes()


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "contexts.sqlite").write_bytes(b"not a database at all, but long enough for one" * 100)
    with pytest.raises(SottovoceError, match="restore a backup"):
        Contexts(tmp_path / "contexts.sqlite")


def test_a_context_is_known_by_its_bytes_and_a_second_one_is_refused(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "contexts.sqlite")
    vector = np.linspace(-1.0, 1.0, 7)
    assert contexts.known("alice", b"key and message") is None
    contexts.remember("alice", b"key and message", vector)
    contexts.close()
    contexts = Contexts(tmp_path / "contexts.sqlite")
    known = contexts.known("alice", b"key and message")
    assert known is not None
    assert known.tolist() == vector.tolist()
    for other in (b"key and messagf", b"key", b""):  # the same key with another body, too
        with pytest.raises(SecondContext):
            contexts.known("alice", other)
    assert contexts.known("bob", b"key and message") is None
    contexts.close()


def test_contexts_survive_a_power_cut_and_deleted_bytes_are_overwritten(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "contexts.sqlite")
    assert contexts.query("PRAGMA synchronous") == [(2,)]
    assert contexts.query("PRAGMA secure_delete") == [(1,)]
    assert contexts.query("PRAGMA journal_mode") == [("wal",)]
    contexts.close()


def test_contexts_restored_for_all_to_read_are_their_owners_again(tmp_path: Path) -> None:
    file = tmp_path / "contexts.sqlite"
    contexts = Contexts(file)
    contexts.remember("alice", b"body", np.zeros(2))
    contexts.close()
    file.chmod(0o644)
    contexts = Contexts(file)
    contexts.remember("bob", b"body", np.zeros(2))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    contexts.close()
    assert modes == {0o600}


@pytest.mark.parametrize("row", ["('alice', NULL, X'00')", "('alice', X'00', NULL)"])
def test_no_context_is_kept_without_its_digest_or_its_numbers(tmp_path: Path, row: str) -> None:
    contexts = Contexts(tmp_path / "contexts.sqlite")
    with pytest.raises(SottovoceError, match="NOT NULL"):
        contexts.query(f"INSERT INTO context VALUES {row}")
    contexts.close()
