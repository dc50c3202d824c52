"""A file of records in, a line for each of them out, by the model's file alone and in bounded memory."""

from __future__ import annotations

import csv
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import nn

from sottovoce.data import Description, Facts
from sottovoce.data.tables.encoding import read_site
from sottovoce.errors import SottovoceError
from sottovoce.models.features import open_features
from sottovoce.models.features.cache import described_facts
from sottovoce.personal import PersonalModel, personal_model
from sottovoce.personal.prediction import Layout, Summary, _quoted, predict, predictions
from tests.small import COLUMNS, built, small_plan

CLASSES = 'task = "classes"\n[target]\ncolumn = "kind"\nvalues = ["plain", "a, b"]\n' + COLUMNS
LABELS = 'task = "labels"\n[target]\ncolumns = ["fever", "cough", "rash"]\n' + COLUMNS
NUMBER = 'task = "number"\n[target]\ncolumn = "days"\nlow = 0\nhigh = 30\n' + COLUMNS
CSV = "sex,age,id\nf,40,7\nm,,8\nx,999,9\n"


def model(facts: Facts | str, **changes: Any) -> PersonalModel:
    """A model with made-up coefficients, read back from its file."""
    if isinstance(facts, str):
        facts = Description.parse(facts).facts()
    values = {"model": "linear", "method": "blend", "context": "public", "gradient_records": 40, **changes}
    values.setdefault("coefficients", (math.prod(facts.shape) + 1) * facts.classes)
    blueprint = built(small_plan(**values), facts)
    a = 3 * torch.randn(blueprint.coefficients, generator=torch.Generator().manual_seed(1))
    path = Path("north.safetensors")
    path.write_bytes(personal_model(blueprint, a, run="0123", client="north", epsilon=3.5))
    return PersonalModel.read(path)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_for_each_record_with_a_probability_for_each_class_and_the_decision() -> None:
    north, out = model(CLASSES), Path("out.csv")
    records = written("new.csv", CSV)
    assert predict(north, records, out).records == 3
    rows = lines(out)
    assert list(rows[0]) == ["probability_plain", "probability_a, b", "decision"]
    x = north.facts.normalize(
        torch.from_numpy(read_site(records, Description.parse(CLASSES), target=False).x)
    )
    expected = torch.softmax(north.outputs(x), dim=1)
    found = [[float(row["probability_plain"]), float(row["probability_a, b"])] for row in rows]
    assert np.allclose(found, expected, atol=1e-6)
    names = [("plain", "a, b")[i] for i in expected.argmax(dim=1).tolist()]
    assert [row["decision"] for row in rows] == names


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_no_other_records_are_written_over_in_their_folder(kind: str) -> None:
    north, other = model(CLASSES), Path(f"beta.{kind}")
    records = written("alpha.csv", CSV)
    if kind == "csv":
        written("beta.csv", "sex,age,kind\nf,40,plain\n")
    else:
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(records), other)
    before = other.read_bytes()
    written("records.toml", CLASSES)
    with pytest.raises(SottovoceError, match=f"beta.{kind} lies in a folder of records and holds no such"):
        predict(north, records, other)
    assert other.read_bytes() == before
    assert len(list(Path().iterdir())) == 4
    for _ in range(2):  # a client's own folder may hold its predictions, which are made again
        assert predict(north, records, f"p.{kind}").records == 3
    with pytest.raises(SottovoceError, match="holds no such predictions: choose another file"):
        predict(north, records, f"p.{kind}", keep=["id"])


def test_a_model_may_be_named_by_its_file() -> None:
    north, records = model(CLASSES), written("new.csv", CSV)
    predict(north, records, "one.csv")
    predict("north.safetensors", "new.csv", "two.csv")
    assert Path("one.csv").read_text() == Path("two.csv").read_text()


def test_labels_have_a_probability_and_a_decision_each() -> None:
    out = Path("out.csv")
    summary = predict(model(LABELS), written("new.csv", CSV), out)
    rows = lines(out)
    assert list(rows[0]) == [f"{kind}_{name}" for kind in ("probability", "decision")
                             for name in ("fever", "cough", "rash")]  # fmt: skip
    for row in rows:
        for name in ("fever", "cough", "rash"):
            assert row[f"decision_{name}"] == str(int(float(row[f"probability_{name}"]) > 0.5))
    assert summary.decisions["rash"] == sum(row["decision_rash"] == "1" for row in rows)


