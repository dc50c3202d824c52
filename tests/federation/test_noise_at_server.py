"""Noise at the server in a federation: who must agree, what is durable when, what is logged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation import server as coordinator_module
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.server import Options
from sottovoce.federation.store import Store
from sottovoce.models.tensors import load_tensors
from sottovoce.privacy.ledger import OWN_RECORDS
from sottovoce.privacy.terms import Terms
from sottovoce.release.places.server import AlreadyDrawn, DrawnRounds, Update
from sottovoce.run.training import train
from sottovoce.training.server import Server
from tests.small import aged, noise_draws

from .world import World, charged, everyone_paid, ledger, same

NOISE = {"method": "blend", "noise": "server", "context": "public", "individual": 0.1}


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds for which noise was drawn."""
    return noise_draws(monkeypatch, coordinator_module)


@pytest.mark.parametrize("centring", [0.0, 0.1])
def test_a_federation_and_the_simulator_give_the_same_generator(
    tmp_path: Path, draws: list[int], centring: float
) -> None:
    linear = {"model": "linear", "coefficients": 0, "centring": centring} if centring else {}
    world = World(tmp_path, **NOISE, **linear)
    world.enrol_all()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    assert everyone_paid(world)
    assert draws == [1, 2, 3, 4]
    with ledger(world, 0) as book:
        rows = list(book.charges(OWN_RECORDS))
        in_rounds = [entry.charge for entry in rows if entry.charge.kind == "gradient"]
        assert {charge.place for charge in in_rounds} == {"server"}
        assert book.at_server(OWN_RECORDS) == len(in_rounds) == len(rows) - bool(centring)
    assert bool(world.coordinator.server.centre().any()) == bool(centring)


def test_a_client_takes_part_only_if_its_own_owner_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, **NOISE)
    world.agreement = type(world.agreement)(world.agreement.plan.replace(seeded=False), world.agreement.facts)
    folder = tmp_path / "clients"
    files = (folder / "client-0", folder / "client-0.npz", world.agreement)
    offer = {**world.coordinator.roster.offer(), "agreement": world.agreement.digest()}
    with pytest.raises(EnrolmentError, match="noise_at_server = true"):
        Node(*files, wish=0).enrol(offer)
    assert Node(*files, wish=0, terms=Terms(noise_at_server=True)).enrol(offer)["participant"] == 0


