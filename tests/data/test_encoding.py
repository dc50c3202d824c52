"""From cells to inputs: by the agreement alone, record by record, and what cannot be used counts as zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import DataError, Description, read_client, read_site
from sottovoce.data.columns import ABSENT, Texts
from sottovoce.data.encoding import Site, read_inputs
from sottovoce.data.tables import read_columns
from sottovoce.errors import SottovoceError

from .hospitals import AGREED, HEADER, ROWS

AGREEMENT = Description.parse(AGREED)
SQRT12 = np.sqrt(12)
TARGETS = {
    "classes": '[target]\ncolumn = "y"\nvalues = ["a", "b"]\n',
    "number": '[target]\ncolumn = "y"\nlow = 0\nhigh = 10\n',
    "labels": '[target]\ncolumns = ["p", "q"]\n',
}


def written(at: Path, content: str | bytes, name: str = "north.csv") -> Path:
    (at / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return at / name


def read(at: Path, rows: str) -> Site:
    return read_site(written(at, HEADER + rows), AGREEMENT)


def agreement(task: str, inputs: str) -> Description:
    return Description.parse(f'task = "{task}"\nunusable = 0.9\n' + TARGETS[task] + inputs)


def test_a_row_becomes_what_the_agreement_says(tmp_path: Path) -> None:
    site = read(tmp_path, ROWS)
    expected = [[-30 / (120 / SQRT12), 0, 0, 1, 0, 0], [30 / (120 / SQRT12), 0, 1, 0, 1, 0]]
    assert np.allclose(site.x, expected)
    assert site.x.dtype == np.float32
    assert site.y.tolist() == [0, 1]


def test_values_are_clamped_and_gaps_are_filled_and_shown(tmp_path: Path) -> None:
    site = read(tmp_path, "1e308,-1e308,f,benign\n,,,benign\nNA,NaN,f,benign\n1e999,oops,F,benign\n")
    edge = 60 / (120 / SQRT12)
    assert np.allclose(site.x[:, :3], [[edge, 0, -3.5], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
    assert site.x[:, 3:].tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    age, pressure, sex = (site.findings.columns[name] for name in ("age", "pressure", "sex"))
    assert (age.outside, age.missing, age.unreadable) == (1, 2, 1)
    assert (pressure.outside, pressure.missing, pressure.unreadable) == (1, 2, 1)
    assert (sex.missing, sex.unknown, sex.examples) == (1, 1, ("F",))


@pytest.mark.parametrize("target", ["", "Benign", "NA", "2"])
def test_a_record_without_a_target_is_a_row_of_nan_and_still_counts(tmp_path: Path, target: str) -> None:
    site = read(tmp_path, ROWS + f"30,120,f,{target}\n")
    assert len(site.y) == 3
    assert np.isnan(site.x[2]).all()
    assert np.isfinite(site.x[:2]).all()
    assert site.findings.unusable == 1
    assert site.findings.targets == {"benign": 1, "malignant": 1}


def test_too_many_unusable_records_refuse_the_client_by_name_and_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"north has 2 of 3 records that cannot be used.*'diagnosis'"):
        read(tmp_path, "30,120,f,benign\n1,1,f,\n1,1,f,?\n")


CELLS = [
    "1",
    "+1",
    "1e308",
    "1e999",
    "-inf",
    "nan",
    "NaN",
    "NA",
    "abc",
    "0x10",
    "1,5",
    "1_000",
    "٣",
    "½",
    "1.",
    ".5",
    "f",
    "m",
    "F",
    "é",
    'a"b',
    "benign",
    "malignant",
]
ODD = st.sampled_from([*CELLS, "", " 2 ", "\u00a01", "a\nb", "e\u0301", "malignant "])
ROW = st.tuples(ODD, ODD, ODD, ODD)


def csv_text(rows: list[tuple[str, ...]]) -> str:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    return HEADER + "".join(",".join(map(cell, row)) + "\n" for row in rows)


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(ROW, min_size=2, max_size=6), other=ROW, i=st.integers(0, 1))
def test_replacing_one_record_changes_the_reading_of_that_record_only(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], other: tuple[str, ...], i: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    agreed = Description.parse(AGREED.replace("unusable = 0.5", "unusable = 1"))
    sane = ("1", "1", "f", "benign")  # so that no column is without any number
    before, after = [sane, *rows], [sane, *rows]
    after[1 + i] = other
    one = read_site(written(folder, csv_text(before)), agreed)
    two = read_site(written(folder, csv_text(after)), agreed)
    others = [j for j in range(len(before)) if j != 1 + i]
    assert np.array_equal(one.x[others], two.x[others], equal_nan=True)
    assert np.array_equal(one.y[others], two.y[others])
    assert len(one.y) == len(two.y) == len(before)
    unusable = np.isnan(one.x).any(axis=1)
    assert (np.isnan(one.x).all(axis=1) == unusable).all()


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
        (HEADER + '30,120,"f,benign\n', "a quote that is never closed"),
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


def test_whole_numbers_may_name_classes_as_other_programs_write_them(tmp_path: Path) -> None:
    agreed = Description.parse(AGREED.replace('["benign", "malignant"]', "[0, 1]"))
    for zero, one in (("0", "1"), ("0.0", "1.0"), (" 0", '"1"')):
        path = written(tmp_path, f"{HEADER}30,120,f,{zero}\n30,120,f,{one}\n")
        assert read_site(path, agreed).y.tolist() == [0, 1]


def test_a_million_different_categories_are_other(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "".join(f"30,120,s{i},benign\n" for i in range(100_000)))
    site = read_site(path, AGREEMENT)
    assert site.x[:, 5].all()
    assert site.findings.columns["sex"].unknown == 100_000
    assert len(site.findings.columns["sex"].examples) == 3


def test_texts_alike_to_the_eye_are_alike(tmp_path: Path) -> None:
    texts = Texts(np.array([0, 1, -1]), ["cafe\u0301", " caf\u00e9 "])
    assert texts.among(["caf\u00e9"]).tolist() == [0, 0, -1]


def test_how_missing_numbers_are_written_follows_pyarrow(tmp_path: Path) -> None:
    rows = "".join(f'"{text}",1\n' for text in sorted(ABSENT))
    for cell in ("5", "x"):  # with and without a cell that makes every cell be looked at
        path = written(tmp_path, f"age,b\n{cell},1\n{rows}")
        numbers = read_columns(path, ["age"], ["b"]).numbers("age")
        assert np.isnan(numbers.values[1:]).all()
        assert numbers.unreadable == (cell == "x")


def test_numbers_are_targets_from_minus_one_to_one(tmp_path: Path) -> None:
    agreed = agreement("number", '[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n')
    site = read_site(written(tmp_path, "a,y\n1,0\n1,10\n1,5\n1,11\n1,1e308\n1,\n1,word\n"), agreed)
    assert site.y[:3].tolist() == [-1, 1, 0]
    assert site.y.dtype == np.float32
    assert np.isnan(site.x[:, 0]).tolist() == [False] * 3 + [True] * 4


def test_labels_are_zeros_and_ones_however_they_are_written(tmp_path: Path) -> None:
    agreed = agreement("labels", '[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n')
    site = read_site(written(tmp_path, "a,p,q\n1,0,1\n1,0.0,1.0\n1,False,true\n1,2,1\n1,,1\n"), agreed)
    assert site.y[:3].tolist() == [[0, 1]] * 3
    assert np.isnan(site.x[:, 0]).tolist() == [False] * 3 + [True] * 2
    assert site.findings.targets == {"p": 0, "q": 3}


def test_images_stay_bytes_until_one_cannot_be_used(tmp_path: Path) -> None:
    agreed = agreement("classes", "[array]\nshape = [1, 2, 2]\nmean = 0.5\nstd = 0.5\n")
    x = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    np.savez(tmp_path / "north.npz", x=x, y=np.array(["a", "b", "a"]))
    clean = read_site(tmp_path / "north.npz", agreed)
    assert (clean.x.dtype, clean.x.shape) == (np.uint8, (3, 1, 2, 2))
    np.savez(tmp_path / "north.npz", x=x, y=np.array(["a", "b", "?"]))
    facts = agreed.facts()
    records = read_client(tmp_path / "north.npz", facts=facts, needed=3)
    assert records.x[2].isnan().all()
    assert np.allclose(records.x[:2].numpy(), (clean.x[:2] / 255 - 0.5) / 0.5)


def test_series_keep_their_shape_and_each_feature_its_constants(tmp_path: Path) -> None:
    agreed = agreement("classes", "[array]\nshape = [4, 2]\nmean = [1, 2]\nstd = [1, 4]\n")
    x = np.full((3, 4, 2), 6.0)
    x[1, 2, 0] = np.inf
    np.savez(tmp_path / "north.npz", x=x, y=np.array(["a", "b", "a"]))
    site = read_site(tmp_path / "north.npz", agreed)
    assert site.x.shape == (3, 4, 2)
    assert site.x[0, 0].tolist() == [5, 1]
    assert np.isnan(site.x[1]).all()


def test_tokens_stay_whole_numbers_and_strange_ones_are_unusable(tmp_path: Path) -> None:
    agreed = agreement("classes", '[array]\nshape = [3]\nkind = "tokens"\nvocabulary = 100\n')
    np.savez(
        tmp_path / "north.npz", x=np.array([[0, 99, 5], [0, 100, 5], [1, 2, 3]]), y=np.array(["a", "b", "?"])
    )
    site = read_site(tmp_path / "north.npz", agreed)
    assert site.x.dtype == np.int64
    assert site.x.tolist() == [[0, 99, 5], [-1] * 3, [-1] * 3]
    assert read_client(tmp_path / "north.npz", facts=agreed.facts(), needed=1).x.tolist() == site.x.tolist()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (
            {"x": np.zeros((2, 4, 3))},
            r"array 'x' holds records of shape \(4, 3\), records.toml says \(4, 2\)",
        ),
        ({"x": np.array([["a", "b"]] * 2)}, "array 'x' holds records of shape"),
        ({"x": np.full((2, 4, 2), "a")}, "array 'x' is <U1"),
        ({"y": np.array(["a"])}, "column 'y' has shape"),
        ({"y": None}, "no column 'y'"),
        ({"x": np.zeros((0, 4, 2)), "y": np.zeros(0)}, "holds no records"),
    ],
)
def test_arrays_that_are_not_as_agreed_are_named(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    agreed = agreement("classes", "[array]\nshape = [4, 2]\n")
    given = {"x": np.zeros((2, 4, 2)), "y": np.array(["a", "b"])} | arrays
    np.savez(tmp_path / "north.npz", **{name: array for name, array in given.items() if array is not None})
    with pytest.raises(DataError, match=says):
        read_site(tmp_path / "north.npz", agreed)


def test_records_to_predict_need_no_target(tmp_path: Path) -> None:
    path = written(tmp_path, "age,pressure,sex\n30,120,f\n")
    site = read_site(path, AGREEMENT, target=False)
    assert np.isfinite(site.x).all()
    assert np.array_equal(site.x, read(tmp_path, ROWS).x[:1])


def test_a_unit_has_many_records_and_every_record_one(tmp_path: Path) -> None:
    agreed = Description.parse('unit = "id"\n' + AGREED)
    rows = [f"30,120,f,benign,{name}\n" for name in ("p1", "p2", " p1 ", "p3", "p1")]
    site = read_site(written(tmp_path, HEADER.strip() + ",id\n" + "".join(rows)), agreed)
    assert site.unit is not None
    assert site.unit.tolist() == [0, 1, 0, 2, 0]
    assert site.findings.units == 3
    with pytest.raises(DataError, match="column 'id' is empty in 1 records"):
        read_site(written(tmp_path, HEADER.strip() + ",id\n" + "".join(rows) + "30,120,f,benign,\n"), agreed)


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
    parts = list(read_inputs(path, AGREEMENT))
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)
    columns = {
        name: pa.array([line.split(",")[i] for line in rows])
        for i, name in enumerate(("age", "pressure", "sex"))
    }
    pq.write_table(pa.table(columns), tmp_path / "north.parquet")
    parts = list(read_inputs(tmp_path / "north.parquet", AGREEMENT))
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)


def test_parts_of_what_is_not_as_agreed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'sex'"):
        list(read_inputs(written(tmp_path, "age,pressure\n1,2\n"), AGREEMENT))
    with pytest.raises(DataError, match="a line with 4 cells instead of 3"):
        list(read_inputs(written(tmp_path, "age,pressure,sex\n1,2,3,4\n"), AGREEMENT))
