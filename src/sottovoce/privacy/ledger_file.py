"""The SQLite file behind a ledger: appears complete or not at all, writes durably, refuses what it is not.

Every transaction is on the disk before it ends (write-ahead log, `synchronous=FULL`), one process at a time.
A damaged file, one of another program, of another format or about other records is refused with a line that
says what to do, and left as it was.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import unicodedata
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import Database, log_of, sync_folder

log = logging.getLogger("sottovoce.privacy")

_APPLICATION = 0x536F7474  # "Sott", in the header of the file
_FORMAT = 4
_TIMEOUT_SECONDS = 60.0  # how long to wait for another process that writes
_PEEK_SECONDS = 5.0  # how long whoever only looks waits for it
_PAGE = 4096
_SPARE_PAGES = 1024  # free pages that are kept for the next messages
_SINCE_2 = (
    """CREATE TABLE lost (
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    run TEXT NOT NULL,
    releases INTEGER NOT NULL,
    spent REAL NOT NULL,
    time TEXT NOT NULL
)""",
    """CREATE TABLE budget (
    id INTEGER PRIMARY KEY,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    accounting TEXT NOT NULL,
    raised INTEGER NOT NULL,
    time TEXT NOT NULL
)""",
    """CREATE VIEW spending AS
SELECT client, substr(run, 1, instr(run || '/', '/') - 1) AS run, 1 AS releases,
    (sensitivity / sigma) * (sensitivity / sigma) AS spent FROM release
UNION ALL SELECT client, run, releases, spent FROM lost""",
    *(
        f"CREATE TRIGGER {table}_is_never_{change}d BEFORE {change.upper()} ON {table}\n"
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for table in ("lost", "budget")
        for change in ("update", "delete")
    ),
)
"""What format 2 adds to format 1."""
_SINCE_3 = (
    "ALTER TABLE release ADD COLUMN place TEXT NOT NULL DEFAULT 'client'",
    "ALTER TABLE lost ADD COLUMN server INTEGER NOT NULL DEFAULT 0",
    "DROP VIEW spending",
    """CREATE VIEW spending AS
SELECT client, substr(run, 1, instr(run || '/', '/') - 1) AS run, 1 AS releases,
    (sensitivity / sigma) * (sensitivity / sigma) AS spent, place = 'server' AS server FROM release
UNION ALL SELECT client, run, releases, spent, server FROM lost""",
)
"""What format 3 adds: where the noise of a release is."""
_SINCE_4 = (
    "ALTER TABLE release ADD COLUMN honest INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE release ADD COLUMN share REAL NOT NULL DEFAULT 0",
    "ALTER TABLE release ADD COLUMN helpers TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE lost ADD COLUMN masked REAL NOT NULL DEFAULT 0",
    "DROP VIEW spending",
    """CREATE VIEW spending AS
SELECT client, substr(run, 1, instr(run || '/', '/') - 1) AS run, 1 AS releases,
    (sensitivity / sigma) * (sensitivity / sigma) AS spent, place = 'server' AS server,
    iif(share > 0, sensitivity * sensitivity / (sigma * sigma - (honest - 1) * share * share)
        - (sensitivity / sigma) * (sensitivity / sigma), 0.0) AS masked FROM release
UNION ALL SELECT client, run, releases, spent, server, masked FROM lost""",
)
"""What format 4 adds: whose shares the noise of a release counts on, and whose masks."""
_SCHEMA = f"""
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
BEGIN;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
CREATE TABLE ledger (scope TEXT NOT NULL, name TEXT NOT NULL DEFAULT '');
CREATE TABLE release (
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL,
    round INTEGER NOT NULL,
    sensitivity REAL NOT NULL CHECK (sensitivity > 0),
    sigma REAL NOT NULL CHECK (sigma > 0),
    time TEXT NOT NULL,
    UNIQUE (client, run, kind, round)
);
CREATE TABLE message (release INTEGER PRIMARY KEY REFERENCES release (id), body BLOB NOT NULL);
CREATE TRIGGER release_is_never_changed BEFORE UPDATE ON release
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER release_is_never_deleted BEFORE DELETE ON release
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
{";".join((*_SINCE_2, *_SINCE_3, *_SINCE_4))};
COMMIT;
"""

OWN_RECORDS = "own records"
"""The one account of a ledger that lies with a client."""
CLIENT = "client:"
"""How the scope of such a ledger begins; the client's name follows."""

_FREE_SPACE = "free some space on its disk and run again"
_RESTORE = "restore its newest backup, because a new ledger would forget what was spent"
_ANOTHER = f"give another file, or {_RESTORE}"
_ADVICE = {
    sqlite3.SQLITE_FULL: _FREE_SPACE,
    sqlite3.SQLITE_IOERR: _FREE_SPACE,
    sqlite3.SQLITE_BUSY: "another process keeps it locked, so run again when that has ended",
    sqlite3.SQLITE_CORRUPT: _RESTORE,
    sqlite3.SQLITE_NOTADB: _RESTORE,
}


class LedgerError(SottovoceError):
    """The ledger file cannot be used; nothing was charged."""


