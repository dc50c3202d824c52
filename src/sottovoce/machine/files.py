"""Files that survive a crash and open to their owner alone: atomic writes, secrets, one lock, one database.

After a crash an atomically written file holds the old bytes or the new ones, and a transaction of a database
has happened or has not. Nothing here imports torch.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from sottovoce.errors import SottovoceError

PRIVATE = 0o600
"""The mode of a file that only its owner reads, as what is made of records is."""
PUBLIC = 0o644
"""The mode of a file that is meant for others."""
SECRET_BYTES = 32
_READER_MILLISECONDS = 5000  # how long to wait for another process that reads what is to be forgotten


class FileError(SottovoceError):
    """A file that cannot be written or used as asked."""


def write_atomically(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Replaces `path` durably: after a crash it holds the old bytes or the new ones, nothing between."""
    with replaced(path, mode) as file:
        file.write(data)


@contextmanager
def replaced(path: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` durably when the block ends; never if it raises.

    It is a new one under a name that nobody can guess: who may write into the folder cannot put a link or a
    file of their own there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno != errno.EEXIST:
            temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Refuses a path in whose folder no file can be made, before work is done or paid for it."""
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> FileError:
    advice = "free some space, then resume or repeat" if error.errno == errno.ENOSPC else "check the path"
    return FileError(f"cannot write {path}: {error.strerror}; {advice}")


def private_folder(folder: Path) -> None:
    """Makes a folder and those above it, open to their owner only; what is there stays as it is."""
    if not folder.is_dir():
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: without it a power cut could bring the old file back."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def kept_secret(path: Path, draw: Callable[[], bytes] = lambda: secrets.token_bytes(SECRET_BYTES)) -> bytes:
    """The 32 secret bytes in a file, drawn when it is first asked for, readable by its owner only."""
    if not path.exists():
        write_atomically(path, draw(), mode=PRIVATE)
    os.chmod(path, PRIVATE)  # a restored file may have come back readable by all
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise FileError(f"{path} does not hold {SECRET_BYTES} secret bytes: restore it from a backup")
    return secret


@contextmanager
def locked(path: Path, *, timeout: float | None = None, busy: str = "") -> Iterator[None]:
    """Holds the lock of a file, created for it and never changed; it ends with the process.

    Waits for as long as it takes, or for `timeout` seconds and then fails with the message `busy`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise FileError(busy) from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of a file; for a moment this takes its place in the queue."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Database:
    """An open SQLite file: transactions are on the disk before they end, deleted bytes are overwritten.

    `explain` turns an error of SQLite's or of the operating system's into one that says what to do. One that
    is `only_read` leaves no trace, not even a file of SQLite's own beside it.
    """

    def __init__(
        self,
        path: Path,
        explain: Callable[[Path, Exception], SottovoceError],
        *,
        timeout: float = 60.0,
        page_size: int = 4096,
        threads: bool = False,
        only_read: bool = False,
    ) -> None:
        self.path = path
        self._explain = explain
        self._timeout = timeout
        self._only_read = only_read
        with self.explained():
            if only_read:
                self._connection = sqlite3.connect(
                    _to_read(path), uri=True, timeout=timeout, isolation_level=None
                )
                return
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE))
            self._connection = sqlite3.connect(
                path, timeout=timeout, isolation_level=None, check_same_thread=not threads
            )
            self._connection.execute(f"PRAGMA page_size = {page_size}")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")  # a message reveals more than its release

    def close(self) -> None:
        """Ends the connection; everything written stays."""
        self._connection.close()

    def query(self, statement: str, *values: object) -> list[Any]:
        """Runs one statement and returns all its rows, so that no read stays open."""
        with self.explained():
            return self._connection.execute(statement, values).fetchall()

    def script(self, statements: str) -> None:
        """Runs several statements to their ends."""
        with self.explained():
            self._connection.executescript(statements)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements of the block durably, when it ends; none of them if it raises.

        A block inside another one is part of it.
        """
        if self._connection.in_transaction:
            yield
            return
        if self._only_read:  # SQLite would not mind before the first statement
            raise FileError(f"{self.path} was opened to be read: nothing is written")
        self.query("BEGIN IMMEDIATE")
        try:
            yield
            self.query("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def emptied_log(self) -> bool:
        """Moves the write-ahead log into the file; False if another process has read from it all the while.

        Only when it has moved is what was deleted in neither of them.
        """
        self.query(f"PRAGMA busy_timeout = {_READER_MILLISECONDS}")
        try:
            [(busy, _, _)] = self.query("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self.query(f"PRAGMA busy_timeout = {int(1000 * self._timeout)}")
        return not busy

    def restrict(self) -> None:
        """Makes the file and its log readable by their owner only, also where a restore left them open."""
        with self.explained():
            for path in (self.path, log_of(self.path), Path(f"{self.path}-shm")):
                with suppress(FileNotFoundError):
                    path.chmod(PRIVATE)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of SQLite and the operating system become ours; mistakes of the calling code do not."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise self._explain(self.path, error) from error


def _to_read(path: Path) -> str:
    """The address of a database that is only read: without a log beside it SQLite need not look for one."""
    path = path.resolve()  # beside which SQLite keeps its log, whatever a link to it is called
    return f"{path.as_uri()}?mode=ro{'' if log_of(path).exists() else '&immutable=1'}"


def log_of(path: Path) -> Path:
    """The write-ahead log of a database: transactions that are not in the file yet."""
    return Path(f"{path}-wal")
