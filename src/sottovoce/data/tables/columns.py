"""Columns of a client's file as numbers and texts, whatever they were stored as.

How one cell is read never depends on another: types are those of the agreement, not guessed from records, so
that replacing one record changes the reading of that record only.

Free text becomes numbers without weights: hashed words, pairs of words and letters, at public random places.
Nothing is learned and nothing is looked up: a text's numbers follow from the text alone. Grams of letters let
misspelled and inflected words share most of theirs.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from sottovoce.data.section import DataError, canonical
from sottovoce.errors import extra

Values = npt.NDArray[Any]
EXAMPLES = 3
"""How many names a message lists."""
MOST_LETTERS = 20_000
"""Of a text; what follows is not read."""
LETTERS = (3, 4, 5)
"""Lengths of grams of letters, a space before and after each word included."""
ABSENT = frozenset(
    [
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "n/a",
        "nan",
        "null",
    ]
)
"""Texts that stand for a missing number: what common programs write."""
_SHORTER = (
    (r"(\.[0-9]*?)0+(Z|[+-][0-9:]+)?$", r"\1\2"),
    (r"\.(Z|[+-][0-9:]+)?$", r"\1"),
    (r"^([0-9]{4}-[0-9]{2}-[0-9]{2}) 00:00:00$", r"\1"),
)
"""What a column's unit adds to an instant as text: noughts, and the hour of days among instants."""
_LINE_END = re.compile(r"\r\n*")
"""One in a text. pyarrow reads \\r\\n as \\r where a block of a file ends between the two, and how long other
records are decides where that is."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass
class ColumnFindings:
    """What a column of one client holds that the agreement does not foresee, in numbers of records."""

    missing: int = 0
    unreadable: int = 0
    commas: int = 0
    outside: int = 0
    unknown: int = 0
    examples: tuple[str, ...] = ()
    constant: bool = False


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, float64: NaN where one is missing, or where something else stands in its place."""

    values: npt.NDArray[np.float64]
    unreadable: int = 0
    commas: int = 0
    """How many of the unreadable ones would be numbers if a comma were a decimal point."""

    def findings(self) -> ColumnFindings:
        """Returns what the column lacks."""
        absent = int(np.isnan(self.values).sum()) - self.unreadable
        return ColumnFindings(missing=absent, unreadable=self.unreadable, commas=self.commas)


@dataclass(frozen=True)
class Texts:
    """A column of texts: for each record a place in `distinct`, or −1 where nothing stands."""

    codes: npt.NDArray[np.int64]
    distinct: Sequence[str]

    @property
    def cells(self) -> list[str]:
        """The texts of all records, empty where nothing stands."""
        texts = [*self.distinct, ""]
        return [texts[code] for code in self.codes.tolist()]

    def places(self, place: Callable[[str], int]) -> npt.NDArray[np.int64]:
        """The place that each record's text has by `place`; −1 where nothing stands."""
        return np.array([*map(place, self.distinct), -1], np.int64)[self.codes]

    def findings(self, places: npt.NDArray[np.int64]) -> ColumnFindings:
        """Counts texts outside the agreed ones, whose place is −1, and nothing where nothing stands."""
        strange = self.codes[places < 0]
        counts = np.bincount(strange[strange >= 0], minlength=len(self.distinct))
        blank = [place for place in np.flatnonzero(counts).tolist() if not canonical(self.distinct[place])]
        missing = int((strange < 0).sum() + counts[blank].sum())
        counts[blank] = 0
        most = np.argsort(-counts, kind="stable")[:EXAMPLES].tolist()
        examples = tuple(canonical(self.distinct[place])[:40] for place in most if counts[place])
        return ColumnFindings(missing=missing, unknown=len(strange) - missing, examples=examples)


class Columns(ABC):
    """The columns of one file; `names` are all it has."""

    names: Collection[str]
    records: int

    @abstractmethod
    def numbers(self, name: str, decimal: str = ".") -> Numbers:
        """A column as numbers; with `decimal=","` a comma in a text is a decimal point as well."""

    @abstractmethod
    def texts(self, name: str) -> Texts:
        """A column as texts."""


