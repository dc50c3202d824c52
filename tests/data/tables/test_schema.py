"""`records.toml`: what it says, what it refuses in one line, and that it alone makes the public facts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import Description, Facts
from sottovoce.data.section import DescriptionError, Names
from sottovoce.data.tables import schema
from sottovoce.data.tables.kinds import Category, Number
from sottovoce.data.tables.schema import Array, Target
from tests.data.hospitals import AGREED

TARGET = '[target]\ncolumn = "y"\nvalues = ["a", "b"]\n'
AGE = '[columns.age]\nkind = "number"\nlow = 0\nhigh = 120\n'
TABLE = 'task = "classes"\n' + TARGET + AGE


def test_an_agreement_says_what_a_record_is() -> None:
    agreed = Description.parse(AGREED)
    assert agreed.inputs == ("age", "age missing", "pressure", "sex=f", "sex=m", "sex=other")
    facts = agreed.facts()
    assert (facts.shape, facts.classes, facts.class_names) == ((6,), 2, ("benign", "malignant"))
    assert facts.std == (math.sqrt(3),), "three columns: a record has norm about one"


def test_the_agreements_of_the_documentation_are_agreements() -> None:
    page = (Path(__file__).parents[3] / "docs/data.md").read_text(encoding="utf-8")
    table, array = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert Description.parse(table).unit == "patient_id"
    assert Description.parse(table[: table.index("[columns")] + array).facts().shape == (3, 32, 32)


def test_without_mean_and_std_bounds_make_them() -> None:
    age = Number(0, 120)
    assert (age.center, age.spread) == (60, 120 / math.sqrt(12))
    assert Number(0, 120, mean=40, std=10).spread == 10


@pytest.mark.parametrize(
    ("missing", "filler"), [("middle", 60.0), ("low", 0.0), ("high", 120.0), ("37", 37.0), (None, 60.0)]
)
def test_missing_names_what_stands_for_nothing(missing: str | None, filler: float) -> None:
    word = missing if missing is None or missing.isdigit() else f'"{missing}"'
    agreed = Description.parse(TABLE + (f"missing = {word}\n" if word else ""))
    column = agreed.columns["age"]
    assert isinstance(column, Number)
    assert column.filler == filler
    assert ("age missing" in agreed.inputs) == (missing is not None)


def test_other_may_be_a_value_by_its_own_name() -> None:
    assert Category(Names(("f", "other", "m"))).encoded("sex") == ["sex=f", "sex=other", "sex=m"]


def test_labels_and_numbers_are_tasks_too() -> None:
    labels = Description.parse('task = "labels"\n[target]\ncolumns = ["flu", "cold"]\n' + AGE)
    assert (labels.facts().task, labels.facts().classes, labels.target.sources) == (
        "labels",
        2,
        ("flu", "cold"),
    )
    number = Description.parse('task = "number"\n[target]\ncolumn = "days"\nlow = 0\nhigh = 30\n' + AGE)
    assert (number.facts().classes, number.facts().class_names) == (1, ())
    assert (number.target.center, number.target.reach) == (15, 15)


def test_arrays_are_images_series_or_tokens() -> None:
    head = 'task = "classes"\n' + TARGET
    image = Description.parse(head + "[array]\nshape = [3, 8, 8]\nmean = [0.1, 0.2, 0.3]\nstd = 0.5\n")
    assert image.facts().mean == (0.1, 0.2, 0.3)
    series = Description.parse(head + "[array]\nshape = [24, 2]\nmean = [1, 2]\n")
    assert (series.array, series.facts().mean) == (Array((24, 2), mean=(1.0, 2.0)), (0.0,))
    tokens = Description.parse(head + '[array]\nshape = [64]\nkind = "tokens"\nvocabulary = 30000\n')
    assert tokens.array == Array((64,), vocabulary=30000)
    for agreed in (image, series, tokens):
        assert Description.parse(agreed.to_toml()) == agreed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task = ", "is not TOML"),
        ("", "task is missing: give classes or labels or number"),
        (TABLE.replace('"classes"', '"clases"'), "task is clases: did you mean 'classes'"),
        (TABLE.replace('"classes"', "1"), "task is 1"),
        ("tusk = 1\n" + TABLE, "tusk is unknown: did you mean 'task'"),
        (TABLE + "hihg = 3\n", r"\[columns.age\] hihg is unknown: did you mean 'high'"),
        (TABLE.replace("low = 0\n", ""), r"\[columns.age\] low is missing"),
        (TABLE.replace("low = 0", 'low = "0"'), r"\[columns.age\] low is 0: give a number"),
        (TABLE.replace("low = 0", "low = true"), r"\[columns.age\] low is True"),
        (TABLE.replace("low = 0", "low = nan"), r"\[columns.age\] low is nan"),
        (TABLE.replace("high = 120", "high = inf"), r"\[columns.age\] high is inf"),
        (TABLE.replace("high = 120", "high = 1e308"), r"high is 1e\+308: give a number from"),
        (TABLE.replace("high = 120", "high = 0"), "low must be below high"),
        (TABLE + "std = 0\n", r"\[columns.age\] std is 0.0, too small"),
        (TABLE + "std = 1e-9\n", "too small for these bounds"),
        (TABLE + "mean = 121\n", r"mean is 121: give a number from 0 to 120"),
        (TABLE + 'missing = "mean"\n', r"missing is mean"),
        (TABLE + "missing = -1\n", "missing is -1: give a number from 0 to 120"),
        (
            TABLE.replace('"number"', '"words"'),
            "kind is words: choose from category, date, image, number, text, vector",
        ),
        (TABLE.replace('["a", "b"]', '["a"]'), "fewer than two classes"),
        (TABLE.replace('["a", "b"]', '["a", "a"]'), "names 'a' twice"),
        (TABLE.replace('["a", "b"]', '["a", 1.5]'), "values has 1.5: give texts"),
        (TABLE.replace('["a", "b"]', '["a", " b"]'), "remove spaces"),
        (
            TABLE.replace('["a", "b"]', '["a", "\\u202e"]'),
            r"'\\u202e': remove spaces around it and invisible",
        ),
        (TABLE.replace('["a", "b"]', '"ab"'), "not a list"),
        (TABLE.replace('column = "y"', 'column = "age"'), r"\[columns.age\] is the target too"),
        ('unit = "age"\n' + TABLE, r"\[columns.age\] is the unit too"),
        ('unit = "y"\n' + TABLE, "unit is the target too"),
        ("unusable = 2\n" + TABLE, "unusable is 2: give a number from 0 to 1"),
        ('task = "classes"\n' + TARGET, r"with \[columns.NAME\] or arrays with \[array\]"),
        (TABLE + "[array]\nshape = [3]\n", r"with \[columns.NAME\] or arrays with \[array\]"),
        ('task = "classes"\n' + TARGET + "[columns]\n", "describes 0 columns"),
        ('task = "classes"\n' + TARGET + "[columns]\nage = 3\n", r"\[columns\] age is 3: give a table"),
        ('task = "classes"\n' + TARGET + "[array]\nshape = [0]\n", "give 1 to 6 sizes"),
        ('task = "classes"\n' + TARGET + "[array]\nshape = [9999, 9999, 9999]\n", "give 1 to 6 sizes"),
        ('task = "classes"\n' + TARGET + "[array]\nshape = [3, 4, 4]\nmean = [1, 2]\n", "one for each of 3"),
        ('task = "classes"\n' + TARGET + "[array]\nshape = [3]\nstd = 0\n", "give positive"),
        ('task = "classes"\n' + TARGET + '[array]\nshape = [3]\nkind = "tokens"\n', "vocabulary is missing"),
        (
            TABLE.replace("age", "a") + '["columns"."a missing"]\nkind = "number"\nlow = 0\nhigh = 1\n'
            "[columns.a.b]\n",
            "b is unknown|give a",
        ),
    ],
)
def test_what_is_no_agreement_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(DescriptionError, match=says) as caught:
        Description.parse(text)
    assert "\n" not in str(caught.value)


def test_two_inputs_never_share_a_name() -> None:
    twin = '[columns."age missing"]\nkind = "number"\nlow = 0\nhigh = 1\n'
    with pytest.raises(DescriptionError, match="two inputs the name 'age missing'"):
        Description.parse(TABLE + 'missing = "low"\n' + twin)


def test_absent_and_strange_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "records.toml"
    with pytest.raises(DescriptionError, match=r"no .*records.toml: write one"):
        Description.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DescriptionError, match="save it as UTF-8"):
        Description.load(path)
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(DescriptionError, match="larger than 1 MiB"):
        Description.load(path)
    path.write_text("\ufeff" + AGREED, encoding="utf-8")
    assert Description.load(path) == Description.parse(AGREED)


names = st.text(st.sampled_from("aé北'\"[].=#\\-_ß𝒳"), min_size=1, max_size=8)
columns = st.dictionaries(names, st.tuples(st.floats(-1e6, 0), st.floats(1, 1e6)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(columns, st.lists(names, min_size=2, max_size=4, unique=True))
def test_what_is_written_reads_back(columns: dict[str, tuple[float, float]], values: list[str]) -> None:
    numbers = {name: Number(low, high, missing="low") for name, (low, high) in columns.items()}
    agreed = Description("classes", Target("the target", Names(tuple(values))), numbers)
    assert Description.parse(agreed.to_toml()) == agreed


def test_facts_travel_with_the_agreement_and_without() -> None:
    facts = Description.parse(AGREED).facts()
    for again in (Facts.parse(facts.fields()), Facts.from_metadata(facts.metadata())):
        assert again == facts
        assert schema.of(again) == Description.parse(AGREED)
    plain = Facts((1, 28, 28), 10, (0.1,), (0.3,))
    assert set(plain.fields()) == {"shape", "classes", "mean", "std"}, "files of older runs stay as they were"
    assert Facts.parse(plain.fields()) == plain
    assert schema.of(plain) is None


HUGE = "0x" + "F" * 5000


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("task", TABLE.replace('"classes"', HUGE)),
        ("unusable", f"unusable = {HUGE}\n{TABLE}"),
        ("unit", f"unit = {HUGE}\n{TABLE}"),
        ("values", TABLE.replace('"b"', HUGE)),
        ("aliases", TABLE.replace(TARGET, f"{TARGET}aliases = {{ c = {HUGE} }}\n")),
    ],
    ids=["task", "unusable", "unit", "values", "aliases"],
)
def test_a_number_that_cannot_be_written_out_is_refused_in_one_line(key: str, text: str) -> None:
    """TOML knows hexadecimal numbers of any length, Python writes out those of 4300 digits."""
    with pytest.raises(DescriptionError, match=rf"{key} (is|has) …") as refused:
        Description.parse(text)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    "lie",
    [
        {"task": "clusters"},
        {"class_names": ["a"]},
        {"class_names": "ab"},
        {"columns": 3},
        {"class_names": [1, 2]},
    ],
)
def test_facts_of_a_stranger_are_checked(lie: dict[str, object]) -> None:
    with pytest.raises(DescriptionError):
        Facts.parse({**Description.parse(AGREED).facts().fields(), **lie})


def test_facts_that_contradict_their_agreement_are_refused() -> None:
    fields = {**Description.parse(AGREED).facts().fields(), "shape": [5]}
    with pytest.raises(DescriptionError, match="contradicts itself"):
        schema.of(Facts.parse(fields))
