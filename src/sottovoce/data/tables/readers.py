"""A client's file of a table, whatever its format: its columns at once, or in parts of bounded size.

An Excel workbook has one sheet, which is read row by row as a table of texts.
"""

from __future__ import annotations

import csv
import mmap
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from itertools import islice, repeat
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from sottovoce.data.arrays import array_names, read_arrays
from sottovoce.data.section import DataError
from sottovoce.data.tables.columns import ArrayColumns, ArrowColumns, Columns, arrow
from sottovoce.errors import extra

FORMATS = (".csv", ".tsv", ".xlsx", ".parquet", ".npz")
TEXTS = (".csv", ".tsv")
PART = 2**16
"""Records of a part of a Parquet file or a sheet."""
BLOCK = 2**20
"""Bytes of a part of a CSV file, unless a record is longer."""
_DAMAGED = (zipfile.BadZipFile, KeyError, ValueError, TypeError, IndexError, ParseError, EOFError)


def read_columns(path: Path, numbers: Collection[str], texts: Collection[str]) -> Columns:
    """The named columns of a file, as far as it has them."""
    if _format(path) == ".npz":
        return ArrayColumns(read_arrays(path, [*numbers, *texts]))
    pa, _ = arrow()
    with _opened(path, numbers, [*numbers, *texts]) as (names, schema, batches):
        found = list(batches)
        return ArrowColumns(pa.Table.from_batches(found) if found else schema.empty_table(), names)


def read_parts(path: Path, numbers: Collection[str], texts: Collection[str]) -> Iterator[Columns]:
    """The same in parts, in the file's order, for files larger than memory; an npz is one part."""
    if _format(path) == ".npz":
        yield ArrayColumns(read_arrays(path, [*numbers, *texts]))
        return
    pa, _ = arrow()
    with _opened(path, numbers, [*numbers, *texts]) as (names, _, batches):
        for batch in batches:
            yield ArrowColumns(pa.Table.from_batches([batch]), names)


def column_names(path: Path) -> list[str]:
    """Returns what the columns of a file are called: of an npz, its arrays."""
    with _explained(path):
        kind = _format(path)
        if kind == ".npz":
            return array_names(path)
        if kind in TEXTS:
            return csv_header(path)[0]
        if kind == ".xlsx":
            with _lines(path) as lines:
                return _header(lines)
        from pyarrow.parquet import read_schema

        names: list[str] = read_schema(path).names
        return names


@contextmanager
def _opened(
    path: Path, numbers: Collection[str], wanted: list[str]
) -> Iterator[tuple[list[str], Any, Iterable[Any]]]:
    """Names of all columns, and of the wanted ones a schema and batches of records, in the file's order."""
    pa, _ = arrow()
    with _explained(path):
        kind, names = path.suffix.lower(), column_names(path)
        known = known_columns(path, names, wanted)
        if kind in TEXTS:
            from pyarrow.csv import open_csv

            with open_csv(path, **_csv(path, names, known, numbers)) as reader:
                yield names, reader.schema, reader
        elif kind == ".xlsx":
            yield names, pa.schema([]), sheet_parts(path, known, numbers, PART)
        else:
            from pyarrow.parquet import ParquetFile

            with ParquetFile(path) as file:
                yield names, file.schema_arrow, file.iter_batches(PART, columns=known)


def _csv(path: Path, names: list[str], known: list[str], numbers: Collection[str]) -> dict[str, Any]:
    """Returns how pyarrow reads columns: cells as texts, as they stand; in a file of others, the first.

    What a number is, `Columns.numbers` says, so that no cell changes how another is read.
    """
    pa, _ = arrow()
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

    delimiter, read = csv_header(path)[1], known or names[:1]
    categories = pa.dictionary(pa.int32(), pa.string())
    types = {name: pa.string() if name in numbers else categories for name in read}  # few numbers occur twice
    longest = _longest(path, delimiter)
    return {
        "read_options": ReadOptions(block_size=max(BLOCK, longest + 1)),  # a record has to fit into a block
        "parse_options": ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=len(names) > 1,  # of one column, an empty line is a missing value
        ),
        "convert_options": ConvertOptions(column_types=types, include_columns=read),
    }


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of pyarrow and the operating system become ours, without the cells that pyarrow quotes."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check the path") from None
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror or 'damaged'}): check the file") from None
    except Exception as error:
        if not type(error).__module__.startswith("pyarrow"):
            raise
        raise DataError(f"{path} {_problem(path, str(error))}") from None


def _format(path: Path) -> str:
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise DataError(f"{path} is not one of {', '.join(FORMATS)}: save it as one")
    if kind != ".npz":
        arrow()
    return kind