class ArrayColumns(Columns):
    """Columns as the one-dimensional arrays of an npz."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        self.names = list(arrays)
        self.records = max((len(array) if array.ndim else 0 for array in arrays.values()), default=0)

    def numbers(self, name: str, decimal: str = ".") -> Numbers:
        array = self._column(name)
        if array.dtype.kind not in "iufb":
            raise DataError(f"holds {array.dtype} where numbers were agreed on: save it as numbers")
        values = array.astype(np.float64)
        infinite = np.isinf(values)
        return Numbers(np.where(infinite, np.nan, values), int(infinite.sum()))

    def texts(self, name: str) -> Texts:
        array = self._column(name)
        if array.dtype.kind not in "iufbUSM":
            raise DataError(f"holds {array.dtype} where texts were agreed on: save it as texts")
        if array.dtype.kind == "M":
            array = array.astype("datetime64[s]").astype(str)
        distinct, codes = np.unique(array, return_inverse=True)
        return Texts(codes.astype(np.int64), [_text(value) for value in distinct.tolist()])

    def _column(self, name: str) -> npt.NDArray[Any]:
        array = self._arrays[name]
        if array.ndim != 1 or len(array) != self.records:
            raise DataError(f"has shape {array.shape}: give one value for each of {self.records} records")
        return array


class ArrowColumns(Columns):
    """Columns of a table of pyarrow."""

    def __init__(self, table: Any, names: Collection[str]) -> None:
        self._table = table
        self.names = names
        self.records = table.num_rows

    def numbers(self, name: str, decimal: str = ".") -> Numbers:
        pa, _ = arrow()
        column = self._column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        unreadable = commas = 0
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column, unreadable, commas = _spelled(column, decimal)
        elif not _numeric(column.type):
            raise DataError(f"holds {column.type} where numbers were agreed on: save it as numbers")
        elif pa.types.is_decimal(column.type):
            column = column.cast(pa.string())  # a text is rounded alike, however many decimals a column has
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        values = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        infinite = np.isinf(values)
        return Numbers(np.where(infinite, np.nan, values), unreadable + int(infinite.sum()), commas)

    def texts(self, name: str) -> Texts:
        pa, pc = arrow()
        column = self._column(name)
        if pa.types.is_nested(column.type):
            raise DataError(f"holds {column.type} where texts were agreed on: save it as texts")
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.string())
            for pattern, kept in _SHORTER:
                column = pc.replace_substring_regex(column, pattern, kept)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        encoded = column.unify_dictionaries().combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):  # no chunk at all
            return Texts(np.zeros(0, np.int64), [])
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Texts(codes, [_text(value) for value in encoded.dictionary.to_pylist()])

    def _column(self, name: str) -> Any:
        """A column, whose texts are UTF-8: a Parquet file may hold others, each the matter of its record."""
        pa, _ = arrow()
        column = self._table.column(name)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            cells = plain.cast(pa.binary()).to_pylist()
            column = pa.chunked_array(
                [[None if cell is None else _text(cell) for cell in cells]], pa.string()
            )
        return column


def _spelled(column: Any, decimal: str) -> tuple[Any, int, int]:
    """Numbers of texts, null where there is none; how many are unreadable, and how many for their commas.

    A column of numbers alone, or of numbers and gaps, is read at once, as its cells would be one by one.
    """
    pa, pc = arrow()
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.float64()), 0, 0
    texts = pc.utf8_trim_whitespace(column)
    if decimal == ",":
        texts = pc.replace_substring(texts, ",", ".")
    present = pc.if_else(pc.is_in(texts, pa.array(sorted(ABSENT)), skip_nulls=True), None, texts)
    with suppress(pa.ArrowInvalid):
        return present.cast(pa.float64()), 0, 0
    present = pc.if_else(pc.match_substring_regex(present, "(?i)^-?nan$"), None, present)
    readable = pc.fill_null(pc.match_substring_regex(present, NUMBER), False)
    pointed = pc.match_substring_regex(pc.replace_substring(present, ",", "."), NUMBER)
    unreadable = len(present) - present.null_count - pc.sum(readable).as_py()
    commas = pc.sum(pc.fill_null(pointed, False)).as_py() - pc.sum(readable).as_py()
    unsigned = pc.replace_substring_regex(present, r"^\+", "")
    return pc.if_else(readable, unsigned, None).cast(pa.float64()), unreadable, commas


def _numeric(kind: Any) -> bool:
    types = arrow()[0].types
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    return any(fits(kind) for fits in numeric)


def _text(value: object) -> str:
    """A cell as text, of its own value alone: how many decimals a column has, its other cells may decide."""
    if isinstance(value, str):
        return _LINE_END.sub("\n", value) if "\r" in value else value
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def arrow() -> tuple[Any, Any]:
    """pyarrow and its functions, or one line that says how to get them."""
    needs, instead = "CSV and Parquet files need pyarrow", ", or save tables as .npz"
    return extra("pyarrow", needs, "tables", instead), extra("pyarrow.compute", needs, "tables", instead)


_MIX = np.uint64(0x9E3779B97F4A7C15)


def hashed(text: str, size: int) -> npt.NDArray[np.float32]:
    """A text as `size` numbers of unit norm, half of it words, half of it letters; 0 where it has no word.

    Case, accents' way of writing and punctuation do not count. A place holds the root of its signed count.

    >>> cold, colds, warm = (hashed(text, 512) for text in ("A cold.", "a colds", "so warm"))
    >>> bool(cold @ colds > 0.3 > cold @ warm), round(float(cold @ hashed("a  COLD", 512)), 4)
    (True, 1.0)
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text[:MOST_LETTERS]).casefold())
    halves = [_counted(grams, size) for grams in (_of_words(words), _of_letters(words))]
    both = np.sum([half / max(float(np.linalg.norm(half)), 1e-9) for half in halves], axis=0)
    whole: npt.NDArray[np.float32] = (both / max(float(np.linalg.norm(both)), 1e-9)).astype(np.float32)
    return whole


def _of_words(words: list[str]) -> Iterator[str]:
    yield from words
    yield from (f"{one} {other}" for one, other in itertools.pairwise(words))


def _of_letters(words: list[str]) -> Iterator[str]:
    for word in words:
        spaced = f" {word} "
        for length in LETTERS:
            # A leading # keeps them apart from words; a word that is shorter is a gram of its own length.
            yield from (f"#{spaced[i : i + length]}" for i in range(max(1, len(spaced) - length + 1)))


def _counted(grams: Iterator[str], size: int) -> npt.NDArray[np.float64]:
    codes = np.array([zlib.crc32(gram.encode()) for gram in grams], np.uint64) * _MIX
    signs = ((codes >> np.uint64(20)) & np.uint64(1)).astype(np.float64) * 2 - 1
    places = ((codes >> np.uint64(32)) % np.uint64(size)).astype(np.int64)
    counts = np.bincount(places, signs, size)
    rooted: npt.NDArray[np.float64] = np.sign(counts) * np.sqrt(np.abs(counts))
    return rooted
