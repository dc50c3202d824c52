"""Files survive a crash whole, and open to their owner alone."""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.machine import files
from sottovoce.machine.files import (
    Database,
    FileError,
    check_writable,
    kept_secret,
    locked,
    private_folder,
    replaced,
    write_atomically,
)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_write_that_fails_leaves_the_old_bytes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match="free some space"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_path_is_refused_before_work_where_its_folder_takes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileError, match=r"cannot write .*no/file: No such file or directory; check the path"):
        check_writable(tmp_path / "no/file")

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "TemporaryFile", closed)
    with pytest.raises(FileError, match="Permission denied; check the path"):
        check_writable(tmp_path / "file")


def test_new_bytes_are_on_the_disk_before_they_replace_the_old_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, done = tmp_path / "file", list[str]()
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append("folder" if path.is_dir() else f"file with {len(path.read_bytes())} bytes")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replaced"), replace(*paths)))
    write_atomically(file, b"new")
    assert done == ["file with 3 bytes", "replaced", "folder"]


def test_a_block_that_raises_leaves_the_old_bytes_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def interrupted() -> None:
        with replaced(file) as new:
            new.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("moment", ["open", "fsync"])
def test_who_is_interrupted_while_writing_hears_of_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if moment == "open":  # before there is a file
        monkeypatch.setattr(os, "open", stop)
    else:  # after it has its name
        monkeypatch.setattr(files, "sync_folder", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"bytes")


def test_a_file_is_for_its_owner_alone_unless_it_is_meant_for_others(tmp_path: Path, no_umask: None) -> None:
    write_atomically(tmp_path / "whole", b"")
    with replaced(tmp_path / "block"):
        pass
    assert {mode(path) for path in tmp_path.iterdir()} == {0o600}
    write_atomically(tmp_path / "told", b"", files.PUBLIC)
    assert mode(tmp_path / "told") == 0o644


def test_a_private_folder_and_those_made_for_it_are_their_owners(tmp_path: Path, no_umask: None) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "outer" / "inner")
    assert mode(tmp_path / "outer") == mode(tmp_path / "outer" / "inner") == 0o700
    (tmp_path / "outer").chmod(0o750)
    private_folder(tmp_path / "outer")
    assert mode(tmp_path / "outer") == 0o750
    assert mode(tmp_path) == 0o755


def test_two_processes_may_make_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, is_dir = tmp_path / "folder", Path.is_dir

    def slow(path: Path) -> bool:
        there = is_dir(path)
        os.makedirs(folder, exist_ok=True)  # by the other one, after this one has looked
        return there

    monkeypatch.setattr(Path, "is_dir", slow)
    private_folder(folder)


def test_writing_leaves_no_file_open(tmp_path: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(5):
        write_atomically(tmp_path / "file", b"")
        with locked(tmp_path / "lock"):
            pass
    assert opened() == before


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="check the path"):
        write_atomically(tmp_path / "no" / "such" / "folder", b"")


def test_a_secret_is_drawn_once_and_read_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    secret = kept_secret(file)
    assert len(secret) == 32
    file.chmod(0o644)  # as a restored backup may come back
    assert kept_secret(file) == secret
    assert mode(file) == 0o600
    file.write_bytes(secret[:-1])
    with pytest.raises(FileError, match="32 secret bytes"):
        kept_secret(file)


