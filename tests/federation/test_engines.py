"""One law for all engines: the simulator's generator bit for bit, and one charge a release."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from sottovoce import data
from sottovoce.federation.flower import server_app
from sottovoce.federation.flower.client_app import client_app
from sottovoce.federation.flower.server_app import Driver
from sottovoce.federation.status.progress import Progress, write_run
from sottovoce.federation.store import Store
from sottovoce.models.tensors import load_tensors
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger
from sottovoce.release.secrets import participant_name
from sottovoce.run.training import train

from .flower.test_apps import Network
from .nvflare.inside import Inside
from .test_tables import Hospitals
from .world import World, same

Nodes = dict[str, Path]
"""The node.toml of each site, in the order of the participants."""


class Reliable(Network):
    """Flower's two halves without losses; nodes have their settings in a file."""

    def __init__(self, world: World, nodes: Nodes) -> None:
        super().__init__(world, 1)
        self._app = client_app()
        self._configs = {100 + i: {"settings": str(file)} for i, file in enumerate(nodes.values())}

    def _deliver(self, message: Any) -> None:
        self._replies.append(self.answer(message))

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        keys = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            keys.append(message.metadata.message_id)
            self._deliver(message)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        arrived, self._replies = self._replies, []
        return arrived

    def get_node_ids(self) -> Iterable[int]:
        return list(self._configs)


def by_flower(world: World, nodes: Nodes) -> None:
    driver = Driver(
        Reliable(world, nodes),
        world.coordinator,
        Progress(world.folder, world.coordinator, late=1.0),
        retry=60.0,
    )
    driver.drive()
    write_run(world.folder / "run", world.coordinator)
    driver.deliver_models()


def by_nvflare(world: World, nodes: Nodes) -> None:
    world.kill()
    Inside(world.agreement, world.folder, nodes).train()


def by_nobody(world: World, nodes: Nodes) -> None:
    """Coordinator and nodes in one process, which the engines carry messages between."""
    world.enrol_all()
    world.coordinator.advance()
    world.finish()
    write_run(world.folder / "run", world.coordinator)
    world.deliver_models()


ENGINES: dict[str, Callable[[World, Nodes], None]] = {
    "none": by_nobody,
    "flower": by_flower,
    "nvflare": by_nvflare,
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server_app, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(server_app, "NODES_SECONDS", 0.0)
    for name in ("task_id", "run_id", "node_id"):  # what Flower sets in the processes it starts
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pictures(folder: Path) -> tuple[World, Nodes, list[Path], dict[str, Tensor]]:
    world = World(folder)
    train(world.agreement.plan, folder / "simulated")
    clients = folder / "clients"
    names = [f"client-{index}" for index in range(world.agreement.plan.participants)]
    for name in names:
        (clients / name).mkdir()
    ledgers = [clients / name / "ledger.sqlite" for name in names]
    files = [(clients / f"{name}.npz", ledger) for name, ledger in zip(names, ledgers, strict=True)]
    return world, settings(world, names, files), ledgers, generator(folder)


def tables(folder: Path) -> tuple[World, Nodes, list[Path], dict[str, Tensor]]:
    """A named folder; nodes call its sites participant-0, … and its run by the agreement's name."""
    world = Hospitals(folder, preset="best", clip=1.0, bias_scale=0.5)
    called = tuple(map(participant_name, range(len(world.names))))
    files = [(world.sites / f"{name}.csv", world.sites / f"{name}.ledger.sqlite") for name in world.names]
    sizes = {name: file for name, (file, _) in zip(world.names, files, strict=True)}
    plan = frozen_plan(world)
    train(
        plan, folder / "simulated", dataset=replace(data.load("heart"), name="records.toml", clients=called)
    )
    assert list(sizes) == world.names
    return world, settings(world, world.names, files), [ledger for _, ledger in files], generator(folder)


def frozen_plan(world: Hospitals) -> Any:
    """The plan once all have declared their records, of a world beside this one."""
    beside = Hospitals(world.folder / "beside", preset="best", clip=1.0, bias_scale=0.5)
    beside.enrol_all()
    beside.coordinator.advance()
    return beside.coordinator.agreement.plan


def settings(world: World, names: list[str], files: list[tuple[Path, Path]]) -> Nodes:
    """The node.toml of each site, beside its records; its node's folder is world.node's."""
    agreement = world.folder / "agreement.toml"
    agreement.write_text(world.agreement.to_toml())
    nodes = {}
    for index, (name, (records, ledger)) in enumerate(zip(names, files, strict=True)):
        text = {"agreement": agreement, "records": records, "ledger": ledger}
        lines = [f"{key} = {json.dumps(str(path))}" for key, path in text.items()]
        lines += [f'directory = "state-{name}"', f"index = {index}", "simulated = true"]
        nodes[name] = world.folder / f"{name}.toml"
        nodes[name].write_text("\n".join(lines))
    return nodes


def generator(folder: Path) -> dict[str, Tensor]:
    return load_tensors(folder / "simulated" / "model.safetensors")[0]


@pytest.mark.parametrize("records", [pictures, tables], ids=["pictures", "tables"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_trains_as_the_simulator_bit_for_bit_and_charges_each_release_once(
    tmp_path: Path, engine: str, records: Callable[[Path], tuple[World, Nodes, list[Path], dict[str, Tensor]]]
) -> None:
    world, nodes, ledgers, simulated = records(tmp_path)
    ENGINES[engine](world, nodes)
    trained = load_tensors(tmp_path / "run" / "model.safetensors")[0]
    assert same(simulated, trained)
    if engine == "nvflare":
        world.store = Store.open(tmp_path / "run" / "server.sqlite", world.agreement)
    received = [world.store.received(index) for index in range(len(nodes))]
    assert [charges(path) for path in ledgers] == [sorted(each) for each in received]
    assert world.store.kept() == set(range(len(nodes)))  # everybody has their model
    world.kill()


def charges(path: Path) -> list[tuple[str, int]]:
    with Ledger.open(path, scope=None) as book:
        return sorted((entry.charge.kind, entry.charge.round) for entry in book.charges(OWN_RECORDS))
