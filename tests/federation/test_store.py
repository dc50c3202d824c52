"""The server's durable memory."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import EnrolmentError
from sottovoce.federation.store import Store, StoreError

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
    with pytest.raises(SottovoceError, match="another server"):
        Store.open(tmp_path / "server.sqlite", world.agreement, patience=0.0)


def test_a_message_is_stored_once_and_dropped_when_its_round_is_applied(tmp_path: Path) -> None:
    store = World(tmp_path).store
    assert store.receive(1, "gradient", 1, b"first")
    assert not store.receive(1, "gradient", 1, b"second")
    assert store.waiting() == [(1, "gradient", 1, b"first")]
    store.apply({"weight": torch.arange(6.0).reshape(2, 3)}, {"round": 1, "clients": []})
    assert store.waiting() == []
    assert store.received(1) == [("gradient", 1)]
    assert not store.receive(1, "gradient", 1, b"a second encoding of the same stream")
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


def test_what_is_interrupted_in_a_batch_is_not_in_the_file(tmp_path: Path) -> None:
    store = World(tmp_path).store
    with pytest.raises(KeyboardInterrupt), store.transaction():  # noqa: PT012
        store.receive(0, "context", 0, b"message")
        store.ask(0, "gradient", 1)
        raise KeyboardInterrupt
    assert (store.received(0), store.asked(0)) == ([], [])
