"""What a ledger has charged, noted in a second file beside it, so that its past is not lost unnoticed.

`LEDGER.witness` is only ever added to: one line for each client and run whose spending grew, on the disk
before a release leaves. A ledger that was deleted, restored from a backup or exchanged holds less than its
witness, or has another name. A witness that was restored too is younger than its last line says, because no
program can set the time at which a file was last changed; or, by the same token, `LEDGER.lock`, which nothing
ever changes, is a new one. One machine cannot know more: a disk that is rolled back as a whole shows nothing,
nor do ledger and witness put back, without the lock, within seconds of the last line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.files import PRIVATE, FileError, sync_folder, write_atomically
from sottovoce.privacy.charge import Total

_PROMPT = 5 * 10**9  # nanoseconds that writing a line may take; a slower disk is given another line
_TRIES = 3
_LONG = 1000  # lines that later ones replace, beyond which they are dropped


@dataclass
class Testimony:
    """What a witness says."""

    ledger: str = ""
    """The random name of the ledger that it is about."""
    scope: str = ""
    """Whose records these are."""
    totals: dict[tuple[str, str], Total] = field(default_factory=dict)
    budget: tuple[float, float, str] | None = None
    genuine: bool = False
    """Whether the files are those that were written then, and no copies of them."""
    lines: int = 0


class Notes:
    """Lines in `NAME.witness`, only ever added to, that show when they, or `NAME.lock`, were restored.

    Used under a lock of the file `name` that they are about.
    """

    def __init__(self, name: Path) -> None:
        self.path = name.with_name(f"{name.name}.witness")
        self.lock = name.with_name(f"{name.name}.lock")

    def lines(self) -> tuple[list[dict[str, Any]], bool] | None:
        """All lines, a damaged one empty, and whether the files are those that were written, and no copies.

        None if nothing was noted.
        """
        try:
            with self.path.open("rb") as file:
                # A last line without its end was cut off by a crash, before anything left.
                texts, changed = file.read().split(b"\n")[:-1], os.fstat(file.fileno()).st_ctime_ns
        except FileNotFoundError:
            return None
        lines = [_parsed(text) for text in texts]
        last = lines[-1] if lines else {}
        genuine = (
            all(lines)
            and abs(changed - int(last.get("time", 0))) <= _PROMPT
            and last.get("lock") == self._lock_time()
        )
        return lines, genuine

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Adds lines, on the disk when this returns."""
        new = not self.path.exists()
        os.close(os.open(self.lock, os.O_RDWR | os.O_CREAT, PRIVATE))
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
                    "keep the ledger on a local disk"
                )
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self.path.parent)

    def replace(self, lines: list[dict[str, Any]]) -> None:
        """Puts lines in the place of all that was there, durably."""
        os.close(os.open(self.lock, os.O_RDWR | os.O_CREAT, PRIVATE))
        write_atomically(self.path, self._text(lines, time.time_ns()), PRIVATE)

    def restrict(self) -> None:
        """Makes both files readable by their owner only, where a restore left them open."""
        for path in (self.path, self.lock):
            if path.exists() and path.stat().st_mode & 0o777 != PRIVATE:
                path.chmod(PRIVATE)

    def _lock_time(self) -> int:
        """When the lock file came into being, in nanoseconds; 0 if there is none."""
        try:
            return self.lock.stat().st_ctime_ns
        except FileNotFoundError:
            return 0

    def _text(self, lines: Iterable[Mapping[str, Any]], now: int) -> bytes:
        stamp = {"lock": self._lock_time(), "time": now}
        return b"".join(json.dumps({**line, **stamp}).encode() + b"\n" for line in lines)


class Witness(Notes):
    """The notes beside the ledger at `name`; used under the ledger's own lock."""

    def read(self) -> Testimony | None:
        """What was noted; None if nothing was."""
        found = self.lines()
        if found is None:
            return None
        said = Testimony(lines=len(found[0]), genuine=found[1])
        for line in found[0]:
            try:
                said.ledger, said.scope = str(line["ledger"]), str(line["scope"])
                if "client" in line:
                    total = Total(
                        *(line["client"], line["run"], int(line["releases"]), float(line["spent"])),
                        int(line.get("server", 0)),
                    )
                    said.totals[total.client, total.run] = total
                if "budget" in line:
                    epsilon, delta, accounting = line["budget"]
                    said.budget = (float(epsilon), float(delta), str(accounting))
            except (ValueError, TypeError, KeyError):
                said.genuine = False
        return said

    def note(
        self,
        ledger: str,
        scope: str,
        totals: Iterable[Total] = (),
        budget: tuple[float, float, str] | None = None,
    ) -> None:
        """Adds what grew, durably; without totals, that the files as they are now are the true ones."""
        name = {"ledger": ledger, "scope": scope}
        lines: list[dict[str, Any]] = [{**name, **vars(total)} for total in totals]
        if budget is not None:
            lines.append({**name, "budget": list(budget)})
        self.add(lines or [name])

    def rewrite(self, said: Testimony) -> None:
        """Says the same in as few lines as can be, in place of all that was there."""
        name: dict[str, Any] = {"ledger": said.ledger, "scope": said.scope}
        lines = [name, *({**name, **vars(total)} for total in said.totals.values())]
        if said.budget is not None:
            lines.append({**name, "budget": list(said.budget)})
        self.replace(lines)

    def shorten(self, said: Testimony) -> None:
        """Drops lines that later ones replace, where they are many; only of files that are genuine."""
        if said.genuine and said.lines > 2 * len(said.totals) + _LONG:
            self.rewrite(said)


def _parsed(text: bytes) -> dict[str, Any]:
    """A line; empty if it is damaged."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
