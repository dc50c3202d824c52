"""Excel workbooks: the same records as in a CSV file, and one line where a workbook is none of a site's."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openpyxl import Workbook

from sottovoce.data import DataError, Description, check, load, read_inputs, read_site
from sottovoce.data.tables.readers import read_parts
from sottovoce.errors import SottovoceError

from .hospitals import AGREED, HEADER, folder, written

AGREEMENT = Description.parse(AGREED)
ROWS: list[list[Any]] = [
    [30, 120.5, "f", "benign"],
    [None, 140, "m", "malignant"],
    [1 / 3, "x", "q", "benign"],
]


def workbook(path: Path, *rows: list[Any], header: str = HEADER) -> Path:
    book = Workbook()
    assert book.active is not None
    for row in (header.strip().split(","), *rows):
        book.active.append(row)
    book.save(path)
    return path


def test_a_workbook_holds_what_its_csv_does(tmp_path: Path) -> None:
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in ROWS]
    plain = read_site(written(tmp_path, HEADER + "\n".join(lines) + "\n"), AGREEMENT)
    path = workbook(tmp_path / "north.xlsx", *ROWS, [None] * 4)  # after the last record there is none
    site = read_site(path, AGREEMENT)
    assert np.array_equal(site.x, plain.x)
    assert np.array_equal(site.y, plain.y)
    assert site.findings == plain.findings
    assert np.array_equal(np.concatenate([x for x, _, _ in read_inputs(path, AGREEMENT.facts())]), plain.x)


def test_a_record_that_loses_all_values_is_still_one(tmp_path: Path) -> None:
    path = workbook(tmp_path / "north.xlsx", ROWS[0], [None] * 4, *ROWS[1:])
    emptied = written(tmp_path, HEADER + "30,120,f,benign\n,,,\n")
    counted = [read_parts(each, ["age"], ["sex"]) for each in (path, emptied)]
    assert [sum(part.records for part in parts) for parts in counted] == [len(ROWS) + 1, 2]


def test_cells_of_excel_are_read_by_the_agreement(tmp_path: Path) -> None:
    text = 'task = "labels"\n[target]\ncolumns = ["ill", "old"]\n[columns.seen]\nkind = "date"\n'
    text += 'since = 2020-01-01\nuntil = 2020-12-31\n[columns.code]\nkind = "category"\nvalues = [1, 2]\n'
    rows = [[datetime(2020, 6, 30, 12), 1.0, True, 0], [datetime(2020, 7, 1), "2", 0, "TRUE"]]
    path = workbook(tmp_path / "north.xlsx", *rows, header="seen,code,ill,old")
    site = read_site(path, Description.parse(text))
    assert site.x[:, 1 + 5].tolist() == [1, 0]
    assert site.x[:, -3:].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert site.y.tolist() == [[1, 0], [0, 1]]


def test_a_folder_has_sites_of_every_format(tmp_path: Path) -> None:
    folder(
        tmp_path,
        **{
            "a.csv": HEADER + "31,120,f,benign\n",
            "b.tsv": "age\tpressure\tsex\tdiagnosis\n32\t1\tf\tbenign\n",
        },
    )
    workbook(tmp_path / "c.xlsx", [33, 120, "f", "benign"])
    data = load(tmp_path)
    assert data.clients == ("a", "b", "c")
    assert check(tmp_path).problems == []
    (tmp_path / "d.tsv").write_text("age;pressure,sex,diagnosis\n1,2,f,benign\n")  # a .tsv is parted by tabs
    with pytest.raises(DataError, match=r"d has one column, 'age;pressure.*\.tsv: tabs"):
        load(tmp_path)


def test_what_is_no_workbook_of_a_site_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"north.xlsx is not an .xlsx file"):
        read_site(written(tmp_path, "age\n", "north.xlsx"), AGREEMENT)
    book = Workbook()
    book.create_sheet("old")
    book.save(tmp_path / "two.xlsx")
    with pytest.raises(DataError, match=r"two.xlsx has 2 sheets \(Sheet, old\): keep the one"):
        read_site(tmp_path / "two.xlsx", AGREEMENT)
    with pytest.raises(DataError, match="empty has no column 'age'"):
        read_site(workbook(tmp_path / "empty.xlsx", header=""), AGREEMENT)
    with pytest.raises(DataError, match="none holds no records"):
        read_site(workbook(tmp_path / "none.xlsx"), AGREEMENT)
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(SottovoceError, match=r"sottovoce\[excel\]"):
        read_site(tmp_path / "none.xlsx", AGREEMENT)


@pytest.mark.parametrize("name", ["north.csv", "north.tsv", "north.xlsx", "north.parquet"])
def test_a_table_without_an_agreement_is_no_array(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"no .*records\.toml: write one"):
        load(tmp_path / name)
