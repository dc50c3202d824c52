"""Both halves of the Flower app over a network that loses, doubles, delays and damages messages."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from sottovoce.errors import SottovoceError
from sottovoce.federation.flower import server_app, write_app
from sottovoce.federation.flower.client_app import RECORD, client_app, member_of
from sottovoce.federation.flower.server_app import Driver
from sottovoce.federation.node import Node
from sottovoce.federation.server import Options
from sottovoce.federation.settings import CANNOT, SettingsError
from sottovoce.federation.site.holdings import Holdings
from sottovoce.federation.site.recovery import LEFT
from sottovoce.federation.status.progress import Progress
from sottovoce.models.tensors import load_tensors
from sottovoce.privacy.ledger import Ledger, LedgerError
from sottovoce.report.look import look
from sottovoce.run.training import train
from tests.federation.world import World, same


class Network(Grid):
    """Nodes 100, 101, … in this process, behind a network with a mind of its own."""

    def __init__(self, world: World, seed: int, *, agreements: dict[int, Path] | None = None) -> None:
        self._random = random.Random(seed)
        self._app = client_app()
        self._clients = clients = world.folder / "clients"
        self._configs = {
            100 + index: {
                "partition-id": index,
                "directory": str(clients / f"client-{index}"),
                "records": str(clients / f"client-{index}.npz"),
                "agreement": str((agreements or {}).get(index, clients / "agreement.toml")),
                "ledger": str(clients / f"client-{index}" / "ledger.sqlite"),
                "simulated": True,  # the plan is seeded
            }
            if not world.agreement.simulation
            else {"partition-id": index, "num-partitions": 3}
            for index in range(world.agreement.plan.participants)
        }
        self._replies: list[Message] = []
        self.told: list[dict[str, Any]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            keys.append(message.metadata.message_id)
            for _ in range(self._random.choice([0, 1, 1, 2])):
                self._deliver(message)
        return keys

    def answer(self, message: Message) -> Message:
        """What the app of a node makes of a message."""
        node = message.metadata.dst_node_id
        config = {"threads": 1, "simulated-clients": str(self._clients)}
        context = Context(1, node, dict(self._configs[node]), RecordDict(), config, 1)
        return self._app(message, context)

    def _deliver(self, message: Message) -> None:
        reply = self.answer(message)
        fields = dict(reply.content.config_records[RECORD])
        self.told.append(fields)
        fate = self._random.random()
        if fate < 0.15:
            return
        if fate < 0.3 and "release" in fields:
            damaged = bytearray(fields["release"])
            damaged[self._random.randrange(len(damaged))] ^= 1 + self._random.randrange(255)
            reply = Message(
                RecordDict({RECORD: ConfigRecord({**fields, "release": bytes(damaged)})}), reply_to=message
            )
        elif fate < 0.4:
            reply = Message(Error(code=5, reason="the node is gone"), reply_to=message)
        self._replies.append(reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        self._random.shuffle(self._replies)
        ready = [reply for reply in self._replies if reply.metadata.reply_to_message_id in wanted]
        arrived = [reply for reply in ready if self._random.random() < 0.6]
        self._replies = [reply for reply in self._replies if reply not in arrived]
        return arrived

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self._configs if self._random.random() < 0.9]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *unused: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *unused: Any, **options: Any) -> Iterable[Message]:
        raise NotImplementedError


def sent(fields: Mapping[str, Any], kind: str) -> Message:
    """A message to the first node, with the name that a network would give it."""
    message = Message(RecordDict({RECORD: ConfigRecord(dict(fields))}), 100, kind)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server_app, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(server_app, "NODES_SECONDS", 0.0)
    for name in ("task_id", "run_id", "node_id"):  # what Flower sets in the processes it starts
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def driver_of(world: World, network: Network, *, retry: float) -> Driver:
    progress = Progress(world.folder, world.coordinator, late=retry)
    return Driver(network, world.coordinator, progress, retry=retry)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_unreliable_network_changes_no_bit_of_the_generator(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path)
    driver = driver_of(world, Network(world, seed), retry=0.001)
    driver.drive()
    driver.deliver_models()
    assert len(list((tmp_path / "clients").glob("*personal.safetensors"))) == 3
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())


class SlowNetwork(Network):
    """A sound network with a clock of its own; nodes take `seconds` for each message, one after the other."""

    def __init__(self, world: World, seconds: float) -> None:
        super().__init__(world, 1)
        self._seconds = seconds
        self._busy: dict[int, float] = {}
        self._under_way: list[tuple[float, Message]] = []
        self.now = 0.0
        self.pushed = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            keys.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            self._busy[node] = max(self.now, self._busy.get(node, 0.0)) + self._seconds
            self._under_way.append((self._busy[node], message))
            self.pushed += 1
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        done = [message for due, message in self._under_way if due <= self.now]
        self._under_way = [(due, message) for due, message in self._under_way if due > self.now]
        return [self.answer(message) for message in done]

    def get_node_ids(self) -> Iterable[int]:
        return list(self._configs)


def test_nodes_slower_than_a_retry_are_not_buried_in_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, rounds=4)
    network = SlowNetwork(world, seconds=40.0)
    monkeypatch.setattr(server_app, "time", network)
    monkeypatch.setattr(server_app, "POLL_SECONDS", 1.0)
    driver_of(world, network, retry=15.0).drive()
    wanted = 3 * (1 + 1) + sum(len(chosen) for chosen in world.coordinator.blueprint.schedule)
    assert network.pushed <= 4 * wanted
    assert network.now <= 40.0 * 4 * wanted / 3


class LeavingNetwork(SlowNetwork):
    """Node 100 goes away with the first release that it is asked for, and is back after a minute."""

    _away = False
    _back = float("inf")

    def answer(self, message: Message) -> Message:
        asked, node = message.metadata.message_type, message.metadata.dst_node_id
        if (asked, node, self._away) == ("train.release", 100, False):
            self._away, self._back = True, self.now + 60.0
            return Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        return super().answer(message)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self._configs if node != 100 or not self._away or self.now >= self._back]


def test_a_node_that_comes_back_is_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, rounds=2, clients_per_round=3)
    network = LeavingNetwork(world, seconds=1.0)
    monkeypatch.setattr(server_app, "time", network)
    monkeypatch.setattr(server_app, "POLL_SECONDS", 1.0)
    driver_of(world, network, retry=600.0).drive()
    assert 60.0 < network.now < 120.0


def test_a_node_that_is_refused_hears_why_and_the_others_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, options=Options(patience=1.0), rounds=2, seeded=False)
    other = World(tmp_path / "other", epsilon=1.0, seeded=False)
    false = other.folder / "clients" / "agreement.toml"
    network = Network(world, 1, agreements={2: false})
    driver_of(world, network, retry=0.001).drive()
    assert any("another agreement" in str(fields.get("error")) for fields in network.told)
    assert "node 102 refused" in caplog.text
    assert not (tmp_path / "clients" / "client-2" / "ledger.sqlite").exists()
    assert world.coordinator.done


def test_a_real_node_refuses_a_seeded_agreement_before_anything_is_charged(tmp_path: Path) -> None:
    world = World(tmp_path)
    clients = tmp_path / "clients"
    node = {
        "directory": str(clients / "client-0"),
        "records": str(clients / "client-0.npz"),
        "agreement": str(clients / "agreement.toml"),
    }
    # What the server sends along must not turn a real node into a simulated one.
    config = {"threads": 1, "simulated-clients": str(clients)}
    message = sent(world.coordinator.roster.offer(), "query.enrol")
    reply = client_app()(message, Context(1, 100, node, RecordDict(), config, 1))
    assert "error" in reply.content.config_records[RECORD]
    assert not (clients / "client-0").exists()


def test_a_node_without_its_paths_says_to_its_owner_alone_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    message = sent(world.coordinator.roster.offer(), "query.enrol")
    reply = client_app()(message, Context(1, 100, {"partition-id": 0}, RecordDict(), {"threads": 1}, 1))
    assert reply.content.config_records[RECORD] == {"error": CANNOT}
    assert "agreement is missing" in caplog.text


@pytest.mark.parametrize("flag", ["noise-at-server", "helper", "simulated"])
@pytest.mark.parametrize("said", ["yes", "maybe", "false", 1])
def test_a_setting_that_is_neither_true_nor_false_is_refused(
    tmp_path: Path, flag: str, said: str | int
) -> None:
    node = {name: str(tmp_path / name) for name in ("directory", "records", "agreement")}
    with pytest.raises(
        SettingsError, match=rf"^the node config: {flag.replace('-', '_')} is .*true or false"
    ):
        member_of(Context(1, 100, {**node, flag: said}, RecordDict(), {"threads": 1}, 1))
    assert list(tmp_path.iterdir()) == []


def test_a_node_reads_the_file_of_settings_that_its_config_names_and_no_other_key_of_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    file = tmp_path / "clients" / "node.toml"
    file.write_text(
        'agreement = "agreement.toml"\ndirectory = "state"\nrecords = "client-1.npz"\nindex = 1\n'
        "simulated = true\n"
    )
    config = {"settings": str(file), "partition-id": 2, "noise-at-server": True}
    member = member_of(Context(1, 100, config, RecordDict(), {"threads": 1}, 1))
    assert isinstance(member, Node)
    assert (member.wish, member.records.name, member.terms.noise_at_server) == (1, "client-1.npz", False)
    assert member.agreement == world.agreement


@pytest.mark.parametrize("finish", [True, False])
def test_a_node_finishes_at_home_as_its_owner_says(tmp_path: Path, finish: bool) -> None:
    World(tmp_path)
    clients = tmp_path / "clients"
    node = {
        "directory": str(clients / "client-0"),
        "records": str(clients / "client-0.npz"),
        "agreement": str(clients / "agreement.toml"),
        "simulated": True,  # the plan is seeded
        "finish": finish,
    }
    member = member_of(Context(1, 100, node, RecordDict(), {"threads": 1}, 1))
    assert isinstance(member, Node)
    assert member.finish is finish


@pytest.mark.parametrize("fault", ["label", "shape", "bug"])
def test_records_that_became_unusable_tell_the_server_nothing(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.enrol_all()
    clients = tmp_path / "clients"
    file = clients / "client-0.npz"
    with np.load(file) as arrays:
        x, y = arrays["x"], arrays["y"]
    np.savez(
        file,
        x=x[:, :, 1:] if fault == "shape" else x,
        y=np.where(y == y[0], 4242, y) if fault == "label" else y,
    )
    if fault == "bug":

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError(f"{file} has a record 4242")

        monkeypatch.setattr(Holdings, "records", broken)
    network = Network(world, 1)
    network._deliver(sent(world.coordinator.request(0, "context"), "train.release"))
    [told] = network.told
    assert {name: told[name] for name in ("kind", "round")} == {"kind": "context", "round": 0}
    assert len(told["release"]) == len(world.answer(1)["release"])
    log = (clients / "client-0" / "client.log").read_text()
    if fault != "label":  # where only some are unusable, those alone count as zero
        assert "ERROR the context of round 0 counts as zero" in log
        assert ("27" if fault == "shape" else "4242") in log


def test_a_client_that_was_put_back_tells_the_server_and_its_owners_status(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    mine = tmp_path / "clients" / "client-0"
    network = Network(world, 1)
    for put_back in (False, True):
        if put_back:
            shutil.copytree(mine, tmp_path / "backup")
            shutil.rmtree(mine)
            shutil.copytree(tmp_path / "backup", mine)
        network._deliver(sent(world.coordinator.request(0, "context"), "train.release"))
        assert ("left" in network.told[-1]) is put_back
    found = look(mine)
    assert (found.state, found.why) == ("failed", f"it refused: {LEFT}")


def test_a_refusal_of_what_the_budget_does_not_cover_tells_the_server_that_and_no_more(
    tmp_path: Path,
) -> None:
    """Neither where the ledger lies, nor what was spent in it, nor what its owner allows."""
    world = World(tmp_path)
    world.enrol_all()
    with Ledger.open(tmp_path / "clients" / "client-0" / "ledger.sqlite", scope=None) as ledger:
        ledger.willing(0.001)
    network = Network(world, 1)
    network._deliver(sent(world.coordinator.request(0, "context"), "train.release"))
    assert network.told == [{"error": "refused"}]
    log = (tmp_path / "clients" / "client-0" / "client.log").read_text()
    assert "beyond the budget of 0.001" in log


@pytest.mark.parametrize("ours", [True, False])
def test_what_keeps_a_client_from_answering_stays_with_it_in_one_line_unless_it_is_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ours: bool
) -> None:
    world = World(tmp_path)
    world.enrol_all()

    def broken(*_: object) -> None:
        raise LedgerError("free some space") if ours else RuntimeError("free some space")

    monkeypatch.setattr(Node, "release", broken)
    network = Network(world, 1)
    network._deliver(sent(world.coordinator.request(0, "context"), "train.release"))
    assert network.told == [{"error": "this client cannot answer: its own log says why"}]
    [said] = [record for record in caplog.records if "cannot answer" in record.getMessage()]
    assert said.getMessage() == "cannot answer: free some space"
    assert (said.exc_info is None) == ours


def test_a_written_app_is_complete_and_never_overwritten(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False)
    app = write_app(world.agreement, tmp_path / "app", run_directory=tmp_path / "run")
    names = {path.name for path in (app / "sottovoce_app").iterdir()}
    assert names == {"__init__.py", "agreement.toml", "client_app.py", "server_app.py"}
    assert "torch" not in (app / "pyproject.toml").read_text().split("dependencies = ")[1].split("]")[0]
    with pytest.raises(SottovoceError, match="already holds an app"):
        write_app(world.agreement, tmp_path / "app", run_directory=tmp_path / "run")
