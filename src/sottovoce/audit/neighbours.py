"""Neighbours are files: a client's file with one unit replaced by any other, any two of which are neighbours.

A unit becomes one with another target or none, other or unusable values, a category that nobody knows, a copy
of another unit; it stands elsewhere in the file, or the file is sorted anew; a unit that has a name gets
another one that nobody has, and more or fewer records. The number of units stays.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from sottovoce.data.arrays import read_arrays
from sottovoce.data.section import canonical
from sottovoce.data.tables.columns import arrow
from sottovoce.data.tables.held import WholeText
from sottovoce.data.tables.kinds import Category, Date, Number, Text
from sottovoce.data.tables.readers import TEXTS as TEXT_FORMATS
from sottovoce.data.tables.readers import column_names, csv_header, read_columns
from sottovoce.data.tables.schema import Description

Row = dict[str, Any]
MOST_RECORDS = 4
"""Records of a unit that replaces another."""
TEXTS = ("", "NA", "nan", "inf", "-0.0", "1e400", "0x10", "1,5", "unknown", " a", "é", "=1+1", "true", "None")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e30, -1e30, 1e308, math.inf, -math.inf, math.nan)
Cell = Callable[[Random, list[Row]], Any]


@dataclass(frozen=True)
class Table:
    """One client's file: cells (or arrays) of alike many records by column, and the constants of an npz."""

    columns: Mapping[str, list[Any]]
    suffix: str
    constants: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Table:
        """Every column of a file, cells as they are stored."""
        kind, names = path.suffix.lower(), column_names(path)
        if kind == ".npz":
            arrays = read_arrays(path, names)
            records = len(arrays["x"]) if "x" in arrays else max(map(len, arrays.values()))
            whole = {name: array for name, array in arrays.items() if array.shape[:1] == (records,)}
            rest = {name: array for name, array in arrays.items() if name not in whole}
            columns = {n: list(a) if a.ndim > 1 else a.tolist() for n, a in whole.items()}
            return cls(columns, kind, rest)
        if kind in TEXT_FORMATS:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = list(csv.reader(file, delimiter=csv_header(path)[1]))[1:]
            cells = zip(*(row for row in rows if row), strict=True)
            return cls(dict(zip(names, map(list, cells), strict=True)), kind, {})
        if kind == ".xlsx":
            return cls({name: read_columns(path, [], [name]).texts(name).cells for name in names}, kind, {})
        arrow()
        from pyarrow import parquet

        return cls(parquet.read_table(path).to_pydict(), kind, {})

    def write(self, path: Path) -> None:
        """The file again, in its format."""
        if self.suffix == ".npz":
            arrays: dict[str, Any] = {name: _array(cells) for name, cells in self.columns.items()}
            np.savez(path, **arrays, **self.constants)
        elif self.suffix in TEXT_FORMATS:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter="\t" if self.suffix == ".tsv" else ",")
                writer.writerow(self.columns)
                writer.writerows(zip(*self.columns.values(), strict=True))
        elif self.suffix == ".xlsx":
            from openpyxl import Workbook

            book = Workbook(write_only=True)
            sheet = book.create_sheet()
            for row in (tuple(self.columns), *zip(*self.columns.values(), strict=True)):
                sheet.append([None if cell == "" else _cell(cell) for cell in row])
            book.save(path)
        else:
            pa, _ = arrow()
            from pyarrow import parquet

            table = pa.table({name: pa.array(_plain(cells)) for name, cells in self.columns.items()})
            parquet.write_table(table, path)

    @property
    def rows(self) -> list[Row]:
        """The records, one by one."""
        names = list(self.columns)
        return [dict(zip(names, cells, strict=True)) for cells in zip(*self.columns.values(), strict=True)]

    def of(self, rows: Sequence[Row]) -> Table:
        """The same file with other records."""
        return replace(self, columns={name: [row[name] for row in rows] for name in self.columns})


def family(
    table: Table, agreed: Description | None, random: Random, count: int, *, in_place: bool = False
) -> list[Table]:
    """`count` files, of which any two are neighbours; the first is `table`.

    `agreed` is None for a bare npz. `in_place` is for records that are dealt: a record stays where it was.
    """
    rows = table.rows
    name = None if agreed is None else agreed.unit
    chosen = random.randrange(len(rows))
    mine = [chosen]
    if name is not None:
        whose = [_unit(row[name]) for row in rows]
        mine = [place for place, unit in enumerate(whose) if unit == whose[chosen]]
    others = [row for place, row in enumerate(rows) if place not in set(mine)]
    owner = rows[chosen].get("client") if agreed is None else None
    found = [table]
    while len(found) < count:
        unit = _stranger(rows, mine, others, agreed, random, texts=table.suffix != ".npz")
        if owner is not None:
            unit = [{**row, "client": owner} for row in unit]
        if in_place:
            found.append(table.of([*rows[:chosen], unit[0], *rows[chosen + 1 :]]))
        else:
            found.append(table.of(_placed(unit, others, min(mine), random)))
    return found


