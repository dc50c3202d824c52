"""The federation without a transport: lost, doubled, late, foreign and false messages change nothing."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.channel.wire import SystemRandomness
from sottovoce.data import Dataset, load
from sottovoce.errors import SottovoceError
from sottovoce.federation.node import Declined
from sottovoce.federation.sealing import EnrolmentError, new_key, public_key
from sottovoce.federation.server import Fields, Options
from sottovoce.federation.status.progress import write_run
from sottovoce.models.features import cache as kept
from sottovoce.models.tensors import load_tensors
from sottovoce.privacy.ledger import OWN_RECORDS
from sottovoce.release import sent
from sottovoce.release.downlink import Downlink
from sottovoce.run.finished import GeneratorFile, open_server
from sottovoce.run.training import train

from .world import World, charged, everyone_paid, ledger, roll_back, same


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "lenet"},
        {"channel": "lrsuq"},
        {"channel": "polar"},
        {"channel": "integers"},
        {"context": "labels", "momentum": 0.5},
    ],
)
def test_members_and_simulator_give_the_same_generator_bit_for_bit(tmp_path: Path, changes: Fields) -> None:
    world = World(tmp_path, **changes)
    world.enrol_all()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    assert everyone_paid(world)


@pytest.mark.parametrize("bits", [32, 4])
def test_coefficients_are_counted_and_seen_alike_by_members_and_simulator(tmp_path: Path, bits: int) -> None:
    world = World(tmp_path, downlink_bits=bits, coefficients=4096)
    world.enrol_all()
    world.finish()
    result = train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    assert write_run(tmp_path / "run", world.coordinator)["downlink"] == result["downlink"]
    assert 0 < result["downlink"]["bits_per_coefficient"] <= bits


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


def test_a_doubled_answer_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    world.enrol_all()
    context = world.answer(0)
    world.step()
    caplog.set_level(logging.INFO)
    world.coordinator.accept(0, context)  # its key is gone, and so is any need to read it
    assert "context of participant-0 came twice: dropped" in caplog.text
    participant = next(iter(world.coordinator.missing()))
    answer = world.answer(participant)
    world.coordinator.accept(participant, answer)
    world.coordinator.accept(participant, answer)
    world.finish()
    assert everyone_paid(world)


def test_of_two_encodings_of_one_stream_only_the_first_is_ever_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    mine = tmp_path / "clients" / "client-0"
    shutil.copytree(mine, tmp_path / "backup")
    first = world.answer(0)
    roll_back(monkeypatch, tmp_path / "backup", mine)
    second = world.answer(0)
    assert second["release"] != first["release"]
    world.coordinator.accept(0, first)
    world.coordinator.accept(0, second)
    assert [message for _, _, _, message in world.store.waiting()] == [first["release"]]


def test_a_second_encoding_never_reaches_the_servers_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are authentic; the state is made of the first, before and after a restart."""
    states = []
    for name in ("one", "both", "restarted"):
        world = World(tmp_path / name)
        world.enrol_all()
        mine = tmp_path / name / "clients" / "client-0"
        shutil.copytree(mine, tmp_path / name / "backup")
        world.coordinator.accept(0, world.answer(0))
        if name != "one":
            with monkeypatch.context() as patch:
                roll_back(patch, tmp_path / name / "backup", mine)
                patch.setattr("sottovoce.training.client.derived_seed", lambda *_: 1)
                patch.setattr("sottovoce.release.kind.SeededRandomness", lambda _: SystemRandomness())
                second = world.node(0).release(world.coordinator.request(0, "context"))
            world.coordinator.accept(0, second)
        if name == "restarted":
            world.kill()
            world.start()
        for participant in (1, 2):
            world.coordinator.accept(participant, world.answer(participant))
        world.coordinator.advance()
        states.append(world.coordinator.server.state())
    assert same(states[0], states[1])
    assert same(states[0], states[2])