class LedgerFile(Database):
    """An open file with the tables `release` (one row per charge), `message` (bytes not yet forgotten),
    `lost` (charges of which only the sum is known) and `budget`; the view `spending` adds them up."""

    old = False
    """Whether the file was of format 1, from before ledgers had witnesses."""

    @classmethod
    def open(cls, path: Path, scope: str | None, name: str = "") -> Self:
        """Opens the ledger of these records, or creates it, readable by its owner only.

        `scope` None: of whichever records. `name` is what a new one is called, by default a random word.
        """
        try:
            if not path.exists():
                if scope is None:
                    raise LedgerError(f"there is no ledger at {path}: check the path")
                _create(path, scope, name)
            whole = path.is_dir() or path.stat().st_size % _PAGE == 0 or log_of(path).exists()
        except OSError as error:
            raise _explain(path, error) from error
        if not whole:
            raise LedgerError(f"{path} is not a whole ledger: {_ANOTHER}")  # SQLite would read zeros
        file = cls(path, _explain, timeout=_TIMEOUT_SECONDS)
        try:
            file._inspect(scope)
            file._update(scope, name)
            file.restrict()
        except BaseException:
            file.close()
            raise
        return file

    @classmethod
    def peek(cls, path: Path) -> Self:
        """The file as it stands, only to be read; one of an older format is a copy in memory, brought up to
        date there."""
        file = cls(path, _explain, timeout=_PEEK_SECONDS, only_read=True)
        try:
            if file._format() != _FORMAT:
                with file.explained(), closing(file._connection) as disk:
                    file._connection = sqlite3.connect(":memory:", isolation_level=None)
                    disk.backup(file._connection)
                file._only_read = False
                file._update(None, "")
                file._only_read = True
        except BaseException:
            file.close()
            raise
        return file

    def checkpoint(self) -> None:
        """Moves everything from the write-ahead log into the file, and gives much free space back."""
        if not self.emptied_log():
            log.warning(
                "%s is being read by another process: forgotten messages stay in its write-ahead log until "
                "the next are forgotten, or nobody has it open",
                self.path,
            )
            return
        [(free,)] = self.query("PRAGMA freelist_count")
        if free > _SPARE_PAGES:
            self.script("PRAGMA incremental_vacuum")  # `query` would stop after the first page
            self.emptied_log()

    @property
    def name(self) -> str:
        """The random word by which this ledger is told from every other."""
        return str(self.query("SELECT name FROM ledger")[0][0])

    @property
    def scope(self) -> str:
        """Whose records it is about."""
        return str(self.query("SELECT scope FROM ledger")[0][0])

    def _format(self) -> int:
        """The format of a ledger; LedgerError if it is none, or one that this version does not know."""
        if self.query("PRAGMA application_id") != [(_APPLICATION,)]:
            raise LedgerError(f"{self.path} is not a Sottovoce ledger: {_ANOTHER}")
        [(version,)] = self.query("PRAGMA user_version")
        if version not in range(1, _FORMAT + 1):
            raise LedgerError(
                f"{self.path} has ledger format {version} and this version reads 1 to {_FORMAT}:"
                " use the version of Sottovoce that wrote it"
            )
        return int(version)

    def _inspect(self, scope: str | None) -> None:
        version = self._format()
        if self.query("PRAGMA quick_check(1)") != [("ok",)]:
            raise LedgerError(f"{self.path} is damaged: {_RESTORE}")
        self.old = version == 1
        if scope is not None and not self._is_about(scope):
            raise other_scope(self.path, self.scope, scope)

    def _is_about(self, scope: str) -> bool:
        """In format 1 the ledger of a client was bound to the bytes of its file; now it is to its name."""
        if self.old and scope.startswith(CLIENT):
            accounts = {client for (client,) in self.query("SELECT DISTINCT client FROM release")}
            return accounts <= {OWN_RECORDS}
        return same_scope(self.scope, scope)

    def _update(self, scope: str | None, name: str) -> None:
        """Turns a file of an older format into one of this format, at once or not at all."""
        if self.query("PRAGMA user_version") == [(_FORMAT,)]:
            return
        with self.transaction():
            [(version,)] = self.query("PRAGMA user_version")  # another process may have been faster
            if version == 1:
                self.query("ALTER TABLE ledger ADD COLUMN name TEXT NOT NULL DEFAULT ''")
                self.query("UPDATE ledger SET name = ?", name or secrets.token_hex(16))
                if scope is not None:
                    self.query("UPDATE ledger SET scope = ?", scope)
            for statements in (_SINCE_2, _SINCE_3, _SINCE_4)[version - 1 :]:
                for statement in statements:
                    self.query(statement)
            self.query(f"PRAGMA user_version = {_FORMAT}")


def same_scope(one: str, other: str) -> bool:
    """Returns whether both say the same; names of clients are compared as people read them."""
    return unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)


def other_scope(path: Path, mine: str, wanted: str) -> LedgerError:
    """The refusal of a ledger that is about somebody else."""
    if mine.startswith(CLIENT) and wanted.startswith(CLIENT):
        owner, asked = mine.removeprefix(CLIENT), wanted.removeprefix(CLIENT)
        return LedgerError(
            f"{path} is the ledger of the client '{owner}', not of '{asked}': give the ledger of '{asked}',"
            f" or name the client {owner} if these are the records of '{owner}' under another name",
            "client",
        )
    return LedgerError(
        f"{path} is about other records or another division into clients: give another file, or"
        " the data, partition and seed that it was made with"
    )


def _create(path: Path, scope: str, name: str) -> None:
    """Makes a complete ledger appear at once: an empty or half-made file is then always a damaged one."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        draft = Path(folder) / path.name
        with closing(Database(draft, _explain, page_size=_PAGE)) as database:
            database.script(_SCHEMA)
            database.query("INSERT INTO ledger VALUES (?, ?)", scope, name or secrets.token_hex(16))
        with suppress(FileExistsError):  # another process was faster, and its ledger counts
            os.link(draft, path)
    sync_folder(path.parent)


def _explain(path: Path, error: Exception) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of an SQLite code is detail
    advice = _ADVICE.get(code, "check that its folder exists and that you may write there")
    return LedgerError(f"ledger {path} cannot be used ({error}), nothing more was charged: {advice}")
