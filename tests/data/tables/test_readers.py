"""Files of tables: what is read alike from CSV, Parquet and npz, at once or in parts, and what is refused."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.data import DataError, Description, read_inputs, read_site
from sottovoce.data.section import Names
from sottovoce.data.tables import readers as tables
from sottovoce.data.tables.columns import ABSENT, ArrowColumns, Texts
from sottovoce.data.tables.encoding import Site
from sottovoce.data.tables.readers import read_columns
from sottovoce.errors import SottovoceError
from tests.data.hospitals import AGREED, HEADER, ROWS, written

AGREEMENT = Description.parse(AGREED)


def read(at: Path, rows: str) -> Site:
    return read_site(written(at, HEADER + rows), AGREEMENT)


def test_byte_order_mark_semicolons_and_quotes_are_read(tmp_path: Path) -> None:
    text = '\ufeff"age";pressure;sex;diagnosis;note\r\n30;120;"f";"benign";"a ""word""; and\nmore"\r\n'
    site = read_site(written(tmp_path, text), AGREEMENT)
    assert np.array_equal(site.x, read(tmp_path, ROWS).x[:1])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (HEADER, "north holds no records"),
        (HEADER.replace("age", "agee") + ROWS, "north has no column 'age': did you mean 'agee'"),
        ("a,b,c\n1,2,3\n", r"north has no column 'age': add it.* \(and 3 more"),
        (HEADER + "30,120,f\n", "a line with 3 cells instead of 4"),
        (HEADER + '30,120,"f,benign\n', "a quote within a cell, or one never closed, from line 2 on"),
        (HEADER + ROWS + '30,5" nail,"f,benign\n30,120,f,benign\n', "from line 4 on"),
        (HEADER + '5",120,f,"benign\n30,120,f,"benign"\n', "from line 2 on"),  # one record, of two
        (HEADER + '30,120,"f"x,benign\n', "from line 2 on"),
        (HEADER + ROWS + "30\0,120,f,benign\n", "a NUL byte in line 4"),  # pyarrow loses count of quotes
        ("age,age,pressure,sex,diagnosis\n1,1,1,f,benign\n", "two columns 'age'"),
        ((HEADER + ROWS).encode("utf-16"), "not a CSV file in UTF-8"),
        (HEADER.encode() + b"30,120,\xe9,benign\n", "not UTF-8|in UTF-8"),
        (HEADER + "old,120,f,benign\nyoung,120,f,benign\n", "north column 'age' holds no number"),
        ("age;pressure,sex,diagnosis\n" + ROWS, "no column 'age'|cells"),
    ],
)
def test_files_that_cannot_be_read_get_one_line(tmp_path: Path, content: str | bytes, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read_site(written(tmp_path, content), AGREEMENT)
    assert "\n" not in str(caught.value)


def test_a_record_of_megabytes_is_a_record_like_others(tmp_path: Path) -> None:
    """pyarrow reads blocks of a megabyte: one cell decided whether a file could be read."""
    plain = read(tmp_path, ROWS + "30,120,x,benign\n")
    for long in ("x" * 2_200_000, '"' + "x\n" * 1_500_000 + '"'):
        site = read(tmp_path, ROWS + f"30,120,{long},benign\n")
        assert np.array_equal(site.x, plain.x)
        assert np.array_equal(site.y, plain.y)


def test_how_long_a_record_is_changes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow drops the second half of a line end within a cell, where a block of the file ends between."""
    monkeypatch.setattr(tables, "BLOCK", 30)
    found = set()
    for length in range(1, 60):
        path = written(tmp_path, f'a,b\r\n{"x" * length},1\r\n2,"one\r\ntwo\r\n\n3"\r\n4,5\r\n')
        columns = read_columns(path, [], ["a", "b"])
        found.add((*columns.texts("a").cells[1:], *columns.texts("b").cells))
    assert found == {("2", "4", "1", "one\ntwo\n3", "5")}


