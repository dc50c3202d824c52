"""The federation without a transport: lost, doubled, late, foreign and false messages change nothing."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sottovoce.client import OWN_RECORDS
from sottovoce.errors import SottovoceError
from sottovoce.federation.coordinator import Fields, Options
from sottovoce.federation.keys import EnrolmentError
from sottovoce.federation.rollback import Trace
from sottovoce.federation.store import Store, StoreError
from sottovoce.files import FileError
from sottovoce.modelfile import load_tensors
from sottovoce.privacy.ledger import Charge, Overspent
from sottovoce.simulation.training import train

from .world import World, charged, everyone_paid, ledger, same


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Equal threads at both ends; results may differ in the last bit otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("changes", [{}, {"channel": "lrsuq"}, {"context": "labels", "momentum": 0.5}])
def test_members_and_simulator_give_the_same_generator_bit_for_bit(tmp_path: Path, changes: Fields) -> None:
    world = World(tmp_path, **changes)
    world.enrol_all()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    assert everyone_paid(world)


def test_contexts_from_a_private_model_are_the_simulators_too(tmp_path: Path) -> None:
    world = World(tmp_path, context="predictions", context_round=2)
    world.enrol_all()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())


def test_a_server_killed_after_every_message_ends_with_the_same_generator(tmp_path: Path) -> None:
    calm, killed = World(tmp_path / "calm"), World(tmp_path / "killed")
    calm.enrol_all()
    calm.finish()
    killed.enrol_all()
    while not killed.coordinator.done:
        for participant in list(killed.coordinator.missing()):
            killed.coordinator.accept(participant, killed.answer(participant))
            killed.kill()
            killed.start()
        killed.coordinator.advance()
        killed.kill()
        killed.start()
    assert same(calm.coordinator.server.state(), killed.coordinator.server.state())
    assert everyone_paid(killed)


def test_an_answer_that_was_lost_is_sent_again_byte_for_byte_and_charged_once(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    assert world.answer(0) == world.answer(0)
    assert charged(world, 0) == [("context", 0)]


def test_a_doubled_answer_is_dropped(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    world.step()
    participant = next(iter(world.coordinator.missing()))
    answer = world.answer(participant)
    world.coordinator.accept(participant, answer)
    world.coordinator.accept(participant, answer)
    world.finish()
    assert everyone_paid(world)


def test_of_two_encodings_of_one_stream_only_the_first_is_ever_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "follows", lambda *_: True)  # a disk that was rolled back as a whole
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    mine = tmp_path / "clients" / "client-0"
    shutil.copytree(mine, tmp_path / "backup")
    first = world.answer(0)
    shutil.rmtree(mine)
    shutil.copytree(tmp_path / "backup", mine)
    second = world.answer(0)
    assert second["release"] != first["release"]
    world.coordinator.accept(0, first)
    world.coordinator.accept(0, second)
    assert [message for _, _, _, message in world.store.waiting()] == [first["release"]]


def test_a_damaged_foreign_or_replayed_message_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    contexts = {participant: world.answer(participant) for participant in range(3)}
    damaged = bytearray(contexts[0]["release"])
    damaged[-1] ^= 1
    with pytest.raises(SottovoceError, match="does not match its tag"):
        world.coordinator.accept(0, {**contexts[0], "release": bytes(damaged)})
    with pytest.raises(SottovoceError, match="does not match its tag"):
        world.coordinator.accept(1, contexts[0])
    with pytest.raises(SottovoceError, match="format version"):
        world.coordinator.accept(0, {**contexts[0], "release": b"\xf0" + contexts[0]["release"][1:]})
    assert world.store.received(0) == []
    world.step()
    first = next(iter(world.coordinator.missing()))
    old = world.answer(first)
    world.step()
    with pytest.raises(SottovoceError, match="not open"):
        world.coordinator.accept(first, old)
    with pytest.raises(SottovoceError, match=r"does not match its tag|not chosen"):
        world.coordinator.accept(first, {**old, "round": 2})
    world.finish()
    assert everyone_paid(world)


def test_a_client_reads_in_its_own_log_why_its_answer_was_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    answer = world.answer(0)
    with pytest.raises(SottovoceError, match="does not match its tag"):
        world.coordinator.accept(0, {**answer, "release": answer["release"][:-1] + b"\0"})
    assert world.answer(0) == answer
    log = tmp_path / "clients" / "client-0" / "client.log"
    assert "ERROR the server refused an answer: message does not match its tag" in log.read_text()
    assert world.coordinator.request(0, "context")["refused"] == ""
    assert charged(world, 0) == [("context", 0)]


def test_a_client_that_is_not_enrolled_releases_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol(0)
    stranger = world.member(0, directory="stranger")
    with pytest.raises(EnrolmentError, match="is not enrolled in run"):
        stranger.release(world.coordinator.request(0, "context"))
    with pytest.raises(EnrolmentError, match="is not the name of a run"):
        stranger.release({**world.coordinator.request(0, "context"), "run": "../client-0"})
    mine = tmp_path / "clients" / "stranger"
    assert not (mine / "ledger.sqlite").exists()
    assert (
        "ERROR refused the context of round 0: this client is not enrolled"
        in (mine / "client.log").read_text()
    )


def test_a_message_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, options=Options(bucket=64))
    world.enrol_all()
    answer = world.answer(0)
    assert len(answer["release"]) % 64 == 0
    longer = (2**31).to_bytes(4, "big") + answer["release"][4:]
    with pytest.raises(SottovoceError, match="cannot"):
        world.coordinator.accept(0, {**answer, "release": longer})
    with pytest.raises(SottovoceError, match="refused unread"):
        world.coordinator.accept(0, {**answer, "release": bytes(10**7)})
    with pytest.raises(SottovoceError, match="not padded"):
        world.coordinator.accept(0, {**answer, "release": answer["release"][:-1]})
    assert world.store.received(0) == []
    world.coordinator.accept(0, answer)


def test_padding_changes_no_result(tmp_path: Path) -> None:
    worlds = [World(tmp_path / str(bucket), options=Options(bucket=bucket)) for bucket in (0, 512)]
    for world in worlds:
        world.enrol_all()
        world.finish()
    assert same(*(world.coordinator.server.state() for world in worlds))


def test_an_index_belongs_to_the_directory_that_enrolled_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.enrol(0) == 0
    assert world.enrol(0) == 0
    assert world.coordinator.addresses() == {0: "0"}
    twin = world.member(0, directory="twin").enrol(world.coordinator.offer())
    with pytest.raises(EnrolmentError, match="another key"):
        world.coordinator.enrol(twin, "9")
    assert world.enrol(0) == 0


def test_a_refused_enrolment_is_forgotten_unless_its_run_has_releases(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    world.answer(0)
    world.member(0).refused(world.store.run, "a mistake")
    assert world.enrol(0) == 0
    with ledger(world, 1) as book:
        elsewhere = Charge("0" * 16, OWN_RECORDS, "context", 0, sensitivity=0.01, sigma=1.0)
        book.commit(elsewhere, b"", world.coordinator.blueprint.budget)
    world.member(1).refused(world.store.run, "the index is taken")
    assert not list((tmp_path / "clients" / "client-1").glob("enrolment-*"))


def test_an_enrolment_must_prove_its_key(tmp_path: Path) -> None:
    world = World(tmp_path)
    answer = world.member(0).enrol(world.coordinator.offer())
    with pytest.raises(EnrolmentError, match="prove"):
        world.coordinator.enrol({**answer, "proof": bytes(32)}, "9")
    with pytest.raises(EnrolmentError, match="no participant 7"):
        world.coordinator.enrol({**answer, "participant": 7}, "9")
    assert world.coordinator.enrolled == set()


def test_a_plan_that_differs_is_refused_at_both_ends_and_nothing_is_charged(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = World(tmp_path / "other", epsilon=9.0)
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.member(0, other.agreement).enrol(world.coordinator.offer())
    world.enrol_all()
    request = world.coordinator.request(0, "context")
    with pytest.raises(EnrolmentError, match="nothing is released"):
        world.member(0, other.agreement).release(request)
    answer = world.member(0).enrol(world.coordinator.offer())
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.coordinator.enrol({**answer, "agreement": other.agreement.digest()}, "9")
    assert not (tmp_path / "clients" / "client-0" / "ledger.sqlite").exists()
    world.kill()
    with pytest.raises(StoreError, match=r"epsilon is 9\.0 here and 8\.0 there"):
        Store.open(tmp_path / "server.sqlite", other.agreement)


def test_a_restored_server_gets_no_second_encoding(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False, clients_per_round=3)
    world.enrol_all()
    world.step()
    world.kill()
    shutil.copy(tmp_path / "server.sqlite", tmp_path / "backup.sqlite")
    world.start()
    world.step()
    world.step()
    for participant in range(3):
        world.answer(participant)
    world.kill()
    for leftover in ("server.sqlite-wal", "server.sqlite-shm"):
        (tmp_path / leftover).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.sqlite", tmp_path / "server.sqlite")
    world.start()
    answer = world.answer(0)
    assert "release" not in answer
    assert "was applied and its message forgotten" in answer["left_out"]


def test_absent_clients_are_not_waited_for_longer_than_patience(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, clients_per_round=3, options=Options(patience=0.0))
    for index in (0, 1):
        world.enrol(index)
        world.coordinator.accept(index, world.answer(index))
    world.coordinator.advance()
    for index in (0, 1):
        world.coordinator.accept(index, world.answer(index))
    line = world.coordinator.advance()
    assert line is not None
    assert line["clients"] == ["participant-0", "participant-1"]
    assert "without participant-2" in caplog.text
    # The one that comes late first releases its context, then takes part.
    world.enrol(2)
    assert world.coordinator.missing()[2] == "context"
    world.coordinator.accept(2, world.answer(2))
    world.coordinator.accept(2, world.answer(2))
    world.step()
    world.finish()
    assert charged(world, 2) == [("context", 0), ("gradient", 2), ("gradient", 3), ("gradient", 4)]
    assert everyone_paid(world)


def test_a_client_whose_records_paid_for_another_run_declines_and_training_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=3, options=Options(patience=0.0))
    world.enrol_all()
    with ledger(world, 0) as book:
        earlier = Charge("0" * 16, OWN_RECORDS, "context", 0, sensitivity=1.0, sigma=1.0)
        book.commit(earlier, b"", world.coordinator.blueprint.budget)
    declined = set()
    while not world.coordinator.done:
        for participant in list(world.coordinator.missing()):
            try:
                world.coordinator.accept(participant, world.answer(participant))
            except Overspent:
                declined.add(participant)
        world.coordinator.advance()
    assert declined == {0}
    for index in range(3):
        with ledger(world, index) as book:
            assert book.epsilon(OWN_RECORDS, 1e-5, "exact") <= 8.0 + 1e-6


def test_a_member_releases_only_in_rounds_of_the_schedule(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=1)
    world.enrol_all()
    world.step()
    [chosen] = world.coordinator.missing()
    request = world.coordinator.request(chosen, "gradient")
    with pytest.raises(SottovoceError, match="not due in round 1"):
        world.member((chosen + 1) % 3).release({**request, "received_rounds": []})
    with pytest.raises(SottovoceError, match="not due in round 99"):
        world.member(chosen).release({**request, "round": 99})


def test_diagnostics_are_off_unless_both_ends_want_them(tmp_path: Path) -> None:
    quiet = World(tmp_path / "quiet")
    quiet.enrol_all()
    quiet.step()
    assert set(quiet.step() or {}) == {"round", "clients", "gain", "effective_gain", "seconds"}
    loud = World(tmp_path / "loud", options=Options(diagnostics=True))
    loud.enrol_all()
    loud.step()
    line = loud.step() or {}
    for values in line["uncharged_diagnostics"].values():
        assert values["bytes"] > 0
        assert values["accuracy"] is None


def test_secrets_are_for_their_owner_only_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    world.finish()
    private = [tmp_path / "server.sqlite", *(tmp_path / "clients" / "client-0").iterdir()]
    assert len(private) >= 4
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert world.store.key.hex() not in caplog.text
    for index in range(3):
        assert world.coordinator._register.secret(index).hex() not in caplog.text


def test_what_strangers_say_is_one_short_line_of_a_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    long = "x\n2026 ERROR all is lost\x1b[2J" * 1000
    for refused in (
        lambda: world.coordinator.accept(0, {"error": long}),
        lambda: world.coordinator.accept(0, {"kind": "context", "round": long, "release": b""}),
        lambda: world.coordinator.enrol({"error": long}, "9"),
        lambda: world.coordinator.enrol(
            {"agreement": world.agreement.digest(), "participant": long, "key": b"", "proof": b""}, "9"
        ),
    ):
        with pytest.raises(SottovoceError) as error:
            refused()
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 300
    request = world.coordinator.request(0, "context")
    world.member(0).release({**request, "refused": long})
    world.member(0).refused(world.store.run, long)
    with pytest.raises(SottovoceError):
        world.member(0).release({**request, "kind": long, "agreement": long})
    lines = (tmp_path / "clients" / "client-0" / "client.log").read_text().splitlines()
    assert len(lines) == 5
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.kill()
    with sqlite3.connect(tmp_path / "server.sqlite") as file:
        file.execute("PRAGMA user_version = 0")
    with pytest.raises(StoreError, match="store format 0"):
        world.start()


def test_two_servers_never_work_on_one_store(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(FileError, match="another server"):
        Store.open(tmp_path / "server.sqlite", world.agreement, patience=0.0)
