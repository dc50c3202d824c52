"""The federation without a transport: lost, doubled, late, foreign and false messages change nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.coordinator import Fields, Options
from sottovoce.federation.rollback import Trace
from sottovoce.modelfile import load_tensors
from sottovoce.privacy.witness import Witness
from sottovoce.simulation.training import train

from .world import World, charged, everyone_paid, same


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
    monkeypatch.setattr(Witness, "_lock_time", lambda _: 0)
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
