"""From cells to inputs: by the agreement alone, record by record, and what cannot be used counts as zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import DataError, Description, read_client, read_inputs, read_site
from sottovoce.data.tables.encoding import Site
from tests.data.hospitals import AGREED, HEADER, ROWS, written

AGREEMENT = Description.parse(AGREED)
SQRT12 = np.sqrt(12)
TARGETS = {
    "classes": '[target]\ncolumn = "y"\nvalues = ["a", "b"]\n',
    "number": '[target]\ncolumn = "y"\nlow = 0\nhigh = 10\n',
    "labels": '[target]\ncolumns = ["p", "q"]\n',
}


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
ODD = st.sampled_from(
    [
        *CELLS,
        "1.5",
        "1.234,5",
        "2020-02-29",
        "29.2.2020",
        "30.02.2020",
        "20200229",
        "NaT",
        "",
        " 2 ",
        "\u00a01",
        "a\nb",
        "e\u0301",
        "malignant ",
    ]
)
ROW = st.tuples(ODD, ODD, ODD, ODD)


def csv_text(rows: list[tuple[str, ...]]) -> str:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    return HEADER + "".join(",".join(map(cell, row)) + "\n" for row in rows)


LOOSE = AGREED.replace("unusable = 0.5", "unusable = 1")
KINDS_OF_SEX = {
    "category": LOOSE,
    "decimal comma, any case": 'decimal = ","\n' + LOOSE + 'case = "ignore"\naliases = { abc = "f" }\n',
    "date": LOOSE[: LOOSE.index("[columns.sex]")]
    + '[columns.sex]\nkind = "date"\nsince = 2020-01-01\nuntil = 2020-12-31\nformat = "%d.%m.%Y"\n',
}


@pytest.mark.parametrize("text", KINDS_OF_SEX.values(), ids=list(KINDS_OF_SEX))
@settings(max_examples=80, deadline=None)
@given(rows=st.lists(ROW, min_size=2, max_size=6), other=ROW, i=st.integers(0, 1))
def test_replacing_one_record_changes_the_reading_of_that_record_only(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    rows: list[tuple[str, ...]],
    other: tuple[str, ...],
    i: int,
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    agreed = Description.parse(text)
    sane = ("1", "1", "2020-05-05", "benign")  # so that no column is without any number or day
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


def test_pictures_of_other_whole_numbers_than_bytes_are_refused(tmp_path: Path) -> None:
    agreed = agreement("classes", "[array]\nshape = [1, 2, 2]\n")
    np.savez(tmp_path / "north.npz", x=np.full((2, 1, 2, 2), 200), y=np.array(["a", "b"]))
    with pytest.raises(DataError, match="x' is int64: save pictures as uint8, or as numbers from 0 to 1"):
        read_site(tmp_path / "north.npz", agreed)


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
        ({"y": np.array(["a", "b", "a"])}, "array 'x' holds 2 records, another array 3"),
        ({"x": np.float64(3)}, "array 'x' holds 1 records"),
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


@pytest.mark.parametrize("task", ["classes", "labels", "number"])
def test_no_task_needs_a_target_to_predict(tmp_path: Path, task: str) -> None:
    agreed = agreement(task, '[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n')
    path = written(tmp_path, "a\n1\n\nx\n")
    site = read_site(path, agreed, target=False)
    assert np.array_equal(np.concatenate([x for x, _, _ in read_inputs(path, agreed.facts())]), site.x)
    assert (len(site.y), site.findings.targets, site.findings.unusable) == (3, {}, 0)


def test_a_unit_has_many_records_and_every_record_one(tmp_path: Path) -> None:
    agreed = Description.parse('unit = "id"\n' + AGREED)
    rows = [f"30,120,f,benign,{name}\n" for name in ("7", "p2", " 7 ", "p3", "7.0")]
    site = read_site(written(tmp_path, HEADER.strip() + ",id\n" + "".join(rows)), agreed)
    assert site.unit is not None
    assert site.unit.tolist() == [0, 1, 0, 2, 0]
    assert site.findings.units == 3
    with pytest.raises(DataError, match="column 'id' is empty in 1 records"):
        read_site(written(tmp_path, HEADER.strip() + ",id\n" + "".join(rows) + "30,120,f,benign,\n"), agreed)
