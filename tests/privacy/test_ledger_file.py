"""What the ledger file refuses, and that it leaves the refused file alone."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from sottovoce.privacy import ledger_file
from sottovoce.privacy.ledger import Budget, Charge, Ledger
from sottovoce.privacy.ledger_file import LedgerError, LedgerFile

PLENTY = Budget(epsilon=1e6, delta=1e-5, accounting="exact")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed ledger of 200 charges."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, scope="records") as ledger:
        charges = [Charge("run", r % 10, "gradient", r, sensitivity=0.1, sigma=1.0) for r in range(200)]
        ledger.commit_many([(charge, os.urandom(500)) for charge in charges], PLENTY)
    return path


def refused(path: Path, scope: str = "records") -> str:
    """The one-line reason for which the file is refused; it is left as it was."""
    before, mode = path.read_bytes(), path.stat().st_mode
    with pytest.raises(LedgerError) as error:
        Ledger.open(path, scope=scope)
    assert path.read_bytes() == before
    assert path.stat().st_mode == mode
    assert "\n" not in str(error.value)
    return str(error.value)


def test_only_its_owner_may_read_it(path: Path) -> None:
    path.chmod(0o644)
    with Ledger.open(path, scope="records") as ledger:
        ledger.commit(Charge("new", 0, "context", 0, sensitivity=0.1, sigma=1.0), b"m", PLENTY)
        modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}


def test_every_commit_is_synced_to_the_disk_and_deleted_bytes_are_overwritten(path: Path) -> None:
    file = LedgerFile.open(path, "records")
    assert file.query("PRAGMA journal_mode") == [("wal",)]
    assert file.query("PRAGMA synchronous") == [(2,)]  # FULL
    assert file.query("PRAGMA secure_delete") == [(1,)]
    file.close()


def test_charges_losses_and_budgets_can_be_neither_changed_nor_deleted(path: Path) -> None:
    file = LedgerFile.open(path, "records")
    file.query("INSERT INTO lost VALUES (9, 'c', 'r', 1, 0.5, '', 0, 0)")
    file.query("INSERT INTO budget VALUES (9, 1.0, 1e-5, 'exact', 0, '')")
    for table in ("release", "lost", "budget"):
        for statement in (f"UPDATE {table} SET id = 8", f"DELETE FROM {table}"):
            with pytest.raises(LedgerError, match="append-only"):
                file.query(statement)
    assert file.query("SELECT COUNT(*), MAX(sigma) FROM release") == [(200, 1.0)]
    file.close()


def test_other_records_are_refused(path: Path) -> None:
    assert "other records or another division into clients: give another file" in refused(path, "elsewhere")


def test_a_file_that_is_refused_is_not_left_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Path] = []
    close = LedgerFile.close
    monkeypatch.setattr(LedgerFile, "close", lambda self: (closed.append(self.path), close(self))[1])
    refused(path, "elsewhere")
    assert closed == [path]


@pytest.mark.parametrize("version", [0, 5, 99])
def test_another_format_is_refused(path: Path, version: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    assert f"has ledger format {version} and this version reads 1 to 4" in refused(path)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    assert "is not a Sottovoce ledger" in refused(path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 5000, b"round,client\n1,2\n" * 300])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    assert "restore its newest backup" in refused(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.1, 0.5, 0.9, 0.99, 0.99999])
def test_a_truncated_ledger_is_refused(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))
    assert "restore its newest backup" in refused(path)


def test_an_overwritten_page_is_refused(path: Path) -> None:
    sound = path.read_bytes()
    # Page 1 is the header and schema; the others hold charges, their index and messages.
    for start in range(0, len(sound), 4096):
        path.write_bytes(sound[:start] + b"\xa5" * 4096 + sound[start + 4096 :])
        assert "restore its newest backup" in refused(path)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"nowhere/ledger\.sqlite .* check that its folder exists"):
        Ledger.open(tmp_path / "nowhere" / "ledger.sqlite", scope="records")
    with pytest.raises(LedgerError, match="check that its folder exists"):
        Ledger.open(tmp_path, scope="records")


def test_processes_that_create_a_ledger_together_share_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    start = multiprocessing.get_context("fork").Barrier(8)

    def enter(number: int) -> None:
        start.wait(1200)
        with Ledger.open(path, scope="records") as ledger:
            ledger.commit(Charge("run", number, "context", 0, sensitivity=0.1, sigma=1.0), b"m", PLENTY)

    children = [multiprocessing.get_context("fork").Process(target=enter, args=(n,)) for n in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join(1200)
    assert [child.exitcode for child in children] == [0] * 8
    with Ledger.open(path, scope="records") as ledger:
        assert ledger.clients() == [str(number) for number in range(8)]
    assert sorted(os.listdir(tmp_path)) == ["ledger.sqlite", "ledger.sqlite.lock", "ledger.sqlite.witness"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO budget (epsilon, delta, accounting, raised, time) VALUES (NULL, 1e-5, 'rdp', 0, 'now')",
        "INSERT INTO release (client, run, kind, round, sensitivity, sigma, time)"
        " VALUES ('a', 'run', 'context', 0, 1.0, NULL, 'now')",
        "INSERT INTO lost (client, run, releases, spent, time) VALUES ('a', 'run', 1, NULL, 'now')",
        "INSERT INTO lost (client, run, releases, spent, time, server) VALUES ('a', 'b', 1, 1, 'now', NULL)",
        "INSERT INTO release (client, run, kind, round, sensitivity, sigma, time, place)"
        " VALUES ('a', 'run', 'context', 0, 1.0, 1.0, 'now', NULL)",
        *(
            f"INSERT INTO release (client, run, kind, round, sensitivity, sigma, time, {column})"
            " VALUES ('a', 'run', 'context', 0, 1.0, 1.0, 'now', NULL)"
            for column in ("honest", "share", "helpers")
        ),
        "INSERT INTO lost (client, run, releases, spent, time, masked) VALUES ('a', 'b', 1, 1, 'now', NULL)",
    ],
)
def test_a_row_without_one_of_its_numbers_is_refused_by_the_file_itself(path: Path, statement: str) -> None:
    with closing(LedgerFile.open(path, None)) as file, pytest.raises(LedgerError, match="NOT NULL"):
        file.query(statement)


def test_its_header_says_what_it_is(path: Path) -> None:
    with closing(LedgerFile.open(path, None)) as file:
        assert file.query("PRAGMA application_id") == [(0x536F7474,)]
        assert file.query("PRAGMA user_version") == [(4,)]
        assert len(file.name) == 32


def test_a_new_ledger_is_in_its_folder_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(ledger_file, "sync_folder", synced.append)
    LedgerFile.open(tmp_path / "ledger.sqlite", "records").close()
    LedgerFile.open(tmp_path / "ledger.sqlite", "records").close()
    assert synced == [tmp_path]


def test_a_file_of_an_older_format_is_updated_at_once_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path)) as database:  # as format 2 was
        database.executescript(
            "DROP VIEW spending; ALTER TABLE release DROP COLUMN place; ALTER TABLE lost DROP COLUMN server;"
            "ALTER TABLE release DROP COLUMN honest; ALTER TABLE release DROP COLUMN share;"
            "ALTER TABLE release DROP COLUMN helpers; ALTER TABLE lost DROP COLUMN masked;"
            "PRAGMA user_version = 2;"
        )
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "_SINCE_3", (*ledger_file._SINCE_3[:1], "nonsense"))
        with pytest.raises(LedgerError, match="syntax error"):
            LedgerFile.open(path, "records")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        columns = [row[1] for row in database.execute("PRAGMA table_info(release)")]
        assert "place" not in columns