def _stranger(
    rows: list[Row],
    mine: list[int],
    others: list[Row],
    agreed: Description | None,
    random: Random,
    *,
    texts: bool,
) -> list[Row]:
    """The records of a unit that stands in for another; `texts` may stand where numbers should."""
    unit = None if agreed is None else agreed.unit
    records = random.choice((len(mine), *range(1, MOST_RECORDS + 1))) if unit else 1
    templates = [rows[place] for place in mine]
    made = []
    for number in range(records):
        row = (
            dict(random.choice(others))
            if others and random.random() < 0.2
            else dict(templates[number % len(templates)])
        )
        cells = _cells(agreed, row, texts=texts)
        changed = [name for name in cells if random.random() < random.choice((0.1, 0.5, 1.0))]
        for name in changed:
            row[name] = cells[name](random, rows)
        made.append(row)
    if unit is None:
        return made
    taken = {_unit(row[unit]) for row in others}
    own = templates[0][unit]
    names = [own, *(_new_name(own, text) for text in ("0", "~", "zz", "00"))]
    name = random.choice([name for name in names if _unit(name) not in taken])
    return [{**row, unit: name} for row in made]


def _cells(agreed: Description | None, row: Row, *, texts: bool) -> dict[str, Cell]:
    """Returns how the cells of a record may be made anew, column by column."""
    cells: dict[str, Cell] = {}
    odd = TEXTS if texts else ()
    if "x" in row and (agreed is None or agreed.array is not None):
        cells["x"] = lambda random, rows: array_like(row["x"], random, rows)
    if agreed is None:
        cells["y"] = lambda random, rows: random.choice(rows)["y"]
        return cells
    for name, column in agreed.columns.items():
        if isinstance(column, Number):
            bounds = (column.low, column.high, column.center)
            cells[name] = _one_of([*bounds, *NUMBERS, None, *odd])
        elif isinstance(column, Category):
            values, aliases = column.agreed.values, [alias for alias, _ in column.agreed.aliases]
            cells[name] = _one_of([*values, *aliases, *map(str.upper, values), None, *TEXTS])
        elif isinstance(column, Date):
            days = (column.since, column.until, column.since - timedelta(9), column.until + timedelta(9))
            cells[name] = _one_of([*map(str, days), "2024-02-30", None, *TEXTS])
        elif isinstance(column, Text | WholeText):
            cells[name] = _one_of(["a word", "another word", "", None, *TEXTS])
    target = agreed.target
    for name in target.sources:
        if agreed.task == "number":
            cells[name] = _one_of([target.low, target.high, target.center, target.high + 1, None, *odd])
        elif agreed.task == "labels":
            cells[name] = _one_of([0, 1, 2, None, *odd])
        else:
            cells[name] = _one_of([*2 * target.names.values, None, *TEXTS])
    return cells


def _one_of(values: Sequence[Any]) -> Cell:
    return lambda random, rows: random.choice(values)


def array_like(x: Any, random: Random, rows: list[Row]) -> Any:
    """An array of the same shape and type: constant, of another record, far away, or with a hole."""
    x = np.asarray(x)
    other = np.asarray(random.choice(rows)["x"])
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        extreme, holed = random.choice((0, 1, limits.min, limits.max)), other.copy()
        holed.flat[random.randrange(holed.size)] = extreme
        return random.choice((other, other.max() - other, holed, np.full_like(x, extreme)))
    with np.errstate(over="ignore"):
        far = [other * scale for scale in (-1.0, 1e3, -1e30)]
        holed = other.copy()
        holed.flat[random.randrange(holed.size)] = random.choice(NUMBERS)
        return random.choice([other, *far, holed, np.full_like(x, random.choice(NUMBERS))]).astype(x.dtype)


def _placed(unit: list[Row], others: list[Row], first: int, random: Random) -> list[Row]:
    """All records of the new file: the unit in its place, at an end, anywhere, or all in another order."""
    where = random.choice(("here", "first", "last", "spread", "sorted", "reversed"))
    if where == "sorted":
        by = random.choice(list(unit[0]))
        return sorted([*others, *unit], key=lambda row: _key(row[by]), reverse=random.random() < 0.5)
    if where == "reversed":
        return [*others, *unit][::-1]
    if where == "spread":
        rows = list(others)
        for row in unit:
            rows.insert(random.randint(0, len(rows)), row)
        return rows
    place = {"here": first, "first": 0, "last": len(others)}[where]
    return [*others[:place], *unit, *others[place:]]


def _key(cell: Any) -> str:
    return repr(cell.tolist() if isinstance(cell, np.ndarray) else cell)


def _unit(cell: Any) -> str:
    """The unit that a cell names, as the encoding takes it."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return canonical(str(cell), whole=True)


def _new_name(own: Any, text: str) -> Any:
    """A name that sorts elsewhere; a number stays one."""
    if isinstance(own, str):
        return text + own if text < own else own + text
    return type(own)(-1 - own if text == "~" else own + 10 ** (6 + len(text)) + ord(text[0]))


def _plain(cells: list[Any]) -> list[Any]:
    """Cells of one type: where a text stands among numbers, all are texts, as programs store them."""
    if any(isinstance(cell, str) for cell in cells):
        return [cell if isinstance(cell, str | None) else str(cell) for cell in cells]
    if any(isinstance(cell, float) for cell in cells):
        return [None if cell is None else float(cell) for cell in cells]
    return cells


def _cell(value: Any) -> Any:
    """A cell as Excel stores it: no number without end, no text that it would compute."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _array(cells: list[Any]) -> Any:
    plain = _plain(cells)
    if any(isinstance(cell, str) for cell in plain):
        return np.array(["" if cell is None else cell for cell in plain])
    if any(cell is None for cell in plain):
        return np.array([math.nan if cell is None else float(cell) for cell in plain])
    return np.stack(plain) if isinstance(plain[0], np.ndarray) else np.array(plain)