def known_columns(held: Path | str, names: list[str], wanted: list[str]) -> list[str]:
    """Those of the wanted columns that a file, or a client, has, each once."""
    known = [name for name in wanted if name in names]
    for name in known:
        if names.count(name) > 1:
            raise DataError(f"{held} has two columns '{name}': rename one")
    return known


def csv_header(path: Path) -> tuple[list[str], str]:
    """Names of the columns, and what stands between them: comma, semicolon or tab (.tsv: tab)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.readline(2**20)
            delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=start.count)
            file.seek(0)
            return next(csv.reader(file, delimiter=delimiter), []), delimiter
    except (UnicodeError, csv.Error):
        raise DataError(f"{path} is not a CSV file in UTF-8: save it as one") from None


def _longest(path: Path, delimiter: str) -> int:
    """Bytes of the longest record; refuses a quote that neither opens nor closes a cell and is not doubled.

    pyarrow reads on across such quotes: two records would become one, or a cell take the rest of the file.
    After a NUL it takes an open cell for a closed one where its block ends, in the next record too.
    """
    end = rf"[{delimiter}\r\n]"
    cell = rf'(?:[^"{end[1:]}*+|"(?:[^"]++|"")*+"(?={end}|\Z))'
    record = re.compile(rf"(?:{cell}{delimiter})*+{cell}(?:\r\n?|\n|\Z)".encode())
    with path.open("rb") as file:
        if not path.stat().st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if (nul := data.find(b"\0")) >= 0:
                line = data[:nul].count(b"\n") + 1
                raise DataError(f"{path} holds a NUL byte in line {line}: remove it, and save it as UTF-8")
            place, longest = 3 if data[:3] == b"\xef\xbb\xbf" else 0, 0
            while place < len(data):
                found = record.match(data, place)
                if found is None:
                    line = data[:place].count(b"\n") + 1
                    raise DataError(
                        f"{path} has a quote within a cell, or one never closed, from line {line} on: put "
                        "the cell into quotes, and double those in its text"
                    )
                longest, place = max(longest, found.end() - place), found.end()
    return longest


def _problem(path: Path, message: str) -> str:
    if path.suffix.lower() == ".parquet":
        return "is not a Parquet file or is damaged: save it again"
    cells = re.search(r"Expected (\d+) columns, got (\d+)", message)
    if cells and cells[1] == "1":
        return f"has one name in its first line and {cells[2]} cells below: begin with the line of all names"
    if cells:
        return f"has a line with {cells[2]} cells instead of {cells[1]}: put texts with commas into quotes"
    if "UTF8" in message:
        return "holds letters that are not UTF-8: save it as UTF-8"
    if "Empty" in message:
        return "is empty: give at least one record"
    return "is not a readable CSV file: save it again, in UTF-8, one record a line"


def sheet_parts(path: Path, wanted: list[str], numbers: Collection[str], size: int) -> Iterator[Any]:
    """The wanted columns in batches of at most `size` records; at least one, maybe empty.

    Cells of `numbers` are written so that they are read again as they are.
    """
    pa, _ = arrow()
    with _lines(path) as lines:
        names = _header(lines)
        places = {name: names.index(name) for name in wanted}
        records, done = _without_end(lines), 0
        while (part := list(islice(records, size))) or not done:
            done += 1
            columns = {
                name: [_cell(line[place], name in numbers) if place < len(line) else None for line in part]
                for name, place in places.items()
            }
            if not columns:  # counts records all the same
                columns = {"": [""] * len(part)}
            yield pa.record_batch({name: pa.array(cells, pa.string()) for name, cells in columns.items()})


def _without_end(lines: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """All lines but the empty ones after the last record: one between others is a record without values."""
    empty = 0
    for line in lines:
        if all(cell is None for cell in line):
            empty += 1
            continue
        yield from repeat((), empty)
        yield line
        empty = 0


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[tuple[Any, ...]]]:
    openpyxl = extra("openpyxl", "Excel files need openpyxl", "excel", ", or save tables as CSV")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            if len(book.worksheets) != 1:
                sheets = ", ".join(sheet.title for sheet in book.worksheets[:4])
                raise DataError(
                    f"{path} has {len(book.worksheets)} sheets ({sheets}): keep the one with records"
                )
            yield iter(book.worksheets[0].iter_rows(values_only=True))
        finally:
            book.close()
    except (openpyxl.utils.exceptions.InvalidFileException, *_DAMAGED):
        raise DataError(
            f"{path} is not an .xlsx file, is locked by a password, or damaged: save it again"
        ) from None


def _header(lines: Iterator[tuple[Any, ...]]) -> list[str]:
    cells = list(next(lines, ()))
    while cells and cells[-1] is None:
        cells.pop()
    return [_cell(cell, False) or "" for cell in cells]


def _cell(value: Any, number: bool) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value)) if number else str(value).lower()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer() and not number:
        return str(int(value))
    return repr(value)
