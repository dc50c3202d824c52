"""The server's durable memory."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch

from sottovoce.federation import agree
from sottovoce.federation import store as store_module
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.store import Store, StoreError
from sottovoce.machine.files import FileError
from tests.small import federated_plan

from .world import World


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
        Store.open(tmp_path / "server.sqlite", world.agreement, timeout=0.0)


def test_a_message_is_stored_once_and_dropped_when_its_round_is_applied(tmp_path: Path) -> None:
    store = World(tmp_path).store
    store.receive(1, "gradient", 1, b"first")
    store.receive(1, "gradient", 1, b"second")
    assert store.waiting() == [(1, "gradient", 1, b"first")]
    store.apply({"weight": torch.arange(6.0).reshape(2, 3)}, {"round": 1, "clients": []})
    assert store.waiting() == []
    assert store.received(1) == [("gradient", 1)]
    store.receive(1, "gradient", 1, b"a second encoding of the same stream")
    assert store.waiting() == []
    assert [line["round"] for line in store.lines()] == [1]


def test_a_state_comes_back_bit_for_bit_and_a_changed_shape_replaces_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.store.state() is None
    state = {"weight": torch.randn(3, 5), "round": torch.tensor(2), "known": torch.tensor([True, False])}
    for changes in ({}, {"weight": torch.randn(3, 5)}, {"weight": torch.randn(7)}):
        state = {**state, **changes}
        world.store.apply(state, None)
        world.kill()
        world.store = Store.open(tmp_path / "server.sqlite", world.agreement)
        found = world.store.state() or {}
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], value) for name, value in state.items())


def test_an_index_and_a_key_belong_together_for_ever(tmp_path: Path) -> None:
    store = World(tmp_path).store
    assert store.enrol(0, b"a" * 32)
    assert not store.enrol(0, b"a" * 32)
    with pytest.raises(EnrolmentError, match="another key"):
        store.enrol(0, b"b" * 32)
    with pytest.raises(EnrolmentError, match="another participant"):
        store.enrol(1, b"a" * 32)
    assert store.keys() == {0: b"a" * 32}
    assert store.declared() == {0: 0}  # it was not asked how many records it has
    assert store.names() == {}


def test_what_is_interrupted_in_a_batch_is_not_in_the_file(tmp_path: Path) -> None:
    store = World(tmp_path).store
    with pytest.raises(KeyboardInterrupt), store.transaction():  # noqa: PT012
        store.receive(0, "context", 0, b"message")
        store.ask(0, "gradient")
        raise KeyboardInterrupt
    assert (store.received(0), store.seal_key(0, "gradient")) == ([], None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "server.sqlite", agree(federated_plan(seeded=False)), timeout=0.0)


def reopened(store: Store, tmp_path: Path) -> Store:
    """What a server finds that was killed now: closing would end an open transaction."""
    store.close()
    return Store.open(tmp_path / "server.sqlite", agree(federated_plan(seeded=False)), timeout=0.0)


STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}


def test_a_round_is_applied_as_a_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    key = store.ask(0, "gradient")
    store.receive(0, "gradient", 1, b"message")
    store.apply(STATE, {"round": 1})
    store.ask(0, "gradient")
    store.receive(0, "gradient", 2, b"another")
    later = {name: value + 1 for name, value in STATE.items()}
    with pytest.raises(StoreError):
        store.apply(later, {"round": 1})  # its line is there already: the transaction fails at its end
    found = reopened(store, tmp_path)
    state = found.state()
    assert state is not None
    assert all(torch.equal(state[name], STATE[name]) for name in STATE)
    assert found.waiting() == [(0, "gradient", 2, b"another")]
    assert found.lines() == [{"round": 1}]
    assert found.seal_key(0, "gradient") not in (None, key)


def test_a_transaction_that_raises_leaves_nothing(store: Store, tmp_path: Path) -> None:
    def interrupted() -> None:
        with store.transaction():
            store.receive(0, "context", 0, b"message")
            store.reached(0, "here")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.received(0) == []
    found = reopened(store, tmp_path)
    assert found.received(0) == []
    assert found.addresses() == {}


def test_what_is_stored_is_there_when_another_process_looks(store: Store, tmp_path: Path) -> None:
    """Each call ends its transaction: nothing waits for a later commit."""
    store.receive(0, "context", 0, b"message")
    store.ask(1, "context")
    store.enrol(2, b"k" * 32)
    store.reached(2, "here")
    other = sqlite3.connect(tmp_path / "server.sqlite")
    for table in ("release", "seal", "client", "address"):
        assert other.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,), table
    other.close()


def test_commits_reach_the_disk_and_dropped_bytes_are_overwritten(store: Store) -> None:
    assert store.query("PRAGMA synchronous") == [(2,)]  # FULL
    assert store.query("PRAGMA secure_delete") == [(1,)]
    assert store.query("PRAGMA journal_mode") == [("wal",)]
    [(timeout,)] = store.query("PRAGMA busy_timeout")
    assert timeout >= 30_000


def test_what_was_received_is_remembered_for_ever(store: Store, tmp_path: Path) -> None:
    store.receive(0, "gradient", 1, b"first")
    store.receive(0, "gradient", 1, b"second")
    assert store.waiting() == [(0, "gradient", 1, b"first")]
    store.apply(STATE, None)
    assert store.waiting() == []
    store.receive(0, "gradient", 1, b"third")
    found = reopened(store, tmp_path)
    assert found.waiting() == []
    assert found.received(0) == [("gradient", 1)]
    assert found.received(1) == []


def test_requests_are_remembered_once_each_until_their_release_is_applied(store: Store) -> None:
    for kind in ("context", "gradient"):
        for request in (b"one", b"two", b"one"):
            store.note_request(0, kind, request)
        assert sorted(store.requests(0, kind)) == [b"one", b"two"]
    assert store.requests(1, "gradient") == []
    store.apply(STATE, None)
    assert store.requests(0, "gradient") == []  # of a round that is over
    assert len(store.requests(0, "context")) == 2  # it may still come
    store.receive(0, "context", 0, b"message")
    store.apply(STATE, None)
    assert store.requests(0, "context") == []


def test_keys_live_until_their_release_is_applied(store: Store) -> None:
    keys = {(who, kind): store.ask(who, kind) for who in (0, 1) for kind in ("context", "gradient")}  # type: ignore[arg-type]
    assert len(set(keys.values())) == 4
    assert all(len(key) == 32 for key in keys.values())
    assert store.ask(0, "context") == keys[0, "context"]
    store.receive(0, "context", 0, b"message")
    store.apply(STATE, None)
    left = {place for place in keys if store.seal_key(place[0], place[1]) is not None}  # type: ignore[arg-type]
    assert left == {(1, "context")}
    assert store.seal_key(1, "context") == keys[1, "context"]
    store.apply(STATE, None, last=True)
    assert store.seal_key(1, "context") is None


def test_a_reader_delays_the_cutting_of_the_log_and_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sottovoce.machine.files._READER_MILLISECONDS", 50)
    reader = sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM release").fetchall()
    store.apply(STATE, None)
    assert "read by another process" in caplog.text
    assert (tmp_path / "server.sqlite-wal").stat().st_size > 0
    reader.close()
    caplog.clear()
    store.apply(STATE, None)
    assert (tmp_path / "server.sqlite-wal").stat().st_size == 0
    assert caplog.text == ""
    [(timeout,)] = store.query("PRAGMA busy_timeout")
    assert timeout >= 30_000


def test_a_state_keeps_names_types_shapes_and_bits(store: Store, tmp_path: Path) -> None:
    assert store.state() is None
    state = {
        "half": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        "double": torch.tensor([1e-300, torch.nan, -torch.inf], dtype=torch.float64),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(7),
    }
    store.apply({name: torch.zeros_like(value) for name, value in state.items()}, None)
    store.apply(state, None)
    store.apply({"half": torch.ones(2)}, None)  # another shape takes its place
    found = reopened(store, tmp_path).state()
    assert found is not None
    assert found["half"].tolist() == [1.0, 1.0]
    for name in ("double", "flags", "number"):
        assert found[name].dtype == state[name].dtype
        assert found[name].numpy().tobytes() == state[name].numpy().tobytes()


def test_the_run_of_an_unseeded_store_is_drawn_and_kept(store: Store, tmp_path: Path) -> None:
    run, key = store.run, store.key
    found = reopened(store, tmp_path)
    assert (found.run, found.key) == (run, key)
    assert len(run) == 16
    assert len(key) == 32
    (tmp_path / "other").mkdir()
    other = Store.open(tmp_path / "other" / "server.sqlite", agree(federated_plan(seeded=False)))
    assert other.run != run
    assert other.key != key


def test_a_damaged_store_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.kill()
    path = tmp_path / "server.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="damaged or not a store"):
        world.start()
    assert path.read_bytes() == b"not a database" * 1000


def test_a_store_has_format_4(store: Store) -> None:
    assert store.query("PRAGMA user_version") == [(4,)]


def test_errors_say_whether_the_store_is_damaged_or_cannot_be_used_now(store: Store) -> None:
    with pytest.raises(StoreError, match=r"cannot be used .*free some space"):
        store.query("SELECT * FROM nowhere")
    store.receive(0, "context", 0, b"message")
    with pytest.raises(StoreError, match="damaged or not a store of ours"):
        store.query("INSERT INTO release VALUES (0, 'context', 0, NULL)")


def test_a_store_that_is_closed_is_free_for_another_server(store: Store, tmp_path: Path) -> None:
    store.close()
    with pytest.raises(Exception, match="closed"):
        store.query("SELECT 1")
    Store.open(tmp_path / "server.sqlite", agree(federated_plan(seeded=False)), timeout=0.0).close()


def test_who_has_its_model_is_remembered(store: Store, tmp_path: Path) -> None:
    for participant in (1, 1, 2):
        store.keep_model(participant)
    assert reopened(store, tmp_path).kept() == {1, 2}


def test_a_store_makes_its_folder_for_its_owner_and_cuts_a_killed_servers_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Store] = []
    monkeypatch.setattr(Store, "_forget", lambda made: forgotten.append(made))
    folder = tmp_path / "new"
    made = Store.open(folder / "server.sqlite", agree(federated_plan(seeded=False)), timeout=0.0)
    assert forgotten == [made]
    assert folder.stat().st_mode & 0o777 == 0o700
    made.close()


def test_a_server_killed_while_it_makes_its_store_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> bytes:
        raise KeyboardInterrupt

    path, agreement = tmp_path / "server.sqlite", agree(federated_plan(seeded=False))
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "new_key", killed)
        with pytest.raises(KeyboardInterrupt):
            Store.open(path, agreement, timeout=0.0)
    made = Store.open(path, agreement, timeout=0.0)
    assert len(made.key) == 32


def test_a_store_of_another_agreement_is_refused_and_names_the_difference(
    store: Store, tmp_path: Path
) -> None:
    store.close()
    other = agree(federated_plan(seeded=False, clip=0.5))
    with pytest.raises(StoreError, match=r"another agreement \(clip is 0\.5 here and 1\.0 there\)"):
        Store.open(tmp_path / "server.sqlite", other, timeout=0.0)
    reopened(store, tmp_path)


def test_a_restored_store_that_is_open_to_all_is_closed_again(store: Store, tmp_path: Path) -> None:
    store.close()
    path = tmp_path / "server.sqlite"
    path.chmod(0o644)
    reopened(store, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
