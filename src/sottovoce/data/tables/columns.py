"""Columns of a client's file as numbers and texts, whatever they were stored as.

How one cell is read never depends on another: types are those of the agreement, not guessed from records, so
that replacing one record changes the reading of that record only.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sottovoce.data.section import DataError, canonical
from sottovoce.errors import extra

Values = npt.NDArray[Any]
EXAMPLES = 3
"""How many names a message lists."""
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
    faults: tuple[str, ...] = ()
    """Cells that cannot be read, a line each, where there are not too many."""


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
    folder: Path = Path()
    """Where files lie that cells name."""

    @cached_property
    def contents(self) -> dict[bytes, str | Path]:
        """What cells hold that stay what they are, under their digests (`held`)."""
        return {}

    def vectors(self, name: str) -> Iterator[npt.NDArray[np.float64] | None]:
        """A column of lists of numbers, one by one; None where nothing stands."""
        raise DataError("holds no lists of numbers: save it as .parquet or .npz")

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

    def vectors(self, name: str) -> Iterator[npt.NDArray[np.float64] | None]:
        array = self._arrays[name]
        if array.dtype.kind not in "iuf" or array.ndim != 2 or len(array) != self.records:
            raise DataError(
                f"is {array.dtype} of shape {array.shape}: give one row of numbers for each record"
            )
        yield from array.astype(np.float64)

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

    def vectors(self, name: str) -> Iterator[npt.NDArray[np.float64] | None]:
        types, column = arrow()[0].types, self._table.column(name)
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        if not any(fits(column.type) for fits in lists) or not _numeric(column.type.value_type):
            raise DataError(f"holds {column.type} where lists of numbers were agreed on: save it as those")
        for cell in column:
            values = cell.values
            if values is None:
                yield None
            else:
                yield np.asarray(
                    values.cast("float64", safe=False).to_numpy(zero_copy_only=False), np.float64
                )

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
