"""Rollback detection: what a store has done is remembered beside it, so that a restored backup shows.

A store is a file whose past must not be lost unnoticed: a ledger, a client's directory of a run, the sums of
a run with noise at the server, a helper's keys. Facts about it stand in `STORE.witness`, which is only ever
added to, on the disk before anything leaves. Then three things show:

- *restored*: a store that was deleted, put back or exchanged holds less than these facts say, or has another
  name. Its owner compares, because only the owner knows what the facts mean;
- *copied*: facts that were put back themselves are younger than their last line says, because no program can
  set the time at which a file was last changed; or, by the same token, `STORE.lock`, which nothing ever
  changes, is a new one. What happened since the copy was made nobody here knows, and so a copy stays one,
  whatever is added to it, until somebody may say `trust`;
- *lost*: the lock is there, and neither the store nor the facts are.

Another owner or mode (`chown -R`) changes the times of both files, too. They are copies until their owner
says otherwise, but that much is known of them (`Memory.owned_anew`): the lock came into being when the last
line says, which no program can set, and nothing was written since that line. Files that were put back as
new ones are told apart by it; those whose content was put back in place, times included, are not.

One machine cannot know more: a disk that is rolled back as a whole shows nothing, nor do a store and its
facts put back, without the lock, within seconds of the last line.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sottovoce.machine.files import PRIVATE, FileError, sync_folder, write_atomically

_PROMPT = 5 * 10**9  # nanoseconds that writing a line may take; a slower disk is given another line
_TRIES = 3


class Memory:
    """Facts about the file `store`, used under a lock of the store's; `lock` is that lock's file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Memory(Path(folder) / "keys.sqlite").note([{"answered": 1}, {"answered": 2}])
    ...     memory = Memory(Path(folder) / "keys.sqlite")
    ...     print(len(memory.recall() or []), memory.copied, memory.lost)
    2 False False
    """

    def __init__(self, store: Path, lock: Path | None = None) -> None:
        self._store = store
        self.path = store.with_name(f"{store.name}.witness")
        self.lock = lock or store.with_name(f"{store.name}.lock")
        self.copied = False
        """Whether the files are copies, as far as `recall` has found or its caller knows."""
        self.owned_anew = False
        """Whether they are copies for no other reason, as far as can be seen, than another owner or mode."""
        self._recalled = False

    @property
    def begun(self) -> bool:
        """Returns whether the store is there, or is known to have been."""
        return self._store.exists() or self.path.exists()

    @property
    def lost(self) -> bool:
        """Returns whether only the lock tells that there were a store and facts about it."""
        return not self.begun and self.lock.exists()

    def recall(self) -> list[dict[str, Any]] | None:
        """All facts, in order, a damaged one empty; None if nothing was ever noted. Finds `copied` out."""
        self._recalled = True
        try:
            with self.path.open("rb") as file:
                # A last line without its end was cut off by a crash, before anything left.
                lines, status = file.read().split(b"\n")[:-1], os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        facts = [_parsed(line) for line in lines]
        last = facts[-1] if facts else {}
        self.copied = (
            not all(facts)
            or not abs(status.st_ctime_ns - last.get("time", 0)) <= _PROMPT
            or last.get("lock") != self.lock_time()
            or bool(last.get("copied"))
        )
        self.owned_anew = (
            self.copied
            and bool(facts)
            and all(facts)
            and not last.get("copied")
            and abs(status.st_mtime_ns - last["time"]) <= _PROMPT
            and 0 != last.get("born", 0) == birth(self.lock)
        )
        return facts

    def faithful(self, **about: object) -> list[dict[str, Any]] | None:
        """All facts, if there are any, they are no copies, and each of them is `about` this; None otherwise.

        Whoever may never do a thing twice, and is told None, never does it again.
        """
        facts = self.recall()
        same = all(about.items() <= fact.items() for fact in facts or [{}])
        return facts if facts and same and not self.copied else None

    def note(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Adds facts, on the disk when this returns."""
        if not self._recalled:
            self.recall()
        lines, new = list(facts), not self.path.exists()
        self._touch_lock()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a line that a crash cut off
                os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
            for _ in range(_TRIES):
                now = time.time_ns()
                text = self._text(lines, now)
                while text:  # a disk that is nearly full takes a part, and then refuses the rest
                    text = text[os.write(descriptor, text) :]
                os.fsync(descriptor)
                if abs(os.fstat(descriptor).st_ctime_ns - now) <= _PROMPT:
                    break
            else:
                raise FileError(
                    f"{self.path} lies on a file system that is slow, or has another clock than this one: "
                    "keep it on a local disk"
                )
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self.path.parent)

    def trust(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Takes these facts for all that ever happened, durably, in place of what was noted."""
        self.copied, self.owned_anew, self._recalled = False, False, True
        self._touch_lock()
        write_atomically(self.path, self._text(facts, time.time_ns()), PRIVATE)

    def restrict(self) -> None:
        """Makes both files readable by their owner only, where a restore left them open."""
        for path in (self.path, self.lock):
            if path.exists() and path.stat().st_mode & 0o777 != PRIVATE:
                path.chmod(PRIVATE)

    def _touch_lock(self) -> None:
        os.close(os.open(self.lock, os.O_RDWR | os.O_CREAT, PRIVATE))

    def lock_time(self) -> int:
        """Returns when the lock file came into being, in nanoseconds; 0 if there is none."""
        try:
            return self.lock.stat().st_ctime_ns
        except FileNotFoundError:
            return 0

    def _text(self, facts: Iterable[Mapping[str, Any]], now: int) -> bytes:
        stamp: dict[str, Any] = {"lock": self.lock_time(), "born": birth(self.lock), "time": now}
        if self.copied:
            stamp["copied"] = True
        return b"".join(json.dumps({**fact, **stamp}).encode() + b"\n" for fact in facts)


def birth(path: Path) -> int:
    """Returns when a file came into being, in nanoseconds; 0 where that is not known.

    Python says it on Linux from 3.15 on; before, the system is asked (`man 2 statx`).
    """
    try:
        known: int = path.stat().st_birthtime_ns  # type: ignore[attr-defined]
    except FileNotFoundError:
        return 0
    except AttributeError:
        known = _asked_birth(path)
    return known


_CURRENT_FOLDER, _BIRTH, _BIRTH_AT = -100, 0x800, 80


def _asked_birth(path: Path) -> int:
    answer = ctypes.create_string_buffer(256)
    try:
        failed = ctypes.CDLL(None).statx(_CURRENT_FOLDER, os.fsencode(path), 0, _BIRTH, answer)
    except (AttributeError, OSError):
        return 0
    [found] = struct.unpack_from("I", answer)
    if failed or not found & _BIRTH:
        return 0
    seconds, nanoseconds = struct.unpack_from("qI", answer, _BIRTH_AT)
    return int(seconds) * 10**9 + int(nanoseconds)


def _parsed(line: bytes) -> dict[str, Any]:
    """A fact; empty if its line is damaged."""
    try:
        fact = json.loads(line)
        return {**fact, "time": int(fact["time"])}
    except (ValueError, TypeError, KeyError):
        return {}
