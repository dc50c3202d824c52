"""A client's file as columns: CSV, Parquet or npz become numbers and texts, whatever they were stored as.

How one cell is read never depends on another: types are those of the agreement, not guessed from records, so
that replacing one record changes the reading of that record only.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sottovoce.data.own import DataError, read_arrays
from sottovoce.errors import SottovoceError

FORMATS = (".csv", ".parquet", ".npz")
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
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, float64: NaN where one is missing, or where something else stands in its place."""

    values: npt.NDArray[np.float64]
    unreadable: int = 0


@dataclass(frozen=True)
class Texts:
    """A column of texts: for each record a place in `distinct`, or −1 where nothing stands."""

    codes: npt.NDArray[np.int64]
    distinct: Sequence[str]

    def among(self, values: Sequence[str]) -> npt.NDArray[np.int64]:
        """The place of each record's text among `values`, or −1; `1.0` is the `1` of whole numbers."""
        whole = all(_WHOLE.fullmatch(f"{value}.") for value in values)
        places = {value: place for place, value in enumerate(values)}
        found = [places.get(canonical(text, whole=whole), -1) for text in self.distinct]
        return np.array([*found, -1], np.int64)[self.codes]


class Columns(ABC):
    """The columns of one file; `names` are all it has."""

    names: Collection[str]
    records: int

    @abstractmethod
    def numbers(self, name: str) -> Numbers:
        """A column as numbers."""

    @abstractmethod
    def texts(self, name: str) -> Texts:
        """A column as texts."""


def canonical(text: str, *, whole: bool = False) -> str:
    """Without spaces around it and in one Unicode form; without an empty fraction where it is a whole number.

    >>> canonical(" cafe\u0301 "), canonical("1.0", whole=True)
    ('café', '1')
    """
    plain = unicodedata.normalize("NFC", text.strip())
    match = _WHOLE.fullmatch(plain) if whole else None
    return match[1] if match else plain


def read_columns(path: Path, numbers: Collection[str], texts: Collection[str]) -> Columns:
    """The named columns of a file, as far as it has them."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return ArrayColumns(read_arrays(path, [*numbers, *texts]))
    if suffix not in FORMATS:
        raise DataError(f"{path} is not one of {', '.join(FORMATS)}: save it as one")
    _arrow()
    try:
        if suffix == ".csv":
            return _read_csv(path, numbers, texts)
        return _read_parquet(path, [*numbers, *texts])
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check the path") from None
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror or 'damaged'}): check the file") from None


class ArrayColumns(Columns):
    """Columns as the one-dimensional arrays of an npz."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        self.names = list(arrays)
        self.records = max((len(array) if array.ndim else 0 for array in arrays.values()), default=0)

    def numbers(self, name: str) -> Numbers:
        array = self._column(name)
        if array.dtype.kind not in "iufb":
            raise DataError(f"holds {array.dtype} where numbers were agreed on: save it as numbers")
        values = array.astype(np.float64)
        infinite = np.isinf(values)
        return Numbers(np.where(infinite, np.nan, values), int(infinite.sum()))

    def texts(self, name: str) -> Texts:
        array = self._column(name)
        if array.dtype.kind not in "iufbUS":
            raise DataError(f"holds {array.dtype} where texts were agreed on: save it as texts")
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

    def numbers(self, name: str) -> Numbers:
        pa, pc = _arrow()
        column = self._table.column(name)
        unreadable = 0
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = pc.utf8_trim_whitespace(column)
            readable = pc.fill_null(pc.match_substring_regex(texts, _NUMBER), False)
            absent = pc.is_in(texts, pa.array(sorted(ABSENT)), skip_nulls=True)
            unreadable = len(texts) - texts.null_count - pc.sum(pc.or_(readable, absent)).as_py()
            unsigned = pc.replace_substring_regex(texts, r"^\+", "")
            column = pc.if_else(readable, unsigned, None)
        elif not _numeric(column.type):
            raise DataError(f"holds {column.type} where numbers were agreed on: save it as numbers")
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        values = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        infinite = np.isinf(values)
        return Numbers(np.where(infinite, np.nan, values), unreadable + int(infinite.sum()))

    def texts(self, name: str) -> Texts:
        pa, _ = _arrow()
        column = self._table.column(name)
        if pa.types.is_nested(column.type):
            raise DataError(f"holds {column.type} where texts were agreed on: save it as texts")
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        encoded = column.unify_dictionaries().combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):  # no chunk at all
            return Texts(np.zeros(0, np.int64), [])
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Texts(codes, [_text(value) for value in encoded.dictionary.to_pylist()])


def _read_csv(path: Path, numbers: Collection[str], texts: Collection[str]) -> Columns:
    pa, _ = _arrow()
    from pyarrow import csv as arrow_csv

    names, delimiter = _header(path)
    if _quotes(path) % 2:  # pyarrow would take everything after it for one cell
        raise DataError(f"{path} has a quote that is never closed: close it, or double those inside a text")
    wanted = [name for name in (*numbers, *texts) if name in names]
    for name in wanted:
        if names.count(name) > 1:
            raise DataError(f"{path} has two columns '{name}': rename one")
    coded = pa.dictionary(pa.int32(), pa.string())

    def read(kind: Any) -> Any:
        types = {name: kind if name in numbers else coded for name in wanted}
        return arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, include_columns=wanted or names[:1], null_values=sorted(ABSENT)
            ),
        )

    try:
        try:
            return ArrowColumns(read(pa.float64()), names)
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            return ArrowColumns(read(pa.string()), names)  # some cell is not a number: look at each
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {_csv_problem(str(error))}") from None


def _header(path: Path) -> tuple[list[str], str]:
    """Names of the columns, and what stands between them: comma, semicolon or tab."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.readline(2**20)
            delimiter = max(",;\t", key=start.count)
            file.seek(0)
            return next(csv.reader(file, delimiter=delimiter), []), delimiter
    except (UnicodeError, csv.Error):
        raise DataError(f"{path} is not a CSV file in UTF-8: save it as one") from None


def _quotes(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b'"') for block in iter(lambda: file.read(2**20), b""))


def _csv_problem(message: str) -> str:
    """Why pyarrow cannot read a file, without the cells that its message quotes."""
    cells = re.search(r"Expected (\d+) columns, got (\d+)", message)
    if cells:
        return f"a line has {cells[2]} cells instead of {cells[1]}: put texts with commas into quotes"
    if "UTF8" in message:
        return "holds letters that are not UTF-8: save it as UTF-8"
    if "Empty" in message:
        return "is empty: give at least one record"
    return "is not a readable CSV file: save it again, in UTF-8, one record a line"


def _read_parquet(path: Path, wanted: Collection[str]) -> Columns:
    pa, _ = _arrow()
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            known = [name for name in wanted if name in names]
            return ArrowColumns(file.read(columns=known), names)
    except pa.ArrowException:
        raise DataError(f"{path} is not a Parquet file or is damaged: save it again") from None


def _numeric(kind: Any) -> bool:
    pa, _ = _arrow()
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise SottovoceError(
            "CSV and Parquet files need pyarrow: pip install 'sottovoce[tables]', or save tables as .npz"
        ) from None
    return pyarrow, pyarrow.compute
