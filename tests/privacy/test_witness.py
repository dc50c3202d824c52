"""The file beside a ledger that remembers what was charged: only added to, on the disk, and never copied."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from sottovoce.files import FileError
from sottovoce.privacy import witness as module
from sottovoce.privacy.charge import Total
from sottovoce.privacy.witness import Testimony as Said
from sottovoce.privacy.witness import Witness

ONE, TWO = Total("a", "run", 1, 0.5, 1), Total("b", "run", 2, 0.25)
BUDGET = (8.0, 1e-5, "exact")


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "ledger.sqlite")


def said(witness: Witness) -> Said:
    found = witness.read()
    assert found is not None
    return found


def lines(witness: Witness) -> list[dict[str, Any]]:
    return [json.loads(line) for line in witness.path.read_bytes().splitlines()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_lies_beside_its_ledger_and_says_nothing_before_it_was_told(
    witness: Witness, tmp_path: Path
) -> None:
    assert witness.read() is None
    assert (witness.path, witness.lock) == (
        tmp_path / "ledger.sqlite.witness",
        tmp_path / "ledger.sqlite.lock",
    )
    assert Said() == Said("", "", {}, None, genuine=False, lines=0)


def test_what_it_was_told_last_holds(witness: Witness) -> None:
    witness.note("name", "scope")
    assert said(witness) == Said("name", "scope", {}, None, genuine=True, lines=1)
    witness.note("name", "scope", [ONE, TWO])
    witness.note("name", "scope", [Total("a", "run", 3, 0.75)], BUDGET)
    known = said(witness)
    assert known.totals == {("a", "run"): Total("a", "run", 3, 0.75), ("b", "run"): TWO}
    assert (known.budget, known.genuine, known.lines) == (BUDGET, True, 5)
    assert mode(witness.path) == mode(witness.lock) == 0o600


def test_every_line_is_on_the_disk_and_the_folder_once_there_is_a_new_file(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    folders: list[Path] = []
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(module, "sync_folder", folders.append)
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        witness.note("name", "scope", [ONE])
        assert synced[-1] == witness.path.stat().st_size
    assert len(synced) == len(lines(witness)) == 2
    assert folders == [witness.path.parent]
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(("seconds", "genuine"), [(-5.5, False), (-4.5, True), (4.5, True), (5.5, False)])
def test_its_file_is_as_old_as_its_last_line_says(witness: Witness, seconds: float, genuine: bool) -> None:
    witness.note("name", "scope", [ONE])
    [line] = lines(witness)
    line["time"] = time.time_ns() + int(seconds * 1e9)
    witness.path.write_text(json.dumps(line) + "\n")
    known = said(witness)
    assert known.genuine is genuine
    assert known.totals == {("a", "run"): ONE}  # believed all the same


def test_a_new_lock_or_none_means_that_the_files_are_copies(witness: Witness, tmp_path: Path) -> None:
    witness.note("name", "scope", [ONE])
    assert said(witness).genuine
    witness.lock.rename(tmp_path / "aside")
    assert not said(witness).genuine
    assert witness._lock_time() == 0
    witness.lock.touch()
    assert not said(witness).genuine


@pytest.mark.parametrize("damage", ["{}", "[]", "nonsense", '{"ledger": "name"}'])
def test_a_line_that_cannot_be_read_makes_the_rest_no_less_true(witness: Witness, damage: str) -> None:
    witness.note("name", "scope", [ONE])
    content = witness.path.read_text()
    witness.path.write_text(damage + "\n" + content)
    known = said(witness)
    assert known.totals == {("a", "run"): ONE}
    assert not known.genuine


def test_an_empty_file_is_nobodys_word(witness: Witness) -> None:
    witness.path.touch()
    assert said(witness) == Said()


def test_a_line_that_a_crash_cut_off_is_dropped_before_the_next(witness: Witness) -> None:
    witness.note("name", "scope", [ONE])
    whole = witness.path.read_bytes()
    witness.path.write_bytes(whole + b'{"ledger": "na')
    assert said(witness).totals == {("a", "run"): ONE}
    witness.note("name", "scope", [TWO])
    assert witness.path.read_bytes().startswith(whole)
    assert [line["client"] for line in lines(witness)] == ["a", "b"]
    witness.path.write_bytes(b'{"ledger": "na')  # nothing but such a line
    witness.note("name", "scope", [TWO])
    assert [line["client"] for line in lines(witness)] == ["b"]


def test_a_line_that_the_disk_takes_in_parts_is_whole(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:7]))
    witness.note("name", "scope", [ONE, TWO])
    assert said(witness).totals == {("a", "run"): ONE, ("b", "run"): TWO}
    assert said(witness).genuine


def test_a_line_that_the_disk_does_not_take_leaves_the_file_as_old_as_it_was(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness.note("name", "scope", [ONE])
    before = witness.path.stat().st_ctime_ns
    time.sleep(0.05)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        witness.note("name", "scope", [TWO])
    assert witness.path.stat().st_ctime_ns == before  # or it would look like a copy


def test_a_slow_disk_is_given_another_line_and_after_three_is_refused(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns
    late = [6 * 10**9, 0]
    monkeypatch.setattr(time, "time_ns", lambda: now() - (late.pop(0) if late else 0))
    witness.note("name", "scope", [ONE])
    assert len(lines(witness)) == 2
    assert said(witness).genuine
    monkeypatch.setattr(time, "time_ns", lambda: now() + 6 * 10**9)
    with pytest.raises(FileError, match="keep the ledger on a local disk"):
        witness.note("name", "scope", [ONE])
    assert len(lines(witness)) == 5


def test_it_says_the_same_in_fewer_lines(witness: Witness) -> None:
    known = Said("name", "scope", {("a", "run"): ONE, ("b", "run"): TWO}, BUDGET)
    witness.rewrite(known)
    found = said(witness)
    assert (found.ledger, found.scope, found.totals, found.budget) == ("name", "scope", known.totals, BUDGET)
    assert found.genuine
    assert found.lines == 4
    assert mode(witness.path) == mode(witness.lock) == 0o600
    witness.rewrite(Said("name", "scope"))
    assert said(witness).lines == 1


@pytest.mark.parametrize(
    ("count", "genuine", "shorter"), [(1004, True, False), (1005, True, True), (1005, False, False)]
)
def test_lines_that_later_ones_replace_are_dropped_where_they_are_many(
    witness: Witness, count: int, genuine: bool, shorter: bool
) -> None:
    known = Said("name", "scope", {("a", "run"): ONE, ("b", "run"): TWO}, None, genuine, count)
    witness.shorten(known)
    assert witness.path.exists() is shorter


def test_files_that_a_restore_left_open_are_their_owners_again(witness: Witness) -> None:
    witness.restrict()  # nothing to restrict
    witness.note("name", "scope")
    for path in (witness.path, witness.lock):
        path.chmod(0o644)
    witness.restrict()
    assert mode(witness.path) == mode(witness.lock) == 0o600


def test_files_that_are_their_owners_are_left_alone(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of mode would make the lock a new one, and the files copies."""
    witness.note("name", "scope")
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("changed"))
    witness.restrict()
    assert said(witness).genuine
