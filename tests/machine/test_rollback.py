"""What is remembered beside a store: only added to, on the disk, and never trusted when it is a copy."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from sottovoce.machine import rollback as module
from sottovoce.machine.files import FileError
from sottovoce.machine.rollback import Memory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def memory(store: Path) -> Memory:
    return Memory(store)


def lines(memory: Memory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in memory.path.read_bytes().splitlines()]


def counts(memory: Memory) -> list[int | None]:
    """What a new process would be told."""
    return [fact.get("count") for fact in Memory(memory._store).recall() or []]


def copied(memory: Memory) -> bool:
    """What a new process would find."""
    again = Memory(memory._store)
    again.recall()
    return again.copied


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_lies_beside_its_store_and_knows_nothing_before_it_was_told(memory: Memory, store: Path) -> None:
    assert memory.recall() is None
    assert not memory.copied
    assert (memory.path, memory.lock) == (Path(f"{store}.witness"), Path(f"{store}.lock"))
    assert Memory(store, lock=store.with_name("lock")).lock == store.with_name("lock")


def test_facts_come_back_in_order(memory: Memory) -> None:
    memory.note([{"count": 1}])
    memory.note([{"count": 2}, {"count": 3}])
    assert counts(memory) == [1, 2, 3]
    assert not copied(memory)
    assert mode(memory.path) == mode(memory.lock) == 0o600


def test_a_store_is_begun_lost_or_neither(memory: Memory, store: Path) -> None:
    assert not memory.begun
    assert not memory.lost
    memory.note([{"count": 1}])
    assert memory.begun
    assert not memory.lost
    memory.path.unlink()
    assert not memory.begun
    assert memory.lost  # its lock tells
    store.touch()
    assert memory.begun
    assert not memory.lost


def test_every_line_is_on_the_disk_and_the_folder_once_there_is_a_new_file(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    folders: list[Path] = []
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(module, "sync_folder", folders.append)
    gc.collect()  # what earlier tests left open is closed now, and not in between
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        memory.note([{"count": 1}])
        assert synced[-1] == memory.path.stat().st_size
    assert len(synced) == len(lines(memory)) == 2
    assert folders == [memory.path.parent]
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(("seconds", "copy"), [(-5.5, True), (-4.5, False), (4.5, False), (5.5, True)])
def test_its_file_is_as_old_as_its_last_line_says(memory: Memory, seconds: float, copy: bool) -> None:
    memory.note([{"count": 1}])
    [line] = lines(memory)
    line["time"] = time.time_ns() + int(seconds * 1e9)
    memory.path.write_text(json.dumps(line) + "\n")
    assert copied(memory) is copy
    assert counts(memory) == [1]  # believed all the same


def test_a_new_lock_or_none_means_that_the_files_are_copies(memory: Memory, tmp_path: Path) -> None:
    memory.note([{"count": 1}])
    assert not copied(memory)
    memory.lock.rename(tmp_path / "aside")
    assert copied(memory)
    assert memory.lock_time() == 0
    memory.lock.touch()
    assert copied(memory)


def restored(memory: Memory) -> None:
    """Both files are put back, as they were."""
    backup = memory.path.with_name("backup")
    backup.mkdir()
    for path in (memory.path, memory.lock):
        shutil.copy2(path, backup)
        path.unlink()
        shutil.copy2(backup / path.name, path)


def test_a_copy_stays_one_whatever_is_noted_until_somebody_trusts_it(memory: Memory, store: Path) -> None:
    memory.note([{"count": 1}])
    restored(memory)
    for count in (2, 3):
        Memory(store).note([{"count": count}])  # by processes that have not looked
        assert copied(memory)
    assert counts(memory) == [1, 2, 3]
    trusted = Memory(store)
    trusted.recall()
    trusted.trust([{"count": 3}])
    assert not trusted.copied
    trusted.note([{"count": 4}])
    assert counts(memory) == [3, 4]
    assert not copied(memory)


def owned_anew(memory: Memory) -> bool:
    """What a new process would find."""
    again = Memory(memory._store)
    again.recall()
    return again.owned_anew


def changed_owner(memory: Memory) -> None:
    """As `chown -R` does: to the same owner, which a test may."""
    for path in (memory.path, memory.lock):
        os.chown(path, os.getuid(), os.getgid())


def test_another_owner_is_told_from_files_that_were_put_back(memory: Memory) -> None:
    memory.note([{"count": 1}])
    assert not owned_anew(memory)
    changed_owner(memory)
    assert copied(memory)
    assert owned_anew(memory)
    again = Memory(memory._store)
    again.trust(again.recall() or [])
    assert not copied(memory)
    assert not owned_anew(memory)
    assert counts(memory) == [1]
    memory.lock.chmod(0o644)
    assert owned_anew(memory)


@pytest.mark.parametrize("what", ["both", "lock", "content", "older", "damaged", "noted", "unknown"])
def test_nothing_but_another_owner_passes_for_one(
    memory: Memory, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.note([{"count": 1}])
    if what == "both":
        restored(memory)
    elif what == "lock":
        memory.lock.unlink()
        memory.lock.touch()
    elif what == "content":  # written in place, and no time set
        later = time.time() + 6
        memory.path.write_bytes(memory.path.read_bytes())
        os.utime(memory.path, (later, later))
    elif what == "older":  # put back in place with its time, under a line that is another one's
        [line] = lines(memory)
        memory.path.write_text(json.dumps({**line, "time": line["time"] - 6 * 10**9}) + "\n")
    elif what == "damaged":
        memory.path.write_text("{}\n" + memory.path.read_text())
    elif what == "noted":
        changed_owner(memory)
        Memory(memory._store).note([{"count": 2}])  # by a process that has not looked: it says so for ever
    elif what == "unknown":
        monkeypatch.setattr(module, "birth", lambda path: 0)
        memory.note([{"count": 2}])
    changed_owner(memory)
    assert copied(memory)
    assert not owned_anew(memory)


def test_a_file_came_into_being_once_whatever_is_done_to_it(tmp_path: Path) -> None:
    path, before = tmp_path / "file", time.time_ns()
    assert module.birth(path) == 0
    path.touch()
    born = module.birth(path)
    assert before - 10**9 < born < time.time_ns() + 10**9
    path.write_text("more")
    os.utime(path, (0, 0))
    path.chmod(0o600)
    assert module.birth(path) == module._asked_birth(path) == born
    shutil.copy2(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    assert module.birth(path) != born


def test_what_its_caller_knows_to_be_a_copy_stays_one(memory: Memory) -> None:
    memory.recall()
    memory.copied = True  # a store that holds more than nothing, of which nothing is remembered
    memory.note([{"count": 1}])
    assert copied(memory)


def test_what_its_caller_finds_out_about_facts_that_look_true_is_not_forgotten(memory: Memory) -> None:
    memory.note([{"count": 1}])
    reader = Memory(memory._store)
    reader.recall()
    reader.copied = True  # they are true by their times, and say what cannot be
    reader.note([{"count": 2}])
    assert reader.copied
    assert copied(memory)


def test_facts_that_are_trusted_from_the_start_have_a_lock(memory: Memory) -> None:
    memory.trust([{"count": 1}])
    assert mode(memory.lock) == 0o600
    assert not copied(memory)
    memory.lock.unlink()
    assert copied(memory)


def test_facts_are_faithful_if_there_are_any_of_no_copy_and_all_about_one_thing(
    memory: Memory, store: Path
) -> None:
    assert memory.faithful() is None
    memory.note([{"run": "a", "count": 1}, {"run": "a", "count": 2, "list": []}])
    assert [fact["count"] for fact in memory.faithful(run="a") or []] == [1, 2]
    assert len(memory.faithful() or []) == 2
    assert memory.faithful(run="b") is None
    assert memory.faithful(run="a", count=1) is None
    restored(memory)
    assert Memory(store).faithful(run="a") is None
    assert Memory(store).faithful() is None


@pytest.mark.parametrize("damage", ["{}", "[]", "nonsense", '{"count": 7}', '{"time": "now"}', "1"])
def test_a_line_that_cannot_be_read_makes_the_rest_no_less_true(memory: Memory, damage: str) -> None:
    memory.note([{"count": 1}])
    content = memory.path.read_text()
    memory.path.write_text(damage + "\n" + content)
    assert counts(memory) == [None, 1]
    assert copied(memory)


def test_an_empty_file_is_nobodys_word(memory: Memory) -> None:
    memory.path.touch()
    assert counts(memory) == []
    assert copied(memory)


def test_a_line_that_a_crash_cut_off_is_dropped_before_the_next(memory: Memory) -> None:
    memory.note([{"count": 1}])
    whole = memory.path.read_bytes()
    memory.path.write_bytes(whole + b'{"count": 5')
    assert counts(memory) == [1]
    memory.note([{"count": 2}])
    assert memory.path.read_bytes().startswith(whole)
    assert counts(memory) == [1, 2]
    memory.path.write_bytes(b'{"count": 5')  # nothing but such a line
    memory.note([{"count": 2}])
    assert counts(memory) == [2]


def test_a_line_that_the_disk_takes_in_parts_is_whole(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:7]))
    memory.note([{"count": 1}, {"count": 2}])
    assert counts(memory) == [1, 2]
    assert not copied(memory)


def test_a_line_that_the_disk_does_not_take_leaves_the_file_as_old_as_it_was(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.note([{"count": 1}])
    before = memory.path.stat().st_ctime_ns
    time.sleep(0.05)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        memory.note([{"count": 2}])
    assert memory.path.stat().st_ctime_ns == before  # or it would look like a copy


def test_a_slow_disk_is_given_another_line_and_after_three_is_refused(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns
    late = [6 * 10**9, 0]
    monkeypatch.setattr(time, "time_ns", lambda: now() - (late.pop(0) if late else 0))
    memory.note([{"count": 1}])
    assert len(lines(memory)) == 2
    assert not copied(memory)
    monkeypatch.setattr(time, "time_ns", lambda: now() + 6 * 10**9)
    with pytest.raises(FileError, match="keep it on a local disk"):
        memory.note([{"count": 1}])
    assert len(lines(memory)) == 5


def test_what_is_trusted_takes_the_place_of_all_that_was_noted(memory: Memory) -> None:
    memory.note([{"count": 1}, {"count": 2}])
    memory.trust([{"count": 5}])
    assert counts(memory) == [5]
    assert not copied(memory)
    assert mode(memory.path) == mode(memory.lock) == 0o600


def test_files_that_a_restore_left_open_are_their_owners_again(memory: Memory) -> None:
    memory.restrict()  # nothing to restrict
    memory.note([{"count": 1}])
    for path in (memory.path, memory.lock):
        path.chmod(0o644)
    memory.restrict()
    assert mode(memory.path) == mode(memory.lock) == 0o600


def test_files_that_are_their_owners_are_left_alone(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of mode would make the lock a new one, and the files copies."""
    memory.note([{"count": 1}])
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("changed"))
    memory.restrict()
    assert not copied(memory)