def test_state_and_clients_of_a_sum_are_durable_before_any_coefficient_made_from_it(
    tmp_path: Path, draws: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that a killed server had not stored was never seen; one that was stored is never made again."""
    world = World(tmp_path, **NOISE, seeded=False)
    monkeypatch.setattr(World, "node", lenient(world))
    world.enrol_all()
    world.step()
    seen = []

    def killed(self: Store, *given: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Store, "apply", killed)
        before = world.coordinator.request(*next(iter(world.coordinator.missing().items())))
        with pytest.raises(Killed):
            world.step()
    world.kill()
    world.start()
    assert world.coordinator.server.round == 1  # as it was before the draw
    assert not world.coordinator.missing()  # and all messages are there
    assert before["round"] == 2
    world.coordinator.advance()
    assert draws == [1, 2, 2]
    assert [line["clients"] for line in world.store.lines()][1]
    seen.append(world.coordinator.server.state())
    world.kill()
    world.start()
    assert same(seen[0], world.coordinator.server.state())
    world.finish()
    assert draws == [1, 2, 2, 3, 4]
    assert world.store.waiting() == []


def test_nothing_from_before_the_noise_is_logged(tmp_path: Path) -> None:
    world = World(tmp_path, **NOISE, options=Options(diagnostics=True))
    world.enrol_all()
    world.finish()
    for line in world.store.lines():
        assert line["effective_gain"] is None
        assert line["uncharged_diagnostics"] == {}


def test_who_is_missing_is_not_in_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Update] = []
    real = Server.receive_update

    def watched(self: Server, update: Update) -> None:
        found.append(update)
        real(self, update)

    monkeypatch.setattr(Server, "receive_update", watched)
    world = World(tmp_path, **NOISE, options=Options(patience=0.0))
    world.enrol_all()
    chosen = sorted(world.coordinator.missing())
    world.coordinator.accept(chosen[0], world.answer(chosen[0]))
    world.coordinator.advance()
    assert found[0].participants == (chosen[0],)


def go_on(world: World) -> None:
    world.start()
    world.step()
    world.kill()


def put_back_store(backup: Path, folder: Path) -> None:
    """Only the store is restored; its notes stay."""
    for part in folder.glob("server.sqlite*"):
        if part.name not in ("server.sqlite.witness", "server.sqlite.lock"):
            part.unlink()
    shutil.copy(backup / "server.sqlite", folder)


def put_back_whole(backup: Path, folder: Path) -> None:
    """Store, notes and lock are restored."""
    for part in folder.glob("server.sqlite*"):
        part.unlink()
    for part in backup.iterdir():
        shutil.copy(part, folder)


def put_back_in_place(backup: Path, folder: Path) -> None:
    """Store and notes are restored; the lock stays."""
    put_back_store(backup, folder)
    shutil.copy(backup / "server.sqlite.witness", folder)


def put_back_without_notes(backup: Path, folder: Path) -> None:
    """A backup tool has left the notes out."""
    put_back_whole(backup, folder)
    (folder / "server.sqlite.witness").unlink(missing_ok=True)


@pytest.mark.parametrize("put", [put_back_store, put_back_whole, put_back_in_place, put_back_without_notes])
@pytest.mark.parametrize("when", ["before it is asked for", "when all messages are there"])
def test_a_restored_store_never_draws_the_noise_of_a_sum_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None], when: str
) -> None:
    """The attack: restore a store from before a round was closed, close it, collect draws, uncharged."""
    seen: set[bytes] = set()
    real = Server.receive_update

    def collected(self: Server, update: Update) -> None:
        if update.round == 2:
            seen.add(update.columns.numpy().tobytes())
        real(self, update)

    monkeypatch.setattr(Server, "receive_update", collected)
    world = World(tmp_path, **NOISE, seeded=False)
    monkeypatch.setattr(World, "node", lenient(world))
    world.enrol_all()
    world.step()
    if when == "when all messages are there":
        for participant in list(world.coordinator.missing()):
            world.coordinator.accept(participant, world.answer(participant))
    world.kill()
    backup = tmp_path / "backup"
    backup.mkdir()
    for part in tmp_path.glob("server.sqlite*"):
        shutil.copy(part, backup)
    aged(backup / "server.sqlite.witness")
    world.start()
    world.step()
    world.kill()
    assert len(seen) == 1
    paid = charged(world, 0)
    for _ in range(4):
        put(backup, tmp_path)
        with pytest.raises(AlreadyDrawn, match="start a new run"):
            go_on(world)
    assert len(seen) == 1
    assert charged(world, 0) == paid


def test_a_server_killed_before_it_could_note_a_round_goes_on(
    tmp_path: Path, draws: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, **NOISE, seeded=False)
    monkeypatch.setattr(World, "node", lenient(world))
    world.enrol_all()

    def killed(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(DrawnRounds, "note", killed)
        with pytest.raises(Killed):
            world.step()
    world.kill()
    world.start()
    assert world.coordinator.server.round == 1
    world.finish()
    assert draws == [1, 2, 3, 4]
    assert set(DrawnRounds.reopen(tmp_path / "server.sqlite", world.store.run).digests) == {1, 2, 3, 4}


def test_a_store_that_is_seeded_or_finished_may_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded draw that is repeated is the same draw, and who has drawn everything draws nothing more."""
    for seeded in (True, False):
        folder = tmp_path / str(seeded)
        world = World(folder, **NOISE, seeded=seeded)
        with monkeypatch.context() as patch:
            patch.setattr(World, "node", World.node if seeded else lenient(world))
            world.enrol_all()
            (world.step if seeded else world.finish)()
        world.kill()
        (folder / "other").mkdir()
        shutil.copy(folder / "server.sqlite", folder / "other")
        Store.open(folder / "other" / "server.sqlite", world.agreement).close()


def lenient(world: World) -> Any:
    """Nodes whose owners trust the server."""

    def node(self: World, index: int) -> Node:
        folder = self.folder / "clients"
        terms = Terms(ledger=folder / f"client-{index}" / "ledger.sqlite", noise_at_server=True)
        files = (folder / f"client-{index}", folder / f"client-{index}.npz", self.agreement)
        return Node(*files, wish=index, terms=terms)

    return node
