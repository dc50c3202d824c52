"""The one sheet of an Excel workbook as a table of texts, read row by row."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from sottovoce.data.columns import arrow
from sottovoce.data.own import DataError
from sottovoce.errors import SottovoceError

_DAMAGED = (zipfile.BadZipFile, KeyError, ValueError, TypeError, IndexError, ParseError, EOFError)


def sheet_names(path: Path) -> list[str]:
    """What the columns are called: the first line of the sheet."""
    with _lines(path) as lines:
        return _header(lines)


def sheet_parts(path: Path, wanted: list[str], numbers: Collection[str], size: int) -> Iterator[Any]:
    """The wanted columns as tables of pyarrow with at most `size` records; at least one, maybe empty.

    Cells of `numbers` are written so that they are read again as they are; a line without any cell is none.
    """
    pa, _ = arrow()
    with _lines(path) as lines:
        names = _header(lines)
        places = {name: names.index(name) for name in wanted}
        records = (line for line in lines if any(cell is not None for cell in line))
        done = 0
        while (part := list(islice(records, size))) or not done:
            done += 1
            columns = {
                name: [_cell(line[place], name in numbers) if place < len(line) else None for line in part]
                for name, place in places.items()
            }
            if not columns:  # counts records all the same
                columns = {"": [""] * len(part)}
            yield pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[tuple[Any, ...]]]:
    try:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError:
        raise SottovoceError(
            "Excel files need openpyxl: pip install 'sottovoce[excel]', or save tables as CSV"
        ) from None
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        try:
            if len(book.worksheets) != 1:
                sheets = ", ".join(sheet.title for sheet in book.worksheets[:4])
                raise DataError(
                    f"{path} has {len(book.worksheets)} sheets ({sheets}): keep the one with records"
                )
            yield iter(book.worksheets[0].iter_rows(values_only=True))
        finally:
            book.close()
    except (InvalidFileException, *_DAMAGED):
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