def test_a_number_is_in_its_own_units_and_within_its_bounds() -> None:
    out = Path("out.csv")
    predict(model(NUMBER), written("new.csv", CSV), out)
    values = [float(row["value"]) for row in lines(out)]
    assert len(values) == 3
    assert all(0 <= value <= 30 for value in values)
    assert any(value in (0, 30) for value in values)  # clamped


@pytest.mark.parametrize("text", [CLASSES, LABELS, NUMBER])
def test_csv_parquet_and_npz_give_the_same_predictions_in_both_formats(text: str) -> None:
    north, records = model(text), written("new.csv", CSV)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(records), Path("new.parquet"))
    np.savez(Path("new.npz"), sex=np.array(["f", "m", "x"]), age=np.array([40, np.nan, 999]))
    first = None
    for source in ("new.csv", "new.parquet", "new.npz"):
        predict(north, Path(source), Path("out.csv"))
        predict(north, Path(source), Path("out.parquet"))
        table = pyarrow.parquet.read_table(Path("out.parquet")).to_pylist()
        for row, cells in zip(table, lines(Path("out.csv")), strict=True):
            assert list(row) == list(cells)
            for name, cell in cells.items():
                assert row[name] == (cell if name == "decision" else pytest.approx(float(cell), rel=1e-5))
        first = first or table
        assert table == first


def test_a_target_in_the_file_is_not_read() -> None:
    north = model(CLASSES)
    predict(north, written("new.csv", CSV), Path("without.csv"))
    predict(north, written("new.csv", "kind,sex,age\nplain,f,40\nnonsense,m,\n,x,999\n"), Path("with.csv"))
    assert (Path("with.csv")).read_bytes() == (Path("without.csv")).read_bytes()


def test_records_that_cannot_be_used_get_empty_cells_and_are_counted() -> None:
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    x[1, 2], x[4, 0] = np.nan, np.inf
    np.savez(Path("new.npz"), x=x)
    north = model(Facts((6,), 3))
    summary = predict(north, Path("new.npz"), Path("out.csv"))
    assert (summary.records, summary.unusable, sum(summary.decisions.values())) == (5, 2, 3)
    rows = lines(Path("out.csv"))
    empty = [set(row.values()) == {""} for row in rows]
    assert empty == [False, True, False, False, True]
    predict(north, Path("new.npz"), Path("out.parquet"))
    found = pyarrow.parquet.read_table(Path("out.parquet")).to_pylist()
    assert [row["decision"] is None for row in found] == empty


def test_an_empty_prediction_of_a_number_is_still_a_line() -> None:
    text = 'task = "number"\n[target]\ncolumn = "days"\nlow = 0\nhigh = 30\n[array]\nshape = [4]\n'
    np.savez(Path("new.npz"), x=np.array([[1, 2, 3, 4], [1, 2, 3, np.nan], [0, 0, 0, 0.0]]))
    predict(model(text), Path("new.npz"), Path("out.csv"))
    rows = pyarrow.csv.read_csv(Path("out.csv")).column("value").to_pylist()
    assert [row is None for row in rows] == [False, True, False]


def test_pictures_go_through_the_map_that_the_file_names() -> None:
    keys = {"features": "scattering", "feature_size": 20}
    facts = described_facts(Facts((1, 16, 16), 3, mean=(0.5,), std=(0.2,)), small_plan(**keys))
    north = model(facts, **keys)
    x = np.random.default_rng(0).integers(0, 256, (9, 16, 16), dtype=np.uint8)
    np.savez(Path("new.npz"), x=x)
    predict(north, Path("new.npz"), Path("out.csv"))
    features = open_features("scattering", (1, 16, 16), size=20)
    seen = features(torch.from_numpy(x[:, None]) / 255).half().float()
    expected = torch.softmax(north.outputs(seen), dim=1)
    found = [[float(row[f"probability_{i}"]) for i in range(3)] for row in lines(Path("out.csv"))]
    assert np.allclose(found, expected, atol=1e-5)


