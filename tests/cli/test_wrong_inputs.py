"""Wrong inputs that people give, each through the command they gave it to: one line, no traceback, a remedy.

Every line names the file (or the client that it is), the column or key where it is about one, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook
from typer.testing import CliRunner

from sottovoce.cli.application import app
from tests.data.hospitals import AGREED, HEADER, ROWS, folder

from .conftest import Failing

ARRAY = 'task = "classes"\n[target]\ncolumn = "y"\nvalues = [0, 1]\n[array]\nshape = [2, 3]\n'
NUMBER = 'task = "number"\n[target]\ncolumn = "price"\nlow = 0\nhigh = 9\n'
NUMBER += '[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n'
LABELS = 'task = "labels"\n[target]\ncolumns = ["a", "b"]\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 1\n'
DATE = AGREED + '[columns.seen]\nkind = "date"\nsince = 2020-01-01\nuntil = 2029-12-31\n'
UNIT = 'unit = "patient"\n' + AGREED
LINE = "30,120,f,benign\n"
GOOD = HEADER + ROWS


def arrays(**of: object) -> Callable[[Path], object]:
    return lambda at: np.savez(at / "north.npz", **{name: np.asarray(value) for name, value in of.items()})


def parquet(**columns: object) -> Callable[[Path], object]:
    return lambda at: pq.write_table(pa.table(columns), at / "north.parquet")


def two_sheets(at: Path) -> None:
    book = Workbook()
    book.create_sheet("2023")
    book.save(at / "north.xlsx")


def agreed(text: str, **files: str | bytes) -> Callable[[Path], object]:
    return lambda at: folder(at, text, **(files or {"north": GOOD}))


def files(**of: str | bytes) -> Callable[[Path], object]:
    return agreed(AGREED, **of)


def with_array(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda at: ((at / "records.toml").write_text(ARRAY), make(at))


def with_table(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda at: ((at / "records.toml").write_text(AGREED), make(at))


def changed(old: str, new: str) -> Callable[[Path], object]:
    assert old in AGREED
    return agreed(AGREED.replace(old, new))


FOLDERS: list[tuple[str, Callable[[Path], object], list[str]]] = [
    # records.toml
    ("nothing in it", lambda at: None, ["records.toml", "write one", "draft"]),
    ("no site", agreed(AGREED, **{"README.md": ""}), ["no file of a client", ".xlsx"]),
    ("no TOML", agreed("task: classes"), ["records.toml is not TOML", "line 1"]),
    ("Latin-1", lambda at: (at / "records.toml").write_bytes(b'task = "\xe9"'), ["not UTF-8", "save it"]),
    ("a blank", changed('"classes"', '"?"'), ["task is still to be filled in"]),
    (
        "another task",
        changed('"classes"', '"classification"'),
        ["task is classification", "choose from classes"],
    ),
    (
        "no target",
        agreed('task = "classes"\n[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n'),
        ["target is missing"],
    ),
    ("one class", changed('["benign", "malignant"]', '["benign"]'), ["[target] values", "name them all"]),
    ("a class twice", changed('"malignant"', '"benign"'), ["'benign' twice"]),
    ("no columns", agreed(AGREED[: AGREED.index("[columns.age]")]), ["[columns.NAME]", "[array]"]),
    ("bounds exchanged", changed("high = 120", "high = -1"), ["[columns.age] low", "below high"]),
    ("a bound in quotes", changed("high = 120", 'high = "120"'), ["[columns.age] high", "give a number"]),
    ("no bound", changed("high = 120\n", ""), ["[columns.age] high is missing"]),
    (
        "another kind",
        changed('kind = "category"', 'kind = "string"'),
        ["[columns.sex] kind is string", "choose from"],
    ),
    ("a misspelled key", changed('values = ["f"', 'value = ["f"'), ["[columns.sex]", "values"]),
    (
        "target as input",
        agreed(AGREED + '[columns.diagnosis]\nkind = "category"\nvalues = ["x"]\n'),
        ["[columns.diagnosis]", "remove it"],
    ),
    ("both kinds", agreed(AGREED + "[array]\nshape = [3]\n"), ["[columns.NAME]", "[array]"]),
    (
        "a day in quotes",
        agreed(DATE.replace("2020-01-01", '"2020-01-01"')),
        ["[columns.seen] since", "without quotes"],
    ),
    ("a format without year", agreed(DATE + 'format = "%d.%m."\n'), ["[columns.seen] format", "%d.%m.%Y"]),
    (
        "an alias of nothing",
        agreed(AGREED + 'aliases = { w = "x" }\n'),
        ["[columns.sex] aliases", "'w'", "'x'"],
    ),
    ("a semicolon for a decimal", agreed('decimal = ";"\n' + AGREED), ["decimal is ;", '","']),
    # files of sites
    (
        "an Excel of before 2007",
        files(**{"north.csv": GOOD, "west.xls": b"\xd0\xcf"}),
        ["west.xls is not read", ".xlsx"],
    ),
    ("JSON", files(**{"north.csv": GOOD, "west.json": "[]"}), ["west.json is not read", "save it"]),
    ("text", files(**{"north.csv": GOOD, "west.txt": GOOD}), ["west.txt is not read", "move it"]),
    ("gzip", files(**{"north.csv": GOOD, "west.csv.gz": b"\x1f\x8b"}), ["west.csv.gz is not read", "unpack"]),
    ("a copy", files(north=GOOD, west=GOOD), ["west holds the same records as north", "remove one"]),
    ("a parenthesis", files(**{"Köln (2).csv": GOOD}), ["Köln (2).csv", "'('", "rename it"]),
    (
        "two formats of one",
        files(**{"north.csv": GOOD, "north.tsv": GOOD}),
        ["north.tsv and north.csv", "keep one"],
    ),
    ("an empty file", files(north=""), ["north.csv is empty"]),
    ("a header alone", files(north=HEADER), ["north holds no records"]),
    ("no header", files(north=LINE), ["north has no column 'age'"]),
    (
        "a column missing",
        files(north="age,sex,diagnosis\n30,f,benign\n"),
        ["north has no column 'pressure'", "add it"],
    ),
    (
        "a column misspelled",
        files(north=GOOD.replace("pressure", "presure")),
        ["'pressure'", "did you mean 'presure'"],
    ),
    (
        "a column twice",
        files(north="age,age,pressure,sex,diagnosis\n1,30,120,f,benign\n"),
        ["two columns 'age'", "rename"],
    ),
    (
        "a line too long",
        files(north=GOOD + "30,120,f,benign,x\n"),
        ["north.csv", "5 cells instead of 4", "quotes"],
    ),
    ("an open quote", files(north=GOOD + '30,120,"f,benign\n'), ["north.csv has a quote", "double those"]),
    ("Latin-1 cells", files(north=(HEADER + "30,120,é,benign\n").encode("latin-1")), ["north.csv", "UTF-8"]),
    ("UTF-16", files(north=GOOD.encode("utf-16")), ["north.csv", "UTF-8"]),
    (
        "texts for numbers",
        files(north=HEADER + "old,120,f,benign\n"),
        ["north column 'age' holds no number", "kind"],
    ),
    (
        "decimal commas",
        files(north=HEADER + '"30,5",120,f,benign\n'),
        ["north column 'age'", 'decimal = ","'],
    ),
    (
        "no day",
        agreed(DATE, north=HEADER[:-1] + ",seen\n30,120,f,benign,1/2/20\n"),
        ["column 'seen' holds no day", "format"],
    ),
    (
        "targets unknown",
        files(north=HEADER + "30,120,f,sick\n"),
        ["north has 1 of 1 records", "correct column 'diagnosis'"],
    ),
    (
        "targets as numbers",
        files(north=HEADER + "30,120,f,0\n31,120,f,1\n"),
        ["'diagnosis'", 'aliases = { "0" = "benign"'],
    ),
    (
        "a number with commas to predict",
        agreed(NUMBER, north="a;price\n0.5;1,5\n0.25;2,5\n"),
        ["'price'", 'decimal = ","'],
    ),
    ("labels of words", agreed(LABELS, north="x,a,b\n1,yes,no\n"), ["north has 1 of 1 records", "'a'"]),
    (
        "nobody's unit",
        agreed(UNIT, north=HEADER[:-1] + ",patient\n" + LINE[:-1] + ",\n"),
        ["column 'patient' is empty"],
    ),
    ("no unit at all", agreed(UNIT), ["north has no column 'patient'"]),
    ("no workbook", files(**{"north.xlsx": b"x"}), ["north.xlsx is not an .xlsx file", "save it again"]),
    ("two sheets", with_table(two_sheets), ["north.xlsx has 2 sheets", "keep the one"]),
    (
        "Parquet as a folder",
        lambda at: (folder(at, north=GOOD), (at / "west.parquet").mkdir()),
        ["west.parquet is not read", "one file"],
    ),
    (
        "a remark above the names",
        files(north="# exported on Monday\n" + GOOD),
        ["north.csv has one name in its first line and 4 cells below", "line of all names"],
    ),
    (
        "parted by pipes",
        files(north=GOOD.replace(",", "|")),
        ["north has one column, 'age|pressure", "commas, semicolons or tabs"],
    ),
    ("commas in .tsv", files(**{"north.tsv": GOOD}), ["north has one column, 'age,pressure", ".tsv: tabs"]),
    (
        "true and false for names",
        files(north=HEADER + "30,120,f,TRUE\n31,120,f,FALSE\n"),
        ["'diagnosis'", 'aliases = { "TRUE" = "…", … } to [target]'],
    ),
    ("no Parquet", files(**{"north.parquet": b"PAR1"}), ["north.parquet", "save it again"]),
    (
        "lists in Parquet",
        with_table(parquet(age=[[1]], pressure=[1], sex=["f"], diagnosis=["benign"])),
        ["north column 'age' holds list", "save it as numbers"],
    ),
    ("no npz", files(**{"north.npz": b"PK"}), ["north.npz", "numpy.savez"]),
    ("pickles", with_array(arrays(x=np.array([{}]), y=[0])), ["north.npz", "objects", "save plain"]),
    ("no x", with_array(arrays(y=[0])), ["north has no column 'x'"]),
    (
        "another shape",
        with_array(arrays(x=np.zeros((4, 3, 2)), y=[0] * 4)),
        ["array 'x'", "(3, 2)", "(2, 3)"],
    ),
    (
        "fewer labels",
        with_array(arrays(x=np.zeros((4, 2, 3)), y=[0] * 3)),
        ["column 'y'", "(3,)", "for each of 4 records"],
    ),
    (
        "texts for numbers in npz",
        with_array(arrays(x=np.full((4, 2, 3), "a"), y=[0] * 4)),
        ["array 'x' is <U1", "numbers"],
    ),
    ("a table for arrays", agreed(ARRAY, north=GOOD), ["north is a .csv file", "save an .npz"]),
]


@pytest.mark.parametrize(("make", "says"), [case[1:] for case in FOLDERS], ids=[case[0] for case in FOLDERS])
def test_a_wrong_folder_is_refused_in_one_line_before_anything_is_charged(
    tmp_path: Path, failing: Failing, make: Callable[[Path], object], says: list[str]
) -> None:
    make(tmp_path)
    for command in (
        ["check", str(tmp_path)],
        ["train", f"dataset={tmp_path}", "--out", str(tmp_path / "run")],
    ):
        said = failing(*command)
        for part in says:
            assert part in said, command[0]
    assert not list(tmp_path.glob("ledger*"))
    assert not (tmp_path / "run").exists()


def test_a_site_that_is_too_small_to_train_is_named(tmp_path: Path, failing: Failing) -> None:
    folder(tmp_path, north=GOOD, west=HEADER + LINE)
    said = failing("train", f"dataset={tmp_path}", "--out", str(tmp_path / "run"))
    assert "the smallest participant, west, has 1 record: it needs 2" in said


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("wrong")
    rows = [f"{20 + i},{100 + i},{'fm'[i % 2]},{('benign', 'malignant')[i % 3 == 0]}\n" for i in range(40)]
    folder(at / "sites", north=HEADER + "".join(rows), west=HEADER + "".join(rows[:30]))
    for words in (
        ["train", f"dataset={at / 'sites'}", "rounds=1", "channel=direct", "--out", str(at / "run")],
        ["models", str(at / "run"), "--out", str(at / "models")],
    ):
        answer = CliRunner().invoke(app, words)
        assert answer.exit_code == 0, answer.output
    return at


NEW = "age,pressure,sex\n30,120,f\n"
PREDICTIONS: list[tuple[str, str, list[str], list[str]]] = [
    ("a column missing", "age,sex\n30,f\n", [], ["new has no column 'pressure'", "add it"]),
    ("no record", "age,pressure,sex\n", [], ["new.csv holds no records"]),
    ("nothing readable", "age,pressure,sex\nold,1,f\n", [], ["new.csv column 'age'", "write it as"]),
    (
        "no column to keep",
        NEW,
        ["--keep", "patient"],
        ["new has no column 'patient' to keep: choose from age, pressure, sex"],
    ),
    (
        "kept twice",
        NEW,
        ["--keep", "age", "--keep", "age"],
        ["'age' is kept or predicted twice", "leave it out"],
    ),
    ("a threshold of two", NEW, ["--threshold", "2"], ["between 0 and 1"]),
    ("over the records", NEW, ["--out", "new.csv"], ["holds the records to predict", "choose another"]),
    ("to Excel", NEW, ["--out", "p.xlsx"], ["p.xlsx", ".csv or .parquet"]),
    ("of another format", NEW, ["--data", "new.sav"], ["new.sav", ".csv"]),
    ("of nothing", NEW, ["--data", "nowhere.csv"], ["nowhere.csv does not exist"]),
]


@pytest.mark.parametrize(
    ("text", "more", "says"), [case[1:] for case in PREDICTIONS], ids=[case[0] for case in PREDICTIONS]
)
def test_what_cannot_be_predicted_is_said_in_one_line(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: Failing,
    text: str,
    more: list[str],
    says: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("new.csv", "new.sav"):
        Path(name).write_text(text)
    words = ["--data", "new.csv", "--out", "p.csv"]
    said = failing("predict", str(model / "models/north.safetensors"), *words, *more)
    for part in says:
        assert part in said
    assert not Path("p.csv").exists()


NORTH = "AT/models/north.safetensors"
OTHERS: list[tuple[str, list[str], list[str]]] = [
    ("a run for a model", ["predict", "AT/run", "--data", "new.csv", "--out", "p.csv"], ["run is a folder"]),
    (
        "a table for a model",
        ["predict", "new.csv", "--data", "new.csv", "--out", "p.csv"],
        ["new.csv is damaged or not"],
    ),
    (
        "predictions over another site",
        ["predict", NORTH, "--data", "new.csv", "--out", "AT/sites/west.csv"],
        ["west.csv lies in a folder of records", "choose another file (--out)"],
    ),
    (
        "a run's generator for a model",
        ["finish", "AT/run/model.safetensors", "--data", "one.csv", "--out", "h.safetensors"],
        ["is a run's generator, not one client's model"],
    ),
    (
        "predictions to nowhere",
        ["predict", NORTH, "--data", "new.csv", "--out", "no/p.csv"],
        ["no/p.csv", "check"],
    ),
    (
        "a finish without targets",
        ["finish", NORTH, "--data", "new.csv", "--out", "h.safetensors"],
        ["new has no column 'diagnosis': add it: the agreement names it"],
    ),
    (
        "a finish of one record",
        ["finish", NORTH, "--data", "one.csv", "--out", "h.safetensors"],
        ["one.csv: 0 records to choose by beside 1 to judge by are too few", "give more"],
    ),
    (
        "a finish to nowhere",
        ["finish", NORTH, "--data", "one.csv", "--out", "no/h.safetensors"],
        ["cannot write no/h.safetensors", "check the path"],
    ),
    (
        "a finish as a table",
        ["finish", NORTH, "--data", "one.csv", "--out", "h.csv"],
        ["written as .safetensors, not as h.csv", "(--out)"],
    ),
    ("a finish over the model", ["finish", NORTH, "--data", "one.csv", "--out", NORTH], ["choose another"]),
    ("an export over the model", ["export", NORTH, "--onnx", NORTH], ["holds the model itself"]),
    ("a report of sites", ["report", "AT/sites"], ["sites holds no run: give the folder"]),
    ("an evaluation of sites", ["evaluate", "AT/sites"], ["sites holds no run", "give the folder"]),
    ("a report of a model", ["report", NORTH], ["north.safetensors holds no run: give the folder"]),
    (
        "models of a model",
        ["models", NORTH, "--out", "m"],
        ["north.safetensors holds no run", "give the folder that a training wrote"],
    ),
    (
        "a model to train",
        ["train", NORTH, "--out", "r"],
        ["north.safetensors is not a plan, it is a model: give a TOML file"],
    ),
    (
        "a model to audit",
        ["audit", NORTH],
        ["not a plan, it is a model", "plan.toml of a run"],
    ),
    (
        "sites as a plan",
        ["train", "AT/sites", "--out", "r"],
        ["sites is a folder, not a plan", "dataset=AT/sites"],
    ),
    (
        "a site's own setting",
        ["plan", "dataset=AT/sites", "finish=true"],
        ["no key of a plan", "to 'sottovoce node' (--finish)"],
    ),
    (
        "a rehearsal among the records",
        ["compare", "dataset=AT/sites", "--out", "AT/sites"],
        ["sites is a folder of records", "choose another", "(--out)"],
    ),
    (
        "a run among the records",
        ["train", "dataset=AT/sites", "rounds=1", "--out", "AT/sites"],
        ["sites is a folder of records", "choose another", "(--out)"],
    ),
    (
        "an audit among the records",
        ["audit", "dataset=AT/sites", "--out", "AT/sites"],
        ["sites is a folder of records", "choose another", "(--out)"],
    ),
    (
        "models into a file",
        ["models", "AT/run", "--out", "new.csv"],
        ["cannot create new.csv", "another folder"],
    ),
    (
        "no run to join",
        ["personalize", "nowhere", "--data", "new.csv", "--out", "w.safetensors"],
        ["nowhere is no folder: check the path"],
    ),
    (
        "no token",
        ["onboard", "https://localhost:1", "--data", "new.csv", "--out", "w", "--token-file", "none"],
        ["none: No such file or directory; check the path"],
    ),
    (
        "no service",
        ["onboard", "localhost:1", "--data", "new.csv", "--out", "w"],
        ["localhost:1 is not the URL of a service: use https"],
    ),
    (
        "a site that is not there",
        ["train", "dataset=AT/sites", "future_clients=est", "--out", "r"],
        ["'est'", "west"],
    ),
    (
        "everybody later",
        ["train", "dataset=AT/sites", "future_clients=2", "--out", "r"],
        ["nobody is left to train"],
    ),
    ("a decimal comma", ["train", "dataset=AT/sites", "epsilon=0,5", "--out", "r"], ["epsilon is a number"]),
    (
        "a misspelled plan",
        ["train", "dataset=AT/sites", "epsilom=4", "--out", "r"],
        ["did you mean 'epsilon'"],
    ),
    (
        "a model of pictures",
        ["train", "dataset=AT/sites", "model=lenet", "--out", "r"],
        ["lenet takes images", "set model=linear"],
    ),
    (
        "features of pictures",
        ["train", "dataset=AT/sites", "features=scattering", "--out", "r"],
        ["features=scattering describes pictures", "use none"],
    ),
    ("a draft over one", ["draft", "AT/sites"], ["records.toml is there already", "move it"]),
    (
        "a draft without its unit",
        ["draft", ".", "--unit", "patient"],
        ["new.csv has no column 'patient': choose"],
    ),
    (
        "no dictionary",
        ["draft", ".", "--dictionary", "one.csv"],
        ["one.csv has no column 'column'", "add it"],
    ),
    (
        "a table for a ledger",
        ["ledger", "show", "new.csv"],
        ["new.csv is not a whole ledger", "give another"],
    ),
    ("a folder that is not shipped", ["data", "copy", "hearts", "h"], ["did you mean 'heart'"]),
    (
        "a comparison of nothing",
        ["compare", "dataset=AT/sites", "--out", "c", "--repeats", "0"],
        ["0 splits"],
    ),
]


@pytest.mark.parametrize(("words", "says"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_other_commands_refuse_in_one_line_too(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: Failing,
    words: list[str],
    says: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text(NEW)
    Path("one.csv").write_text(HEADER + LINE)
    said = failing(*(word.replace("AT", str(model)) for word in words))
    for part in says:
        assert part.replace("AT", str(model)) in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "one.csv"]


def test_there_are_more_than_ninety_of_them() -> None:
    assert len(FOLDERS) + len(PREDICTIONS) + len(OTHERS) > 90
