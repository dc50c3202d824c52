"""The end of a federation: everybody who trained has their model, for nothing more than they have paid."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sottovoce.channel import ChannelError
from sottovoce.federation.node import Declined, Node
from sottovoce.federation.sealing import EnrolmentError, seal_downward, unseal_downward
from sottovoce.federation.server import Options
from sottovoce.models.parameters import state_dict_at
from sottovoce.models.tensors import load_tensors
from sottovoce.personal import PersonalModel
from sottovoce.privacy.ledger import OWN_RECORDS
from sottovoce.privacy.terms import Terms
from sottovoce.run.training import train
from sottovoce.training.server import Server

from .world import World, charged, ledger

QUICK = {"model": "linear", "rounds": 2, "averaging": 1.0}


def trained(folder: Path, **changes: object) -> World:
    world = World(folder, **{**QUICK, **changes})
    world.enrol_all()
    world.finish()
    return world


def test_everybody_ends_with_the_model_that_the_simulator_gives_them_and_pays_nothing_for_it(
    tmp_path: Path,
) -> None:
    world = trained(tmp_path)
    before = [charged(world, index) for index in range(3)]
    world.deliver_models()
    assert world.coordinator.missing() == {}
    assert [charged(world, index) for index in range(3)] == before
    train(world.agreement.plan, tmp_path / "simulated")
    blueprint = world.agreement.blueprint()
    server = Server(blueprint)
    server.load_state(load_tensors(tmp_path / "simulated" / "model.safetensors")[0])
    for index in range(3):
        theta = blueprint.theta(server.coefficients([index])[0])
        found = load_file(world.model(index))
        for name, value in state_dict_at(blueprint.module, theta).items():
            assert torch.equal(found[name], value), name
        origin = PersonalModel.read(world.model(index)).origin
        assert (origin.client, origin.run) == (f"client-{index}", world.store.run)
        with ledger(world, index) as book:
            assert origin.epsilon == pytest.approx(book.epsilon(OWN_RECORDS, 1e-5, "exact"))
        assert stat.S_IMODE(world.model(index).stat().st_mode) == 0o600
        assert "personal.safetensors" in (world.model(index).parent / "client.log").read_text()
    assert world.model(0).read_bytes() != world.model(1).read_bytes()


def test_a_client_that_was_away_at_the_end_gets_its_model_from_a_server_that_was_restarted(
    tmp_path: Path,
) -> None:
    world = trained(tmp_path)
    for index in (0, 1):
        world.coordinator.accept(index, world.answer(index))
    assert world.coordinator.missing() == {2: "model"}
    assert not world.coordinator.closed
    world.kill()
    world.start()
    assert world.coordinator.done
    assert world.coordinator.missing() == {2: "model"}
    world.deliver_models()
    assert world.coordinator.closed
    calm = trained(tmp_path / "calm")
    calm.deliver_models()
    assert world.model(2).read_bytes() == calm.model(2).read_bytes()


def test_patience_with_those_who_do_not_come_ends_and_they_are_still_known(tmp_path: Path) -> None:
    world = trained(tmp_path, options=Options(patience=0.0))
    assert world.coordinator.closed
    assert set(world.coordinator.missing()) == {0, 1, 2}


def test_who_released_nothing_gets_no_model(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK, clients_per_round=3, options=Options(patience=0.0))
    world.enrol_all()
    while not world.coordinator.done:
        for index in (0, 1):
            world.coordinator.accept(index, world.answer(index))
        world.coordinator.advance()
    assert set(world.coordinator.missing()) == {0, 1}


def test_a_model_is_under_a_seal_that_only_its_own_client_opens(tmp_path: Path) -> None:
    world = trained(tmp_path)
    request = world.coordinator.request(0, "model")
    plain = world.coordinator.server.coefficients([0])[0].numpy().astype("<f4").tobytes()
    assert plain[:16] not in request["model"]
    assert world.coordinator.request(0, "model")["model"] != request["model"]  # a fresh salt each time
    with pytest.raises(ChannelError, match="does not match its seal"):
        world.node(1).keep_model(request)
    damaged = bytearray(request["model"])
    damaged[40] ^= 1
    with pytest.raises(ChannelError, match="does not match its seal"):
        world.node(0).keep_model({**request, "model": bytes(damaged)})
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.node(0).keep_model({**request, "agreement": "0" * 32})
    with pytest.raises(EnrolmentError, match="not enrolled"):
        world.node(0, directory="stranger").keep_model(request)
    assert not world.model(0).exists()
    assert not world.model(1).exists()


def test_coefficients_of_another_size_or_not_finite_are_no_model(tmp_path: Path) -> None:
    world = trained(tmp_path)
    request = world.coordinator.request(0, "model")
    stream, agreed = (request["run"], "participant-0", "model", 0), world.coordinator.roster.agreed(0)
    sent = unseal_downward(request["model"], stream, agreed=agreed)
    for bad in (sent[:-4], b"", b"\x00\x00\xc0\x7f" + sent[4:]):
        with pytest.raises(Declined, match="of another size, or not finite"):
            world.node(0).keep_model({**request, "model": seal_downward(bad, stream, agreed=agreed)})


def test_the_servers_word_alone_does_not_say_that_a_client_has_its_model(tmp_path: Path) -> None:
    world = trained(tmp_path)
    for answer in ({"kind": "model"}, {"kind": "model", "kept": "yes"}):
        world.coordinator.accept(0, answer)
    assert 0 in world.coordinator.missing()


def test_clients_whose_ledgers_lie_side_by_side_keep_models_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK)
    folder = tmp_path / "clients"

    def node(index: int) -> Node:
        records = folder / f"client-{index}.npz"
        state = folder / f"client-{index}"
        return Node(state, records, world.agreement, wish=index, terms=Terms(), simulated=True)

    world.node = lambda index, *_: node(index)  # type: ignore[method-assign, assignment]
    world.enrol_all()
    world.finish()
    world.deliver_models()
    assert {path.name for path in folder.glob("*personal.safetensors")} == {
        f"client-{index}.personal.safetensors" for index in range(3)
    }