def test_a_lock_is_held_by_one_and_ends_with_its_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        locked(lock),
        pytest.raises(FileError, match="somebody else"),
        locked(lock, timeout=0.0, busy="somebody else is working"),
    ):
        raise AssertionError("two hold it")
    program = (
        f"import os, pathlib; from sottovoce.machine.files import locked\n"
        f"with locked(pathlib.Path({str(lock)!r})): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    with locked(lock, timeout=0.0, busy="still held"):
        pass


def test_who_waits_for_a_lock_gets_it_when_it_is_free(tmp_path: Path) -> None:
    order, taken = [], threading.Event()

    def other() -> None:
        taken.wait(1200)
        with locked(tmp_path / "lock", timeout=1200.0, busy="never"):
            order.append("second")

    thread = threading.Thread(target=other)
    thread.start()
    with locked(tmp_path / "lock"):
        taken.set()
        threading.Event().wait(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def explain(path: Path, error: Exception) -> SottovoceError:
    return SottovoceError(f"{path.name}: {error}")


def test_a_transaction_happens_or_does_not(tmp_path: Path) -> None:
    database = Database(tmp_path / "file.sqlite", explain)
    database.query("CREATE TABLE number (value INTEGER PRIMARY KEY)")
    with pytest.raises(KeyboardInterrupt), database.transaction():  # noqa: PT012
        database.query("INSERT INTO number VALUES (1)")
        with database.transaction():  # part of the one around it
            database.query("INSERT INTO number VALUES (2)")
        raise KeyboardInterrupt
    assert database.query("SELECT * FROM number") == []
    with database.transaction():
        database.query("INSERT INTO number VALUES (?)", 3)
    database.close()
    with sqlite3.connect(tmp_path / "file.sqlite") as again:
        assert again.execute("SELECT value FROM number").fetchall() == [(3,)]


def test_a_database_is_for_its_owner_and_its_errors_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    database = Database(path, explain)
    database.query("PRAGMA journal_mode = WAL")
    database.query("CREATE TABLE number (value INTEGER)")
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    database.restrict()
    assert {mode(file) for file in tmp_path.iterdir()} == {0o600}
    database.close()
    path.write_bytes(b"something else, and long enough to be taken for a database" * 100)
    with pytest.raises(SottovoceError, match=r"file\.sqlite: file is not a database"):
        Database(path, explain).query("SELECT 1 FROM number")


def test_deleted_bytes_are_not_in_the_file_any_more(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    database = Database(path, explain)
    database.query("CREATE TABLE message (bytes BLOB)")
    database.query("INSERT INTO message VALUES (?)", b"private" * 1000)
    assert b"private" in path.read_bytes()
    database.query("DELETE FROM message")
    database.close()
    assert b"private" not in path.read_bytes()


@pytest.mark.parametrize(
    ("what", "other", "ours"),
    [("synchronous", "NORMAL", 2), ("secure_delete", "OFF", 1), ("page_size", 1024, 4096)],
)
def test_a_database_is_what_it_promises_whatever_sqlite_was_built_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, other: object, ours: int
) -> None:
    connect = sqlite3.connect

    def otherwise(*where: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*where, **options)
        connection.execute(f"PRAGMA {what} = {other}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", otherwise)
    database = Database(tmp_path / "file.sqlite", explain)
    assert database.query(f"PRAGMA {what}") == [(ours,)]
    database.close()


def test_a_new_database_is_its_owners_from_the_first_moment(tmp_path: Path, no_umask: None) -> None:
    database = Database(tmp_path / "file.sqlite", explain)
    assert mode(database.path) == 0o600
    database.restrict()  # of files that are not there, nothing is said
    database.close()


def test_errors_of_the_database_and_of_the_disk_become_ours_and_mistakes_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "file.sqlite", explain)
    with pytest.raises(SottovoceError, match="no such table"):
        database.script("DELETE FROM numbers; DELETE FROM words")
    with pytest.raises(sqlite3.ProgrammingError):
        database.query("SELECT ?")
    database.close()

    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(SottovoceError, match="Operation not permitted"):
        database.restrict()


@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_somebody_put_under_the_temporary_name_is_neither_followed_nor_used(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one who guesses the name, which is drawn afresh for each write."""
    victim, trap = tmp_path / "victim", tmp_path / ".file.00.part"
    victim.write_bytes(b"old")
    for name in (trap, tmp_path / f".file.{os.getpid()}.part"):
        if planted == "link":
            name.symlink_to(victim)
        else:
            name.write_bytes(b"theirs")
            name.chmod(0o666)
    write_atomically(tmp_path / "file", b"mine")
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert mode(tmp_path / "file") == 0o600
    monkeypatch.setattr(secrets, "token_hex", lambda _: "00")
    with pytest.raises(FileError, match="File exists"):
        write_atomically(tmp_path / "file", b"secret")
    assert victim.read_bytes() == b"old"
    assert trap.read_bytes() == (b"old" if planted == "link" else b"theirs")
    assert (tmp_path / "file").read_bytes() == b"mine"