def test_one_cell_decides_about_no_decimals_of_another(tmp_path: Path) -> None:
    """How many decimals a column has, its cells decide together, where a program has written it."""
    text = 'task = "classes"\n[target]\ncolumn = "ill"\nvalues = ["0", "1"]\n[columns.grade]\n'
    agreement = Description.parse(
        text + 'kind = "category"\nvalues = ["1", "1.5", "2"]\n[columns.at]\nkind = "category"\n'
        'values = ["2020-01-01", "2020-01-01 08:00:00.5"]\n'
    )
    days, found = [datetime(2020, 1, 1), datetime(2020, 1, 1, 8, 0, 0, 500_000)] * 2, []
    for scale, unit in ((1, "ms"), (2, "ns")):
        grades = pa.array([Decimal(grade) for grade in ("1.0", "1.5", "2.0", "1.5")], pa.decimal128(9, scale))
        at = pa.array(days, pa.timestamp(unit))
        pq.write_table(pa.table({"grade": grades, "at": at, "ill": [0, 1, 0, 1]}), tmp_path / "a.parquet")
        found.append(read_site(tmp_path / "a.parquet", agreement))
    assert found[0].x.tolist() == found[1].x.tolist()
    assert found[0].x[:, :3].sum(axis=1).tolist() == [1, 1, 1, 1]  # all are known
    assert found[0].x[:, 4:6].sum(axis=1).tolist() == [1, 1, 1, 1]
    amounts = [Decimal(cents).scaleb(-2) for cents in range(-7_879_073_380, 7_879_073_380, 123_456_789)]
    read = [
        ArrowColumns(pa.table({"a": pa.array(amounts, pa.decimal128(38, scale))}), ["a"]).numbers("a").values
        for scale in (2, 5, 12, 18, 24)
    ]
    assert {tuple(values.tolist()) for values in read} == {tuple(map(float, amounts))}


def test_letters_that_are_not_utf_8_are_the_matter_of_their_record(tmp_path: Path) -> None:
    found = []
    for other in (b"m", b"\xff\xfe"):
        cells = {"age": [b"30", b"old" if other == b"m" else other], "sex": [b"f", other]}
        bare = {name: pa.array(values, pa.binary()).view(pa.string()) for name, values in cells.items()}
        table = pa.table({**bare, "pressure": [120, 140], "diagnosis": ["benign", "malignant"]})
        pq.write_table(table, tmp_path / "north.parquet")
        found.append(read_site(tmp_path / "north.parquet", AGREEMENT))
    assert found[0].x[0].tolist() == found[1].x[0].tolist()
    assert found[0].y.tolist() == found[1].y.tolist()


@pytest.mark.parametrize("name", ["north.csv", "north.parquet", "north.npz", "north.xlsx"])
def test_random_bytes_are_refused(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).bytes(5000)
    with pytest.raises(DataError):
        read_site(written(tmp_path, noise, name), AGREEMENT)
    with pytest.raises(DataError):
        read_site(tmp_path / f"absent{name}", AGREEMENT)


def test_the_same_table_as_csv_parquet_and_npz_is_the_same(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "age": [30.0, 90.0, None],
        "pressure": [120, 140, 300],
        "sex": ["f", "m", None],
        "diagnosis": ["benign", "malignant", "benign"],
    }
    csv = read(tmp_path, ROWS + ",300,,benign\n")
    pq.write_table(pa.table(columns), tmp_path / "north.parquet")
    arrays = {
        name: np.array([np.nan if v is None else v for v in c])
        for name, c in columns.items()
        if name != "sex"
    }
    np.savez(tmp_path / "north.npz", **arrays, sex=np.array(["f", "m", ""]))
    for name in ("north.parquet", "north.npz"):
        site = read_site(tmp_path / name, AGREEMENT)
        assert np.array_equal(site.x, csv.x), name
        assert np.array_equal(site.y, csv.y), name


