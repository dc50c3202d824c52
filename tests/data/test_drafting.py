"""Drafts of records.toml: what a header says, what a dictionary says, and what was looked up, marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.data import DataError, Description, check
from sottovoce.data.drafting import (
    Draft,
    from_dictionary,
    from_header,
    known_names,
    looked_up,
    place_of,
    site_of,
)
from sottovoce.data.section import DescriptionError

from .hospitals import written

ROWS = "".join(
    f"p{i},{20 + i},{'fm'[i % 2]},{i % 3},0{1 + i % 9}.01.2024,{i}.5,{('no', 'yes')[i % 2]}\n"
    for i in range(30)
)
SITE = "id,age,sex,stage,seen,dose,ill\n" + ROWS


def test_a_header_is_read_and_no_record(tmp_path: Path) -> None:
    """Two files with one header and other records give the same draft."""
    first = from_header(written(tmp_path, SITE), "ill", "id").text()
    second = from_header(written(tmp_path, SITE.splitlines()[0] + "\nx,y,z\n"), "ill", "id").text()
    assert first == second
    assert 'column = "ill"' in first
    assert 'unit = "id"' in first
    assert '[columns."age"]' in first
    assert '[columns."ill"]' not in first


def test_every_blank_is_asked_for_by_table_and_key(tmp_path: Path) -> None:
    """Filling in what is asked for, one by one, ends in an agreement that reads the file."""
    text = from_header(written(tmp_path, SITE), "ill", "id").text()
    fills = {
        'task = "?"': 'task = "classes"',
        'values = ["?"]': 'values = ["no", "yes"]',
    }
    for blank, fill in fills.items():
        with pytest.raises(DescriptionError, match="is still to be filled in"):
            Description.parse(text)
        text = text.replace(blank, fill)
    kinds = {"age": "low = 0\nhigh = 120", "dose": "low = 0\nhigh = 100"}
    for name in ("age", "sex", "stage", "seen", "dose"):
        with pytest.raises(DescriptionError, match=rf"\[columns.{name}\] kind is still to be filled in"):
            Description.parse(text)
        head = f'[columns."{name}"]\n'
        place = text.index(head) + len(head)
        kind = (
            f'kind = "number"\n{kinds[name]}\n'
            if name in kinds
            else 'kind = "category"\nvalues = ["f", "m"]\n'
        )
        text = text[:place] + kind + text[text.index("\n", place) + 1 :]
    (tmp_path / "records.toml").write_text(text, encoding="utf-8")
    assert check(tmp_path).problems == []


def test_what_was_looked_up_is_marked_line_by_line(tmp_path: Path) -> None:
    draft = looked_up(written(tmp_path, SITE), "ill", "id")
    text = draft.text()
    marked = [line for line in text.splitlines() if "looked up in north.csv: no ε covers it" in line]
    values = [line.partition(" =")[0] for line in marked]
    assert values == ["values", "kind", "low", "high", "kind", "values", "kind", "values", "kind", "since",
                      "until", "format", "kind", "low", "high"]  # fmt: skip
    agreed = Description.parse(text)
    assert agreed.target.names.values == ("no", "yes")
    assert agreed.looked_up[0] == "values of ill"
    assert agreed.looked_up[1] == "kind and low and high of age"
    assert [column.fields()["kind"] for column in agreed.columns.values()] == [
        "number", "category", "category", "date", "number",
    ]  # fmt: skip
    assert Description.parse(agreed.to_toml()).looked_up == agreed.looked_up  # it travels with agreements
    (tmp_path / "records.toml").write_text(text, encoding="utf-8")
    checked = check(tmp_path)
    assert checked.problems == []
    [line] = [line for line in checked.suspicions if "no ε covers" in line]
    assert "values of ill; kind and low and high of age; " in line
    assert "; 2 more: looked up in records" in line


def test_what_looks_like_names_or_notes_is_left_out_and_said(tmp_path: Path) -> None:
    text = looked_up(written(tmp_path, SITE), "ill", None).text()
    assert '# Left out: "id"' in text
    assert 'columns."id"' not in text


def test_decimal_commas_and_numbers_to_predict_are_seen(tmp_path: Path) -> None:
    rows = "".join(f"{i},5;{2 * i}\n" for i in range(20))
    agreed = Description.parse(looked_up(written(tmp_path, "dose;price\n" + rows), "price", None).text())
    assert (agreed.decimal, agreed.task) == (",", "number")
    assert (agreed.target.low, agreed.target.high) == (0, 38)
    assert agreed.columns["dose"].fields()["high"] == 20


def test_a_dictionary_says_it_all(tmp_path: Path) -> None:
    lines = [
        "Variable;Kind;Min;Max;Values;Missing;Role",
        "age;number;0;120;;middle;",
        "sex;;;;f|m;;",
        "dose;;0;1,5;;0,5;",
        "note;?;;;;;skip",
        "id;;;;;;unit",
        "ill;;;;no|yes;;target",
    ]
    draft = from_dictionary(written(tmp_path, "\n".join(lines), "codebook.csv"), None, None)
    agreed = Description.parse(draft.text())
    assert (draft.blanks, agreed.unit, agreed.task, agreed.target.names.values) == (
        0,
        "id",
        "classes",
        ("no", "yes"),
    )
    assert list(agreed.columns) == ["age", "sex", "dose"]
    assert agreed.columns["dose"].fields()["missing"] == 0.5
    assert agreed.looked_up == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind,low\nnumber,0\n", "has no column 'column'"),
        ("column,kind\nage,float\n", "'age' is of kind float: choose from number"),
        ("column,kind,low\nage,number,zero\n", "a bound of 'age' is zero: give a number"),
        ("column,kind,since\nseen,date,1.1.2020\n", "give a day as 2020-01-31"),
    ],
)
def test_what_is_no_dictionary_is_refused_in_a_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_dictionary(written(tmp_path, text, "codebook.csv"), None, None)


def test_what_cannot_be_drafted_is_refused_in_a_line(tmp_path: Path) -> None:
    site = written(tmp_path, SITE)
    with pytest.raises(DataError, match="has no column 'illness': choose from id, age"):
        known_names(site, "illness")
    with pytest.raises(DataError, match="has no line of names"):
        known_names(written(tmp_path, "", "empty.csv"))
    (tmp_path / "records.toml").write_text("")
    with pytest.raises(DataError, match="is there already"):
        place_of(tmp_path)


def test_the_first_site_of_a_folder_is_taken(tmp_path: Path) -> None:
    assert site_of(tmp_path) is None
    for name in (".hidden.csv", "b.csv", "a.tsv", "0.txt"):
        written(tmp_path, SITE, name)
    assert site_of(tmp_path) == tmp_path / "a.tsv"
    assert Draft().blanks == 3
