"""What a check finds: every problem of every client, and what merely looks wrong."""

from __future__ import annotations

import csv
import json
import re
import runpy
from pathlib import Path

import pytest

from sottovoce import data
from sottovoce.data import DataError, check

from .hospitals import AGREED, HEADER, ROWS, folder, other_rows

ROOT = Path(__file__).parents[2]
SHIPPED = data.SHIPPED / "heart"
PATIENTS = {"budapest": 294, "cleveland": 303, "longbeach": 200, "switzerland": 123}


def lines(at: Path, rows: str) -> list[str]:
    return check(folder(at, north=HEADER + rows)).suspicions


def test_a_clean_folder_has_nothing_to_say(tmp_path: Path) -> None:
    checked = check(folder(tmp_path, a=HEADER + ROWS, b=HEADER + other_rows(1)))
    assert (checked.problems, checked.suspicions, checked.unread) == ([], [], [])
    assert [site.records for site in checked.sites] == [2, 2]


def test_every_problem_of_every_client_is_named(tmp_path: Path) -> None:
    folder(tmp_path, a="age,sex\n1,f\n", b=HEADER, c=HEADER + ROWS, d=b"", e="age,x\n")
    heard: list[str] = []
    checked = check(tmp_path, lambda client, clients: heard.append(f"{client} of {clients}"))
    assert heard == [f"{name} of 5" for name in "abcde"]
    found = {site.client: site.problems for site in checked.sites}
    assert [len(found[name]) for name in "abcde"] == [2, 1, 0, 1, 3]
    assert "a has no column 'pressure'" in found["a"][0]
    assert "b holds no records" in found["b"][0]
    assert "d.csv is empty" in found["d"][0]
    assert json.loads(json.dumps(checked.fields()))["ok"] is False


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (",120,f,benign\n,140,m,malignant\n", "column 'age' is empty in every record"),
        ("30,120,f,benign\n30,140,m,malignant\n", "column 'age' is the same in every record"),
        ("30,120,m,benign\n31,140,m,malignant\n", "column 'sex' is the same in every record"),
        ("30,,f,benign\n31,140,m,malignant\n", "column 'pressure' lacks 1 values, and records.toml does not"),
        ("30,120,f,benign\nold,140,m,malignant\n", "column 'age' has 1 values that are not numbers"),
        ("30,120,f,benign\n131,140,m,malignant\n", "column 'age' has 1 values outside its bounds"),
        (
            "30,120,f,benign\n31,140,w,malignant\n",
            r"column 'sex' has 1 values .*\(such as 'w'\): they count as other",
        ),
        ("30,120,f,benign\n31,140,m,?\n", "column 'diagnosis' has 1 values .*: those records cannot be used"),
        ("30,120,f,benign\n31,140,m,benign\n", "no usable record is 'malignant'"),
    ],
)
def test_what_looks_wrong_is_said(tmp_path: Path, rows: str, says: str) -> None:
    assert any(re.search(says, line) and line.startswith("north: ") for line in lines(tmp_path, rows))


def test_one_site_is_checked_alone(tmp_path: Path) -> None:
    folder(tmp_path, a=HEADER + ROWS, b=b"")
    assert check(tmp_path / "a.csv").problems == []
    with pytest.raises(DataError, match="does not exist"):
        check(tmp_path / "c.csv")


def test_generated_hospitals_can_be_used_as_they_are(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "tools/make_hospitals.py"))["main"](tmp_path)
    checked = check(tmp_path)
    assert checked.problems == checked.suspicions == []
    assert len(checked.sites) == 13


def test_the_shipped_heart_hospitals_are_the_published_files_cleaned(tmp_path: Path) -> None:
    tool = runpy.run_path(str(ROOT / "tools/make_heart.py"))
    tool["main"](tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in SHIPPED.iterdir()}
    checked = check(SHIPPED)
    assert checked.problems == []
    assert {site.client: site.records for site in checked.sites} == PATIENTS
    assert all(not site.unusable for site in checked.sites)


def test_what_the_published_files_leave_out_is_empty_in_the_shipped_ones() -> None:
    """Missing is −9, ? and a cholesterol of 0; disease is num > 0: counted in the published files by hand."""
    rows = {name: list(csv.DictReader((SHIPPED / f"{name}.csv").open())) for name in PATIENTS}
    empty = {name: sum(not row["cholesterol"] for row in site) for name, site in rows.items()}
    assert empty == {"budapest": 23, "cleveland": 0, "longbeach": 7 + 49, "switzerland": 123}
    ill = {name: sum(row["diagnosis"] == "disease" for row in site) for name, site in rows.items()}
    assert ill == {"budapest": 106, "cleveland": 139, "longbeach": 149, "switzerland": 115}
    assert not {"?", "-9", "-9.0"} & {cell for site in rows.values() for row in site for cell in row.values()}


def test_one_strange_cell_in_a_column_that_was_never_measured_refuses_nobody(tmp_path: Path) -> None:
    """A site without cholesterol is used as it is, and one typing error in that column moves nothing."""
    rows = ["30,,f,benign\n"] * 40
    for strange, refused in ((1, False), (3, True)):
        odd = ["31,high,f,malignant\n"] * strange
        folder(tmp_path, AGREED.replace("unusable = 0.5", ""), north=HEADER + "".join(rows[strange:] + odd))
        problems = check(tmp_path).problems
        assert any("'pressure' holds no number" in line for line in problems) == refused
