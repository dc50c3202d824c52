"""The ledger in memory: refuses what the durable one refuses, and is on the disk when it is kept."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from studies.memory import MemoryFile, MemoryLedger

from sottovoce.machine.rollback import Memory
from sottovoce.privacy.history import Remembered
from sottovoce.privacy.ledger import Budget, Charge, Ledger, LedgerError, Overspent, StreamReused
from sottovoce.privacy.ledger_file import LedgerFile

BUDGET = Budget(epsilon=8.0, delta=1e-5, accounting="exact")


def charge(round_number: int = 1, sigma: float = 0.1, kind: str = "gradient") -> Charge:
    return Charge("run", "mine", kind, round_number, sensitivity=0.01, sigma=sigma)


def test_nothing_is_on_the_disk_before_it_is_kept_and_all_of_it_after(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with MemoryLedger.begin(path, scope="s") as book:
        book.commit_many([(charge(1), b""), (charge(2), b"")], BUDGET)
        with Ledger.open(path, scope="s") as durable:
            assert durable.clients() == []
        book.keep()
    with Ledger.open(path, scope="s") as durable:
        assert durable.releases("mine") == 2
        assert durable.past.lost == []
        assert not durable.past.copied
        durable.commit(charge(3), b"more", BUDGET)
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_goes_on_from_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with MemoryLedger.begin(path, scope="s") as book:
        book.commit(charge(1), b"kept", BUDGET)
        book.keep()
        book.commit(charge(2), b"forgotten with the process", BUDGET)
    with MemoryLedger.begin(path, scope="s") as again:
        assert not again.past.copied
        assert again.stored("run", "mine", "gradient", 1) == b"kept"
        assert again.stored("run", "mine", "gradient", 2) is None
        again.commit(charge(2), b"again", BUDGET)
        again.keep()
    with Ledger.open(path, scope="s") as durable:
        assert durable.releases("mine") == 2


def test_it_refuses_what_the_durable_one_refuses(tmp_path: Path) -> None:
    with MemoryLedger.begin(tmp_path / "ledger.sqlite", scope="s") as book:
        book.commit(charge(1), b"", BUDGET)
        with pytest.raises(StreamReused):
            book.commit_many([(charge(2), b""), (charge(1), b"")], BUDGET)
        assert book.releases("mine") == 1
        with pytest.raises(Overspent):
            book.commit(charge(3, sigma=0.001), b"", BUDGET)
        book.keep()
    with pytest.raises(LedgerError, match="other records"):
        MemoryLedger.begin(tmp_path / "ledger.sqlite", scope="others")


def test_a_new_one_is_on_the_disk_with_its_witness_before_anything_is_charged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    name = MemoryLedger.begin(path, scope="demo").name
    memory = Memory(path)
    known = Remembered.of(memory.recall() or [])
    assert (known.ledger, known.scope, memory.copied) == (name, "demo", False)
    with Ledger.open(path, scope="demo") as ledger:
        assert (ledger.name, ledger.clients()) == (name, [])


def test_a_file_in_memory_takes_over_all_that_is_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, scope="s") as durable:
        durable.commit(charge(1), b"once", BUDGET)
    file = MemoryFile(path, "s")
    assert file.query("SELECT body FROM message") == [(b"once",)]
    file.close()


def test_a_damaged_ledger_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"something else, and long enough to be a page" * 4096)
    with pytest.raises(LedgerError, match="file is not a database"):
        MemoryFile(path, "s")


def test_a_file_in_memory_is_its_owner_s_when_it_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    file = MemoryFile(path, "s")
    file.query("INSERT INTO message VALUES (1, 'kept')")
    before = path.read_bytes()
    mask = os.umask(0)
    try:
        file.save()
    finally:
        os.umask(mask)
    file.close()
    assert path.read_bytes() != before
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(LedgerFile.open(path, "s")) as kept:
        assert kept.query("SELECT body FROM message") == [("kept",)]
