"""Whoever only looks at a ledger sees what it holds, whatever its format, and leaves no trace."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.accounting import Budget, Charge
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.ledger_file import LedgerError

from .test_history import old_format

PLENTY = Budget(epsilon=1e6, delta=1e-5, accounting="exact")


def charge(round_number: int, client: int = 0, *, run: str = "run", kind: str = "gradient") -> Charge:
    return Charge(run, client, kind, round_number, sensitivity=0.5, sigma=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, scope="records") as ledger:
        charges = [charge(1), charge(2), charge(0, kind="context"), charge(1, client=1), charge(1, run="b")]
        ledger.commit_many([(each, b"m") for each in charges], PLENTY)
        ledger.willing(30.0)
    return path


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}


def test_it_says_what_the_ledger_says_and_leaves_the_folder_as_it_was(path: Path) -> None:
    before = content(path.parent)
    with Ledger.peek(path) as seen:
        assert seen.spent(0) == pytest.approx(4 * 0.25)
        assert seen.past.total_in("run", 0).spent == pytest.approx(3 * 0.25)
        assert seen.by_kind("run") == {
            ("0", "context"): (1, 0.25),
            ("0", "gradient"): (2, 0.5),
            ("1", "gradient"): (1, 0.25),
        }
        assert seen.allowed.epsilon == 30.0
        assert len(list(seen.charges())) == 5
        assert content(path.parent) == before
    assert content(path.parent) == before


CHANGES: dict[str, Callable[[Ledger], object]] = {
    "a charge": lambda ledger: ledger.commit(charge(9), b"m", PLENTY),
    "a budget": lambda ledger: ledger.willing(1.0),
    "a raise": lambda ledger: ledger.raise_budget(90.0),
    "trust": lambda ledger: ledger.trust_copy(),
    "what is known elsewhere": lambda ledger: ledger.past.expect(next(iter(ledger.past.totals()))),
    "a comparison": lambda ledger: ledger.past.compare(),
}


@pytest.mark.parametrize("format_number", [1, 4])
@pytest.mark.parametrize("change", CHANGES)
def test_whoever_only_looks_changes_neither_the_ledger_nor_its_witness(
    path: Path, tmp_path: Path, change: str, format_number: int
) -> None:
    if format_number == 1:
        path = tmp_path / "old.sqlite"
        old_format(path, "records", "0")
    before = content(path.parent)
    with Ledger.peek(path) as seen, pytest.raises(SottovoceError, match="nothing is written"):
        CHANGES[change](seen)
    assert content(path.parent) == before


def test_a_ledger_of_version_01_is_read_as_it_would_be_opened_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old_format(path, "division", "participant-0")
    before = content(tmp_path)
    with Ledger.peek(path) as seen:
        assert seen.spent("participant-0") == 0.25
        assert seen.budget is None
        assert [each.charge.place for each in seen.charges()] == ["client"]
    assert content(tmp_path) == before


def test_nobody_is_kept_from_writing_and_nobody_is_waited_for(path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as writer, Memory(path).lock.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer.execute("BEGIN IMMEDIATE")
        with Ledger.peek(path) as seen:
            assert seen.spent(1) == 0.25
        writer.execute("ROLLBACK")


def test_what_is_only_in_the_log_is_read_also_behind_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.sqlite"
    link.symlink_to(path)
    with Ledger.open(path, scope="records") as ledger:
        ledger.forget("run", before_round=9)  # empties the log
        ledger.commit(charge(7), b"m", PLENTY)
        for place in (path, link):
            with Ledger.peek(place) as seen:
                assert seen.by_kind("run")["0", "gradient"] == (3, 0.75)


@pytest.mark.parametrize("what", ["nothing", "no database", "another program's", "a later format"])
def test_what_is_no_ledger_of_ours_is_refused_in_one_line(path: Path, tmp_path: Path, what: str) -> None:
    other = tmp_path / "other.sqlite"
    if what == "no database":
        other.write_bytes(b"no ledger")
    elif what != "nothing":
        with closing(sqlite3.connect(path if what == "a later format" else other)) as file:
            file.execute("PRAGMA user_version = 99")
            file.commit()
    with pytest.raises(LedgerError) as error:
        Ledger.peek(path if what == "a later format" else other)
    assert "\n" not in str(error.value)
    assert other.exists() == (what in ("no database", "another program's"))
