"""Columns whose cells stay what they are until a public encoder describes them: pictures, and whole texts.

A record holds a digest of each such cell, as numbers that float32 keeps exactly, and the content lies beside
the records under that digest. So what a record is still follows from its own content alone, equal contents
are equal, and what is computed of one is kept under its digest. Vectors from elsewhere are here too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sottovoce.data.pictures import content_of
from sottovoce.data.section import DataError, Section
from sottovoce.data.tables.columns import ABSENT, ColumnFindings, Columns, Values
from sottovoce.data.tables.kinds import MOST_PLACES, Column, looked_up
from sottovoce.errors import visible
from sottovoce.plan.catalog import names_encoder

IMAGE, TEXT = "image", "text"
PLACES, _BITS = 6, 22
"""Numbers that hold a digest of 128 bits, and the bits of each."""
MOST_LETTERS = 100_000
"""Of a text that an encoder shall read."""
MOST_FAULTS = 20
"""Cells that are named one by one."""

Content = str | Path
"""A text, or the file of a picture."""


def digest_of(content: bytes) -> bytes:
    """The 16 bytes under which a content lies."""
    return hashlib.blake2b(content, digest_size=16).digest()


def numbers_of(digest: bytes) -> list[float]:
    """A digest as numbers; `digests_in` reads them.

    >>> digests_in(np.array([numbers_of(bytes(range(16)))], np.float32))[0] == bytes(range(16))
    True
    """
    whole = int.from_bytes(digest, "big")
    return [float(whole >> (_BITS * place) & (2**_BITS - 1)) for place in range(PLACES)]


def digests_in(x: Values) -> list[bytes | None]:
    """The digests in numbers (n, PLACES); None where there is none."""
    found: list[bytes | None] = []
    for row in x.tolist():
        whole = 0
        if all(value == value and 0 <= value < 2**_BITS and value == int(value) for value in row):
            whole = sum(int(value) << (_BITS * place) for place, value in enumerate(row))
        found.append(whole.to_bytes(16, "big") if 0 < whole < 2**128 else None)
    return found


@dataclass(frozen=True)
class Held(Column):
    """A column that `encoder` describes; "" where whoever trains names one for all."""

    encoder: str = ""
    looked_up: tuple[str, ...] = ()
    needs: ClassVar[str]
    """The kind of encoder."""

    def encoded(self, name: str) -> list[str]:
        """Places of a digest, until it is described."""
        return [f"{name} #{place}" for place in range(PLACES)]

    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        texts, rows = columns.texts(name), np.zeros((1, PLACES), np.float32)
        found, kept, faults, wrong = ColumnFindings(), [], [], set()
        for place, cell in enumerate(texts.distinct):
            try:
                digest = self.held(cell, columns)
                kept.append([0.0] * PLACES if digest is None else numbers_of(digest))
            except DataError as error:
                faults.append(str(error))
                wrong.add(place)
                kept.append([0.0] * PLACES)
        rows = np.array([*kept, [0.0] * PLACES], np.float32)
        into[:] = rows[texts.codes]
        found.unreadable = sum(code in wrong for code in texts.codes.tolist())
        found.missing = int((~into.any(axis=1)).sum()) - found.unreadable
        found.constant = len(texts.codes) > 1 and len(set(texts.codes.tolist())) == 1
        found.faults = tuple(faults[:MOST_FAULTS])
        return found

    def held(self, cell: str, columns: Columns) -> bytes | None:
        """The digest of what a cell holds, which is kept; None where nothing stands."""
        raise NotImplementedError

    def fields(self) -> dict[str, object]:
        return {"kind": self.kind, "encoder": self.encoder or None, "looked_up": self.looked_up}


@dataclass(frozen=True)
class Picture(Held):
    """A column of paths of pictures, inside the folder of the client's file."""

    kind: ClassVar[str] = "image"
    needs: ClassVar[str] = IMAGE

    def held(self, cell: str, columns: Columns) -> bytes | None:
        if not cell.strip() or cell in ABSENT:
            return None
        named = visible(cell if len(cell) <= 80 else f"…{cell[-79:]}")
        try:
            path = (columns.folder / cell.strip()).resolve()
            if not path.is_relative_to(columns.folder.resolve()):
                raise DataError(f"'{named}' leaves the folder of the records: move it there")
            digest = digest_of(content_of(path))
        except DataError as error:
            raise DataError(str(error) if str(error).startswith("'") else f"'{named}' {error}") from None
        except (OSError, ValueError):
            raise DataError(f"'{named}' is no path of a file") from None
        columns.contents[digest] = path
        return digest


@dataclass(frozen=True)
class WholeText(Held):
    """A column of texts that an encoder reads; a `size` of hashed words beside it counts nothing."""

    size: int | None = None
    kind: ClassVar[str] = "text"
    needs: ClassVar[str] = TEXT

    def held(self, cell: str, columns: Columns) -> bytes | None:
        if not cell.strip():
            return None
        if len(cell) > MOST_LETTERS:
            raise DataError(f"a text of {len(cell):,} letters is longer than {MOST_LETTERS:,}: shorten it")
        digest = digest_of(cell.encode(errors="surrogatepass"))
        columns.contents[digest] = cell
        return digest

    def fields(self) -> dict[str, object]:
        return {**super().fields(), "size": self.size}


@dataclass(frozen=True)
class Vector(Column):
    """A column of `size` numbers from elsewhere, scaled to norm 1; 0 where they are missing or too many."""

    size: int
    looked_up: tuple[str, ...] = ()
    kind: ClassVar[str] = "vector"

    def encoded(self, name: str) -> list[str]:
        return [f"{name} #{place}" for place in range(self.size)]

    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        found, lengths = ColumnFindings(), set()
        for place, vector in enumerate(columns.vectors(name)):
            if vector is None:
                found.missing += 1
            elif len(vector) != self.size or not np.isfinite(vector).all():
                found.unreadable += 1
                lengths.add(len(vector))
            else:
                into[place] = _unit(vector)
        if lengths:
            said = ", ".join(map(str, sorted(lengths)[:3]))
            found.faults = (
                f"vectors of {said} numbers, or none that are finite: {self.size} were agreed on",
            )
        found.constant = len(into) > 1 and bool((into == into[0]).all())
        return found


def picture(section: Section) -> Picture:
    return Picture(_encoder(section), looked_up(section, "kind"))


def whole_text(section: Section) -> WholeText:
    size = section.whole("size", MOST_PLACES) if "size" in section.keys else None
    return WholeText(_encoder(section), looked_up(section, "kind"), size)


def vector(section: Section) -> Vector:
    return Vector(section.whole("size", MOST_PLACES), looked_up(section, "kind"))


def _encoder(section: Section) -> str:
    name: str | None = section.text("encoder", optional=True)
    if name is not None and (not names_encoder(name) or "+" in name):
        raise section.error("encoder", f"is {name}, which cannot name one: 'sottovoce encoder list' does")
    return name or ""


def _unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A vector of norm 1 in its direction, whatever its length; 0 stays 0."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return values
    scaled = values / largest
    return np.asarray(scaled / np.linalg.norm(scaled))