def tokens(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A mean of embeddings."""
    return nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, classes))


def test_series_stay_series_and_arrays_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'task = "classes"\n[target]\ncolumn = "y"\nvalues = ["0", "1"]\n[array]\nshape = [5, 2]\n'
    north = model(text)
    x = np.random.default_rng(0).normal(size=(23, 5, 2))
    for name, array in (("plain", x), ("columns", np.asfortranarray(x))):
        np.savez(Path(f"{name}.npz"), x=array)
    np.savez_compressed(Path("compressed.npz"), x=x)
    monkeypatch.setattr("sottovoce.data.arrays.PART_BYTES", 8 * 10 * 4)
    for name, parts in (("plain", 6), ("compressed", 6), ("columns", 1)):
        blocks = list(predictions(north, Path(f"{name}.npz")))
        assert len(blocks) == parts
        found = np.concatenate([block.numbers for block in blocks])
        assert np.allclose(found, torch.softmax(north.outputs(torch.from_numpy(x).float()), dim=1), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("new.csv", "age,gender\n4,f\n", "column 'sex'"),
        ("new.csv", "sex,age\nf,old\n", "column 'age'"),
        ("new.csv", "sex,age\n", "no records"),
        ("new.csv", "", "new"),
        ("new.xls", "sex,age\n", "not one of"),
        ("new.npz", "sex,age\n", "not an .npz"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line_and_leaves_no_file(
    name: str, text: str, said: str
) -> None:
    north = model(CLASSES)
    with pytest.raises(SottovoceError, match=said) as refused:
        predict(north, written(name, text), Path("out.csv"))
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in Path().iterdir()) == sorted([name, "north.safetensors"])


def test_what_is_no_table_of_predictions_is_refused() -> None:
    with pytest.raises(SottovoceError, match=r"as \.csv or \.parquet"):
        predict(model(CLASSES), written("new.csv", CSV), Path("out.xlsx"))
    np.savez(Path("new.npz"), x=np.zeros((2, 7)))
    with pytest.raises(SottovoceError, match=r"of shape \(7,\), the model is about \(6,\)"):
        predict(model(Facts((6,), 3)), Path("new.npz"), Path("out.csv"))


def test_a_column_to_keep_that_is_not_there_is_answered_by_those_that_are() -> None:
    np.savez(Path("new.npz"), x=np.zeros((2, 6)), patient=["a", "b"])
    with pytest.raises(SottovoceError, match="no array 'nope' to keep: choose from patient, x"):
        predict(model(Facts((6,), 3)), Path("new.npz"), Path("out.csv"), keep=["nope"])
    with pytest.raises(SottovoceError, match="no column 'nope' to keep: choose from age, sex"):
        predict(model(CLASSES), written("new.csv", "age,sex\n4,f\n"), Path("out.csv"), keep=["nope"])


def test_memory_does_not_grow_with_the_file() -> None:
    """What a block holds is bounded, and only one is alive at a time."""
    records = written("new.csv", "sex,age\n" + "f,40\nm,50\n" * 300_000)
    north, largest, summary = model(CLASSES), 0, Summary()
    for block in predictions(north, records):
        largest = max(largest, len(block.usable))
        summary.records += len(block.usable)
    assert summary.records == 600_000
    assert largest < 300_000


@pytest.mark.parametrize("formula", ["=1+1", "+cmd|x", "-2+3", "@SUM(A1)", "=HYPERLINK(a)", "＝1+1"])
def test_a_class_name_that_is_a_formula_is_none_in_a_spreadsheet(formula: str) -> None:
    classes = CLASSES.replace('"plain", "a, b"', f'"{formula}", "-1"')
    predict(model(classes), written("new.csv", CSV), Path("out.csv"))
    decisions = {line["decision"] for line in lines(Path("out.csv"))}
    assert decisions <= {f"'{formula}", "-1", ""}  # a number stays one
    assert not any(name.startswith(tuple("=+-@")) for name in lines(Path("out.csv"))[0])
    assert Layout.of(model(classes)).texts == (formula, "-1")
    assert _quoted(formula) == f"'{formula}"
    assert [_quoted(f"{start}x") for start in "\t\r"] == ["'\tx", '"\'\rx"']


def test_predictions_are_for_their_owner_alone() -> None:
    for name in ("out.csv", "out.parquet"):
        predict(model(CLASSES), written("new.csv", CSV), Path(name))
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600


def test_a_threshold_is_for_two_classes_or_labels() -> None:
    records, out = written("new.csv", CSV), Path("out.csv")
    predict(model(LABELS), records, out, threshold=0.3)
    for row in lines(out):
        for name in ("fever", "cough", "rash"):
            assert (float(row[f"probability_{name}"]) >= 0.3) == (row[f"decision_{name}"] == "1")
    for text, what in ((NUMBER, "a number"), (CLASSES.replace('"a, b"', '"a", "b"'), "3 classes")):
        out.unlink(missing_ok=True)
        with pytest.raises(SottovoceError, match=what):
            predict(model(text), records, out, threshold=0.3)
        assert not out.exists()
