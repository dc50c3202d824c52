"""Kinds of columns: dates, names with aliases and any case, and what an agreement about them may say."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.data import DataError, Description, check, read_site
from sottovoce.data.section import DescriptionError, Names
from sottovoce.data.tables.kinds import PARTS, Category, Date
from tests.data.hospitals import folder, written

HEAD = 'task = "classes"\nunusable = 0.5\n[target]\ncolumn = "y"\nvalues = ["a", "b"]\n'
DATE = HEAD + '[columns.seen]\nkind = "date"\nsince = 2020-01-01\nuntil = 2020-12-31\n'
SEX = HEAD + '[columns.sex]\nkind = "category"\nvalues = ["f", "m"]\n'
NUMBER = HEAD + '[columns.dose]\nkind = "number"\nlow = 0\nhigh = 10\nmissing = "low"\n'


def column(text: str, name: str) -> object:
    return Description.parse(text).columns[name]


def test_a_date_is_days_month_and_weekday(tmp_path: Path) -> None:
    agreed = Description.parse(DATE)
    assert len(agreed.inputs) == 1 + 12 + 7
    assert agreed.inputs[:2] == ("seen days", "seen month=1")
    rows = "2020-01-01,a\n2020-12-31 23:59:00,b\n2021-05-01,a\n"
    site = read_site(written(tmp_path, "seen,y\n" + rows), agreed)
    days = site.x[:, 0]
    assert np.allclose(days, [-np.sqrt(3), np.sqrt(3), np.sqrt(3)])  # after `until` is clamped
    named = np.array(agreed.inputs)
    on = [set(named[1:][row[1:] == 1]) for row in site.x]
    assert on == [
        {"seen month=1", "seen weekday=wednesday"},
        {"seen month=12", "seen weekday=thursday"},
        {"seen month=5", "seen weekday=saturday"},
    ]
    assert site.findings.columns["seen"].outside == 1


def test_a_missing_day_and_one_that_is_none_are_counted_apart(tmp_path: Path) -> None:
    agreed = Description.parse(DATE + 'missing = "low"\n')
    site = read_site(written(tmp_path, "seen,y\n,a\n2020-02-30,b\n2020-06-30,a\n"), agreed)
    found = site.findings.columns["seen"]
    assert (found.missing, found.unreadable) == (1, 1)
    assert site.x[:, -1].tolist() == [1, 1, 0]
    assert np.allclose(site.x[:2, 0], -np.sqrt(3))
    assert not site.x[:2, 1:-1].any()


@pytest.mark.parametrize(
    ("form", "cell"),
    [
        ("", "2020-06-30T12:00:00Z"),
        ("%d.%m.%Y", "30.06.2020"),
        ("%m/%d/%y", "06/30/20"),
        ("%Y%m%d", "20200630"),
    ],
)
def test_days_are_written_as_agreed_or_as_iso_does(tmp_path: Path, form: str, cell: str) -> None:
    agreed = Description.parse(DATE + (f'format = "{form}"\n' if form else ""))
    for text in (cell, "2020-06-30"):
        site = read_site(written(tmp_path, f"seen,y\n{text},a\n2020-01-01,b\n"), agreed)
        assert site.x[0, 1 + 5] == 1
        assert site.findings.columns["seen"].unreadable == 0


def test_days_of_parquet_and_npz_are_those_of_csv(tmp_path: Path) -> None:
    agreed = Description.parse(DATE)
    days = [date(2020, 6, 30), None]
    whole = read_site(written(tmp_path, "seen,y\n2020-06-30,a\n,b\n"), agreed).x
    for kind in (pa.date32(), pa.timestamp("ns")):
        pq.write_table(
            pa.table({"seen": pa.array(days, pa.date32()).cast(kind), "y": ["a", "b"]}),
            tmp_path / "x.parquet",
        )
        assert np.array_equal(read_site(tmp_path / "x.parquet", agreed).x, whole)
    stored = np.array(["2020-06-30", "NaT"], "datetime64[ns]")
    np.savez(tmp_path / "x.npz", seen=stored, y=np.array(["a", "b"]))
    assert np.array_equal(read_site(tmp_path / "x.npz", agreed).x, whole)


def test_parts_of_a_date_are_chosen_and_weigh_as_columns_do() -> None:
    agreed = Description.parse(DATE + 'parts = ["weekday"]\n')
    assert agreed.inputs == tuple(f"seen {part}" for part in PARTS["weekday"])
    assert Description.parse(DATE).scale == pytest.approx(np.sqrt(3))


def test_an_agreement_with_every_kind_is_read_again_as_it_was() -> None:
    text = DATE.replace('values = ["a", "b"]', 'values = ["a", "b"]\naliases = { A1 = "a" }\ncase = "ignore"')
    text = 'decimal = ","\n' + text + 'format = "%d.%m.%Y"\nmissing = "high"\nparts = ["month", "days"]\n'
    text += (
        '[columns.sex]\nkind = "category"\nvalues = ["f", "m"]\naliases = { "w e" = "f" }\ncase = "ignore"\n'
    )
    text += 'looked_up = ["values"]\n'
    agreed = Description.parse(text)
    assert Description.parse(agreed.to_toml()) == agreed
    assert agreed.decimal == ","
    assert isinstance(agreed.columns["seen"], Date)
    assert agreed.looked_up == ["values of sex"]


def test_aliases_and_any_case_stand_for_a_value(tmp_path: Path) -> None:
    text = SEX + 'case = "ignore"\naliases = { female = "f", "männlich" = "m", d = "other" }\n'
    agreed = Description.parse(text)
    cells = ["f", "F", "Female", " MA\u0308NNLICH", "m", "d", "x"]
    site = read_site(written(tmp_path, "sex,y\n" + "".join(f"{cell},a\n" for cell in cells)), agreed)
    assert site.x.argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert site.findings.columns["sex"].unknown == 1
    exact = read_site(tmp_path / "north.csv", Description.parse(SEX))
    assert exact.findings.columns["sex"].unknown == 5


def test_targets_have_aliases_too(tmp_path: Path) -> None:
    text = SEX.replace('["a", "b"]', '["a", "b"]\naliases = { yes = "b" }\ncase = "ignore"')
    site = read_site(written(tmp_path, "sex,y\nf,A\nm,YES\n"), Description.parse(text))
    assert site.y.tolist() == [0, 1]


def test_whole_numbers_of_a_category_are_read_in_any_form(tmp_path: Path) -> None:
    agreed = Description.parse(SEX.replace('["f", "m"]', "[0, 1]"))
    site = read_site(written(tmp_path, "sex,y\n1.0,a\n0,b\n"), agreed)
    assert site.x.argmax(axis=1).tolist() == [1, 0]


def test_decimal_commas_are_read_where_they_are_agreed_on(tmp_path: Path) -> None:
    path = written(tmp_path, "dose;y\n2,5;a\n5.0;b\n10;a\n1.234,5;b\n")
    with_point = read_site(path, Description.parse(NUMBER))
    assert with_point.findings.columns["dose"].unreadable == 2
    assert with_point.findings.columns["dose"].commas == 1
    site = read_site(path, Description.parse('decimal = ","\n' + NUMBER))
    assert site.findings.columns["dose"].unreadable == 1  # thousands are not parted
    scaled = np.sqrt(12) * (np.array([2.5, 5, 10, 0]) - 5) / 10
    assert np.allclose(site.x[:, 0], scaled)
    assert site.x[:, 1].tolist() == [0, 0, 0, 1]


def test_a_site_of_decimal_commas_is_told_what_to_write(tmp_path: Path) -> None:
    (problem,) = check(folder(tmp_path, NUMBER, berlin="dose;y\n2,5;a\n7,5;b\n")).problems
    assert "berlin column 'dose' has decimal commas: write decimal = \",\"" in problem
    fixed = check(folder(tmp_path, 'decimal = ","\n' + NUMBER, berlin="dose;y\n2,5;a\n7,5;b\n"))
    assert (fixed.problems, fixed.suspicions) == ([], [])


def test_a_category_that_a_tenth_of_a_site_does_not_know_is_a_warning(tmp_path: Path) -> None:
    rows = "f,a\nm,b\n" * 9
    checked = check(
        folder(tmp_path, SEX, few="sex,y\n" + rows + "x,a\nf,b\n", many="sex,y\n" + "x,a\nx,b\n" * 9)
    )
    told = {site["client"]: site for site in checked.fields()["sites"]}
    assert [told[name]["verdict"] for name in ("few", "many")] == ["ok", "warning"]
    assert checked.problems == []
    (said,) = [line for line in checked.suspicions if line.startswith("many: column 'sex' has")]
    assert "(100% of all)" in said
    assert "aliases" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DATE.replace("2020-12-31", "2019-01-01"), "since must be before until"),
        (DATE.replace("2020-12-31", '"2020-12-31"'), "give a day without quotes"),
        (DATE.replace("until = 2020-12-31\n", ""), "until is missing"),
        (DATE + 'format = "%d.%m"\n', "give day, month and year"),
        (DATE + 'format = "%d %B %Y"\n', "give day, month and year"),
        (DATE + 'format = "%d.%m.%Y %Y"\n', "give day, month and year"),
        (DATE + 'parts = ["year"]\n', "choose from days, month, weekday"),
        (DATE + 'missing = "never"\n', "missing is never"),
        (SEX + 'aliases = { w = "x" }\n', "which is none of its values"),
        (SEX + 'aliases = { f = "m" }\n', "which is a value itself"),
        (SEX + 'aliases = ["f"]\n', "give names and what they stand for"),
        (SEX + 'case = "ignore"\naliases = { w = "f", W = "f" }\n', "twice but for its case"),
        (SEX.replace('"m"]', '"F"]') + 'case = "ignore"\n', "twice but for its case"),
        (SEX + 'case = "lower"\n', "case is lower"),
        (SEX + 'looked_up = ["low"]\n', "choose from kind, values"),
        ('decimal = ";"\n' + SEX, 'give "." or ","'),
        (SEX.replace('["f", "m"]', '"?"'), "still to be filled in"),
    ],
)
def test_what_is_no_column_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(DescriptionError, match=says) as caught:
        Description.parse(text)
    assert "\n" not in str(caught.value)
    assert "[columns" in str(caught.value) or "decimal" in str(caught.value)


def test_a_column_without_any_day_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no day as agreed: correct it, or its format"):
        read_site(written(tmp_path, "seen,y\n1.2.2020,a\n"), Description.parse(DATE))


def test_names_are_places_by_value() -> None:
    names = Names(("yes", "no"), (("ja", "yes"),))
    assert [names.place(text) for text in ("yes", "ja", "JA", "")] == [0, 0, -1, -1]
    assert Category(Names(("other", "x"))).names.values == ("other", "x")