def test_parquet_of_other_types_is_read_or_named(tmp_path: Path) -> None:
    table = pa.table(
        {
            "age": pa.array([1, 2], pa.decimal128(5, 2)),
            "pressure": pa.array(["120", "x"]).dictionary_encode(),
            "sex": pa.array([True, False]),
            "diagnosis": pa.array(["benign", "malignant"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "north.parquet")
    site = read_site(tmp_path / "north.parquet", AGREEMENT)
    assert site.findings.columns["pressure"].unreadable == 1
    lists = table.set_column(0, "age", pa.array([[1], [2]]))
    pq.write_table(lists, tmp_path / "north.parquet")
    with pytest.raises(DataError, match="north column 'age' holds list"):
        read_site(tmp_path / "north.parquet", AGREEMENT)


def test_texts_alike_to_the_eye_are_alike(tmp_path: Path) -> None:
    texts = Texts(np.array([0, 1, -1]), ["cafe\u0301", " caf\u00e9 "])
    assert texts.places(Names(("caf\u00e9",)).place).tolist() == [0, 0, -1]


def test_how_missing_numbers_are_written_follows_pyarrow(tmp_path: Path) -> None:
    rows = "".join(f'"{text}",1\n' for text in sorted(ABSENT))
    for cell in ("5", "x"):  # with and without a cell that makes every cell be looked at
        path = written(tmp_path, f"age,b\n{cell},1\n{rows}")
        numbers = read_columns(path, ["age"], ["b"]).numbers("age")
        assert np.isnan(numbers.values[1:]).all()
        assert numbers.unreadable == (cell == "x")


@pytest.mark.parametrize(
    "cell", ["1", "+1", " 1", "1e5", ".5", "5.", "NA", "NAN", "inf", "1e400", "x", "1,5", "0x10", "1_000"]
)
@pytest.mark.parametrize("decimal", [".", ","])
def test_no_cell_changes_how_another_is_read(tmp_path: Path, cell: str, decimal: str) -> None:
    found = set()
    for beside in ("5", "NA", "+5", "x"):
        path = written(tmp_path, f'age,b\n{beside},1\n"{cell}",1\n')
        numbers = read_columns(path, ["age"], ["b"]).numbers("age", decimal)
        found.add((repr(numbers.values[1]), numbers.unreadable - (beside == "x"), numbers.commas))
    assert len(found) == 1


def test_columns_that_are_kept_stand_as_they_are_whatever_they_are_read_as(tmp_path: Path) -> None:
    path = written(tmp_path, "age,pressure,sex\n050,1.50,f\nNA,2,m\n")
    [(_, kept, _)] = read_inputs(path, AGREEMENT.facts(), keep=["age", "pressure"])
    assert kept == {"age": ["050", "NA"], "pressure": ["1.50", "2"]}


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(SottovoceError, match=r"pip install 'sottovoce\[tables\]'"):
        read(tmp_path, ROWS)


@pytest.mark.parametrize("row", [10, 60_000, 99_999])
def test_parts_of_a_file_are_the_whole_file(tmp_path: Path, row: int) -> None:
    rows = [f"{i % 130},{i % 260},{'fmx'[i % 3]},benign\n" for i in range(100_000)]
    rows[row] = "old,?,f,benign\n"
    path = written(tmp_path, HEADER + "".join(rows))
    whole = read_site(path, AGREEMENT).x
    parts = [x for x, _, _ in read_inputs(path, AGREEMENT.facts())]
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)
    columns = {
        name: pa.array([line.split(",")[i] for line in rows])
        for i, name in enumerate(("age", "pressure", "sex"))
    }
    pq.write_table(pa.table(columns), tmp_path / "north.parquet")
    parts = [x for x, _, _ in read_inputs(tmp_path / "north.parquet", AGREEMENT.facts())]
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)


def test_parts_of_what_is_not_as_agreed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'sex'"):
        list(read_inputs(written(tmp_path, "age,pressure\n1,2\n"), AGREEMENT.facts()))
    with pytest.raises(DataError, match="a line with 4 cells instead of 3"):
        list(read_inputs(written(tmp_path, "age,pressure,sex\n1,2,3,4\n"), AGREEMENT.facts()))