def test_a_sealed_gradient_of_a_client_that_was_not_chosen_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=1)
    world.enrol_all()
    world.step()
    [chosen] = world.coordinator.missing()
    other = (chosen + 1) % 3
    world.store.ask(other, "gradient")  # even with a key of its own
    release = world.coordinator.blueprint.releases["gradient"]
    stream = release.stream(world.store.run, f"participant-{other}", 1)
    secret = world.coordinator.roster.secret(other)
    codeword = release.encode(np.zeros(release.size), secret=secret, stream=stream)
    false = world.sealed(other, {"kind": "gradient", "round": 1}, codeword)
    with pytest.raises(SottovoceError, match=f"participant-{other} was not chosen for round 1"):
        world.coordinator.accept(other, false)
    assert world.store.received(other) == [("context", 0)]


def test_a_gradient_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=3)
    world.enrol_all()
    world.step()
    with pytest.raises(SottovoceError, match="not asked for"):
        world.coordinator.accept(0, {"kind": "gradient", "round": 1, "release": bytes(200)})


@pytest.mark.parametrize("kind", ["context", "gradient"])
def test_an_enrolled_client_cannot_ruin_the_generator(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An authentic release of 3e38 is refused, logged, and not waited for; its sender alone is left out."""
    world = World(tmp_path, clients_per_round=3)
    world.enrol_all()
    if kind == "gradient":
        world.step()
    assert world.coordinator.missing()[0] == kind
    answer = world.answer(0)
    release = world.coordinator.blueprint.releases[answer["kind"]]
    stream = release.stream(world.store.run, "participant-0", answer["round"])
    envelope = release.channel._envelope(world.coordinator.roster.secret(0), stream)  # type: ignore[union-attr]
    ruinous = envelope.seal(np.full(release.size, 3e38).astype("<f4").tobytes())
    with pytest.raises(SottovoceError, match=r"a norm that its clipping and noise do not reach"):
        world.coordinator.accept(0, world.sealed(0, answer, ruinous))
    assert (kind, answer["round"]) not in world.store.received(0)
    assert 0 not in world.coordinator.missing()
    for participant in (1, 2):
        world.coordinator.accept(participant, world.answer(participant))
    world.coordinator.advance()
    world.finish()
    assert all(value.isfinite().all() for value in world.coordinator.server.state().values())


def test_strange_answers_are_refused_and_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=3)
    world.enrol_all()
    answer = world.answer(0)
    for false in (
        {},
        {"kind": "labels", "round": 0, "release": b""},
        {**answer, "release": "text"},
        {**answer, "release": None},
        {**answer, "kind": None},
        {**answer, "left_out": ""} | {"release": None},
    ):
        with pytest.raises(SottovoceError, match="other than a release"):
            world.coordinator.accept(0, false)
    for number in (1, -1, None, "0"):
        with pytest.raises(SottovoceError, match="not open"):
            world.coordinator.accept(0, {**answer, "round": number})
    with pytest.raises(SottovoceError, match="not open"):
        world.coordinator.accept(0, {**answer, "kind": "gradient", "round": 0})
    assert world.coordinator.missing()[0] == "context"
    assert world.store.received(0) == []
    world.finish()
    with pytest.raises(SottovoceError, match="not open"):
        world.coordinator.accept(0, {**answer, "kind": "gradient", "round": 5})


@pytest.mark.parametrize("agreement", [None, "", "0" * 32])
def test_a_request_or_offer_without_the_agreement_is_refused(tmp_path: Path, agreement: str | None) -> None:
    world = World(tmp_path)
    world.enrol(0)
    for message, answer in (
        (world.coordinator.request(0, "context"), world.node(0).release),
        (world.coordinator.roster.offer(), world.node(0).enrol),
        (world.coordinator.roster.offer(), world.node(1).enrol),
    ):
        without = {**message, "agreement": agreement}
        if agreement is None:
            del without["agreement"]
        with pytest.raises(EnrolmentError, match="another agreement"):
            answer(without)
    with ledger(world, 0) as book:
        assert book.releases(OWN_RECORDS) == 0


def test_an_offer_with_another_server_key_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol(0)
    with pytest.raises(EnrolmentError, match="another key than at enrolment"):
        world.node(0).enrol({**world.coordinator.roster.offer(), "key": public_key(new_key())})


def test_a_member_cuts_coefficients_that_no_honest_server_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent, "MARGIN", 1e-4)  # far beyond the true bound every softmax says the same
    answers = []
    for factor in (1.0, 128.0, 1024.0):
        world = World(tmp_path / str(factor), clients_per_round=3)
        world.enrol_all()
        world.step()
        request, blueprint = world.coordinator.request(0, "gradient"), world.coordinator.blueprint
        short = np.full(blueprint.coefficients, blueprint.longest_sent / blueprint.coefficients, "<f4")
        lie = {**request, "coefficients": (short * np.float32(factor)).tobytes()}
        answers.append(world.codeword(0, world.node(0).release(lie)))
    assert answers[0] != answers[1] == answers[2]


@pytest.mark.parametrize(
    "changes", [{}, {"context": "predictions", "context_round": 2}, {"downlink_bits": 4}]
)
def test_members_and_simulator_cut_alike(
    tmp_path: Path, changes: Fields, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent, "MARGIN", 1e-4)
    world = World(tmp_path, **changes)
    world.enrol_all()
    world.finish()
    server = world.coordinator.server
    assert server.sent([0]).norm() > 10 * world.coordinator.blueprint.longest_sent
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, server.state())


def test_a_member_refuses_coefficients_of_another_size_or_not_finite(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=3)
    world.enrol_all()
    world.step()
    request = world.coordinator.request(0, "gradient")
    good = np.frombuffer(request["coefficients"], "<f4")
    for bad in (good[:-1], np.append(good, 0), np.full_like(good, np.nan), np.full_like(good, np.inf)):
        with pytest.raises(Declined, match="of another size, or not finite"):
            world.node(0).release({**request, "coefficients": bad.astype("<f4").tobytes()})
    with pytest.raises(Declined, match="of another size, or not finite"):
        world.node(0).release(
            {**request, "coefficients": Downlink(len(good), 4).encode(torch.ones(len(good)))}
        )
    without = {name: value for name, value in request.items() if name != "coefficients"}
    for number in (1, 0, -1, 5):
        with pytest.raises(Declined, match="not due"):
            world.node(0).release({**without, "round": number})
    for number in (0, -1, -3, 5):
        with pytest.raises(Declined, match=f"not due in round {number}"):
            world.node(0).release({**request, "round": number})
    assert charged(world, 0) == [("context", 0)]


def test_a_damaged_foreign_or_replayed_message_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    contexts = {participant: world.answer(participant) for participant in range(3)}
    damaged = bytearray(contexts[0]["release"])
    damaged[-1] ^= 1
    with pytest.raises(SottovoceError, match="does not match its seal"):
        world.coordinator.accept(0, {**contexts[0], "release": bytes(damaged)})
    with pytest.raises(SottovoceError, match="does not match its seal"):
        world.coordinator.accept(1, contexts[0])
    for short in (b"", contexts[0]["release"][:83]):
        with pytest.raises(SottovoceError, match="shorter than a seal"):
            world.coordinator.accept(0, {**contexts[0], "release": short})
    codeword = world.codeword(0, contexts[0])
    with pytest.raises(SottovoceError, match="format version"):
        world.coordinator.accept(0, world.sealed(0, contexts[0], b"\xf0" + codeword[1:]))
    with pytest.raises(SottovoceError, match="does not match its tag"):
        world.coordinator.accept(0, world.sealed(0, contexts[0], codeword[:-1] + b"\0"))
    with pytest.raises(SottovoceError, match="does not match its tag"):
        world.coordinator.accept(1, world.sealed(1, contexts[1], codeword))
    assert world.store.received(0) == []
    world.step()
    first = next(iter(world.coordinator.missing()))
    old = world.answer(first)
    world.step()
    world.coordinator.accept(first, old)  # received before: dropped, and no refusal
    with pytest.raises(SottovoceError, match=r"does not match its seal|not chosen"):
        world.coordinator.accept(first, {**old, "round": 2})
    for false in (0, -1, 1.5, None, "2"):
        with pytest.raises(SottovoceError, match="not open"):
            world.coordinator.accept(first, {**old, "round": false})
    world.finish()
    assert everyone_paid(world)


@pytest.mark.parametrize("answered", ["before", "after"])
def test_a_server_that_computes_other_coefficients_after_a_restart_opens_either_answer(
    tmp_path: Path, answered: str
) -> None:
    """As on another kind of processor: the client sends what it has stored, whichever request it answers."""
    world = World(tmp_path, seeded=False, clients_per_round=3, channel="lrsuq", rounds=1)
    world.enrol_all()
    world.step()
    first = world.coordinator.request(0, "gradient")
    answer = world.node(0).release(first) if answered == "before" else {}
    sent = world.coordinator._coefficients
    moved = np.nextafter(np.frombuffer(sent[0], "<f4"), np.float32(1)).tobytes()
    assert moved != sent[0]
    sent[0] = moved
    second = world.coordinator.request(0, "gradient")
    assert first["seal"] == second["seal"]
    assert answered == "after" or world.node(0).release(second) == answer
    world.coordinator.accept(0, answer or world.node(0).release(second))
    world.kill()
    world.start()  # what has come is opened again
    assert 0 not in world.coordinator.missing()


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
    shown = {"round", "clients", "downlink_bytes", "gain", "effective_gain", "seconds"}
    assert set(quiet.step() or {}) == shown
    loud = World(tmp_path / "loud", options=Options(diagnostics=True))
    loud.enrol_all()
    loud.step()
    line = loud.step() or {}
    for values in line["uncharged_diagnostics"].values():
        assert values["bytes"] > 0
        assert values["accuracy"] is None
    assert 0 <= line["seconds"] < 600
    line = loud.step() or {}  # of this round, and of no other
    assert set(line["uncharged_diagnostics"]) == {f"gradient of {name}" for name in line["clients"]}


SHARES: Fields = {
    "model": "linear",
    "basis": "structured",
    "coefficients": 7850,
    "method": "blend",
    "context": "shares",
    "context_share": 0.05,
    "prior": "context",
    "averaging": 0.5,
    "rounds": 2,
}


def pictures(count: int) -> Dataset:
    """The first of the shipped digits: few enough to describe them in a second."""
    whole = load("mnist-small")
    return replace(whole, x=whole.x[:count], y=whole.y[:count])


def test_class_shares_confusions_and_priors_are_the_simulators_bit_for_bit(tmp_path: Path) -> None:
    world = World(tmp_path, **SHARES)
    world.enrol_all()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    assert simulated["confused"].all()
    assert everyone_paid(world)
    for index in range(3):
        assert charged(world, index)[0] == ("confusion", 0)
        with ledger(world, index) as book:
            assert book.epsilon(OWN_RECORDS, 1e-5, "exact") <= world.agreement.plan.epsilon


@pytest.mark.parametrize("noise", ["client", "server"])
def test_a_calibration_comes_last_and_gives_the_simulators_models_bit_for_bit(
    tmp_path: Path, noise: str
) -> None:
    blend = {"method": "blend", "model": "linear", "coefficients": 0, "context": "public", "rounds": 2}
    blend |= {"noise": noise, "weighting": 1.0, "learning_rate": 0.0, "clients_per_round": 3}
    world = World(tmp_path, **blend, calibration=0.05)
    world.enrol_all()
    while world.coordinator.server.round < 2:
        world.step()
    assert world.coordinator.missing() == dict.fromkeys(range(3), "calibration")
    request = world.coordinator.request(0, "calibration")
    del request["coefficients"]
    with pytest.raises(Declined, match="needs the model"):
        world.node(0).release(request)
    lost = world.answer(0)
    world.kill()
    world.start()
    assert world.answer(0)["release"] == lost["release"]
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    state = world.coordinator.server.state()
    assert simulated["calibrated"].all()
    assert same(simulated, state)
    made = open_server(GeneratorFile.read(tmp_path / "simulated" / "model.safetensors"))
    everyone = [0, 1, 2]
    assert torch.equal(made.coefficients(everyone), world.coordinator.server.coefficients(everyone))
    assert everyone_paid(world)
    for index in everyone:
        assert charged(world, index)[0] == ("calibration", 0)


def test_a_centre_comes_first_and_whoever_is_killed_goes_on_with_it(tmp_path: Path) -> None:
    blend = {"method": "blend", "model": "linear", "coefficients": 0, "context": "public", "rounds": 2}
    blend |= {"weighting": 1.0, "learning_rate": 0.0, "clients_per_round": 3}
    world = World(tmp_path, **blend, centring=0.1)
    world.enrol_all()
    assert world.coordinator.missing() == dict.fromkeys(range(3), "centre")
    lost = world.answer(0)
    world.kill()
    world.start()
    assert world.answer(0)["release"] == lost["release"]
    while world.coordinator.server.round < 1:
        world.step()
    world.kill()
    world.start()
    assert world.coordinator.server.centre().any()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert simulated["centre"].any()
    assert same(simulated, world.coordinator.server.state())
    made = open_server(GeneratorFile.read(tmp_path / "simulated" / "model.safetensors"))
    everyone = [0, 1, 2]
    assert torch.equal(made.coefficients(everyone), world.coordinator.server.coefficients(everyone))
    assert everyone_paid(world)
    for index in everyone:
        assert [kind for kind, _ in charged(world, index)].count("centre") == 1


def test_features_of_clients_are_kept_by_them_and_give_the_simulators_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    described = {"features": "scattering", "feature_size": 100, "coefficients": 1010}
    small = {"records_per_client": 40, "context_records": 20}
    few = pictures(160)
    world = World(tmp_path, dataset=few, **{**SHARES, **described, **small})
    computed: list[int] = []
    computing = kept._computed

    def counting(dataset: Dataset, *rest: Any) -> Tensor:
        computed.append(len(dataset))
        return computing(dataset, *rest)

    monkeypatch.setattr(kept, "_computed", counting)
    world.enrol_all()  # everything is tried once before a client enrols, features included
    world.finish()
    world.deliver_models()
    assert computed == [40, 40, 40]  # once for each client, over all its releases
    train(world.agreement.plan, tmp_path / "simulated", dataset=few)
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    for file in (tmp_path / "cache" / "features").glob("*.npy"):
        assert file.stat().st_mode & 0o077 == 0


def test_a_confusion_that_was_lost_or_whose_server_was_killed_is_charged_once(tmp_path: Path) -> None:
    calm, killed = World(tmp_path / "calm", **SHARES), World(tmp_path / "killed", **SHARES)
    for world in (calm, killed):
        world.enrol_all()
        while world.coordinator.server.round < 2:
            world.step()
        assert not world.coordinator.done
        assert world.coordinator.missing() == dict.fromkeys(range(3), "confusion")
    calm.finish()
    lost = killed.answer(0)
    assert killed.answer(0) == lost
    for participant in range(3):
        killed.coordinator.accept(participant, killed.answer(participant))
        killed.kill()
        killed.start()
    killed.coordinator.accept(0, lost)  # twice: dropped
    killed.coordinator.advance()
    assert killed.coordinator.done
    killed.kill()
    killed.start()
    assert killed.coordinator.done
    assert same(calm.coordinator.server.state(), killed.coordinator.server.state())
    assert everyone_paid(killed)


def test_a_confusion_before_its_time_is_refused_and_one_that_never_comes_is_not_waited_for(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, **SHARES, options=Options(patience=0.0))
    world.enrol_all()
    with pytest.raises(SottovoceError, match="not asked for"):
        world.coordinator.accept(0, {"kind": "confusion", "round": 0, "release": bytes(200)})
    while world.coordinator.server.round < 2:
        world.step()
    request = world.coordinator.request(0, "confusion")
    del request["coefficients"]
    with pytest.raises(Declined, match="needs the model"):
        world.node(0).release(request)
    for participant in (0, 1):
        world.coordinator.accept(participant, world.answer(participant))
    world.coordinator.advance()
    assert world.coordinator.done
    assert world.coordinator.server.state()["confused"].tolist() == [True, True, False]
    assert world.store.query("SELECT * FROM seal") == []


def test_a_client_reads_in_the_next_request_why_its_answer_was_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    answer = world.answer(0)
    with pytest.raises(SottovoceError, match="not open"):
        world.coordinator.accept(0, {**answer, "round": 7})
    with pytest.raises(SottovoceError, match="participant-1 declined: no records"):
        world.coordinator.accept(1, {"error": "no records"})
    refused = [world.coordinator.request(participant, "context")["refused"] for participant in (0, 0, 1)]
    assert "round 7, which is not open" in refused[0]
    assert refused[1:] == ["", ""]
