"""A model as ONNX says what `predict` says, to 1e-5, and a home model stays at home."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.data import Facts
from sottovoce.data.tables.schema import Description
from sottovoce.errors import SottovoceError
from sottovoce.models.parameters import flat_parameters
from sottovoce.models.tensors import HomeModel
from sottovoce.personal import PersonalModel, home_model, personal_model
from sottovoce.personal.onnx import CannotExport, export_onnx
from sottovoce.personal.prediction import predictions
from sottovoce.plan import Plan
from tests.small import built

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

COLUMNS = """
[columns.age]
kind = "number"
low = 0
high = 120
missing = "middle"
[columns.pressure]
kind = "number"
low = 50
high = 250
mean = 120
std = 20
[columns.sex]
kind = "category"
values = ["f", "m"]
case = "ignore"
aliases = { female = "f" }
[columns.grade]
kind = "category"
values = ["1", "2"]
"""
TARGETS = {
    "classes": '[target]\ncolumn = "ill"\nvalues = ["no", "yes", "=unsure"]\n',
    "labels": '[target]\ncolumns = ["ill", "old"]\n',
    "number": '[target]\ncolumn = "days"\nlow = 0\nhigh = 90\n',
}
ROWS: list[tuple[Any, Any, str, str]] = [
    (30, 120, "f", "1"), (55.5, 61.25, "M", "2.0"), (np.nan, 1e300, "Female", "3"), (-4, -1e9, "x", "1"),
    (1e5, np.nan, "", ""), (np.inf, 100, "F", "2"), (81, 249.999, "m", "1"),
]  # fmt: skip


def model_file(folder: Path, facts: Facts, **plan: Any) -> Path:
    """A published model with random parameters."""
    chosen = {"model": "linear", "method": "direct", "basis": "unstructured", "coefficients": 0}
    chosen |= {"gradient_records": 50, **plan}
    blueprint = built(Plan.load(overrides={"preset": "tuned", **chosen}), facts)
    coefficients = 0.4 * torch.randn(blueprint.coefficients, generator=torch.Generator().manual_seed(1))
    path = folder / "north.safetensors"
    path.write_bytes(personal_model(blueprint, coefficients, run="r1", client="north", epsilon=3.5))
    return path


def ran(path: Path, **inputs: Any) -> dict[str, Any]:
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def predicted(path: Path, records: Path) -> Any:
    [block] = predictions(PersonalModel.read(path, home=True), records)
    return block


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("task", TARGETS)
def test_tables_give_what_predict_gives(tmp_path: Path, task: str, model: str) -> None:
    agreed = Description.parse(f'task = "{task}"\n' + TARGETS[task] + COLUMNS)
    source = model_file(tmp_path, agreed.facts(), model=model, mlp_sizes="8,5", mlp_activation="relu")
    told = export_onnx(str(source), str(tmp_path / "north.onnx"))
    assert told["inputs"] == ["age", "pressure", "sex", "grade"]
    lines = [",".join("" if one != one else str(one) for one in row) for row in ROWS]
    (tmp_path / "new.csv").write_text("\n".join(["age,pressure,sex,grade", *lines]) + "\n")
    block = predicted(source, tmp_path / "new.csv")
    age, pressure, sex, grade = (np.array(column)[:, None] for column in zip(*ROWS, strict=True))
    found = ran(
        tmp_path / "north.onnx", age=age.astype(float), pressure=pressure.astype(float), sex=sex, grade=grade
    )
    scale = 90 if task == "number" else 1  # a number is told in its own units
    values = found["value" if task == "number" else "probabilities"]
    assert np.abs(values - block.numbers).max() < 1e-5 * scale
    assert len({tuple(row) for row in np.round(values, 4).tolist()}) > 4
    if task == "classes":
        assert found["decision"].tolist() == [["no", "yes", "=unsure"][i] for i in block.decisions[:, 0]]
    if task == "labels":
        assert (found["decisions"] == block.decisions).all()


@pytest.mark.parametrize(
    "described",
    [
        '[array]\nshape = [3, 4, 4]\nmean = [0.5, 0.4, 0.3]\nstd = [0.2, 0.3, 0.4]\n',
        '[array]\nshape = [6, 2]\nmean = [1.0, -1.0]\nstd = [2.0, 0.5]\n',
        None,
    ],
)  # fmt: skip
def test_arrays_give_what_predict_gives(tmp_path: Path, described: str | None) -> None:
    facts = Facts((5,), 3, (0.1,), (0.7,))
    if described is not None:
        facts = Description.parse('task = "classes"\n' + TARGETS["classes"] + described).facts()
    source = model_file(tmp_path, facts, model="mlp")
    x = np.random.default_rng(0).normal(size=(20, *facts.shape)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x)
    export_onnx(source, tmp_path / "north.onnx")
    found = ran(tmp_path / "north.onnx", x=x)["probabilities"]
    assert np.abs(found - predicted(source, tmp_path / "new.npz").numbers).max() < 1e-5


@pytest.mark.parametrize("more", ['missing = "low"', 'parts = ["weekday", "days"]', 'parts = ["month"]'])
def test_days_give_what_predict_gives(tmp_path: Path, more: str) -> None:
    days = ["2000-02-29", "1999-12-31", "2024-03-01", "2021-06-15T23:59:59", "1900-02-28", "1900-03-01"]
    days += ["0001-01-01", "9999-12-31", "2100-02-28", "", "2400-02-29", "2023-13-01"]
    days += [f"2023-{month:02}-{month + 9:02}" for month in range(1, 13)]
    column = f'[columns.day]\nkind = "date"\nsince = 1990-01-01\nuntil = 2030-01-01\n{more}\n'
    facts = Description.parse('task = "classes"\n' + TARGETS["classes"] + column).facts()
    source = model_file(tmp_path, facts)
    (tmp_path / "new.csv").write_text("\n".join(["day", *(f'"{day}"' for day in days)]) + "\n")
    export_onnx(source, tmp_path / "north.onnx")
    given = np.array(["NaT" if day == "2023-13-01" else day or "NaT" for day in days], "datetime64[s]")
    numbers = np.where(np.isnat(given), np.nan, given.astype("datetime64[D]").astype(float))
    numbers[3] += 0.99  # a time of day
    found = ran(tmp_path / "north.onnx", day=numbers[:, None])["probabilities"]
    block = predicted(source, tmp_path / "new.csv")
    assert np.abs(found - block.numbers).max() < 1e-5
    assert len({tuple(row) for row in np.round(found, 4).tolist()}) > 6
    nowhere = np.array([[np.nan], [np.inf], [-np.inf], [1e18], [-719_163.0]])
    for row in ran(tmp_path / "north.onnx", day=nowhere)["probabilities"]:
        assert np.abs(row - found[9]).max() < 1e-6


def test_a_column_may_be_called_like_an_output(tmp_path: Path) -> None:
    column = '[columns.value]\nkind = "number"\nlow = 0\nhigh = 1\n'
    facts = Description.parse('task = "number"\n' + TARGETS["number"] + column).facts()
    told = export_onnx(model_file(tmp_path, facts), tmp_path / "north.onnx")
    assert (told["inputs"], told["outputs"]) == (["value"], ["predicted_value"])
    assert ran(tmp_path / "north.onnx", value=np.array([[0.5]]))["predicted_value"].shape == (1, 1)


def test_the_file_says_where_it_comes_from(tmp_path: Path) -> None:
    agreed = Description.parse('task = "classes"\n' + TARGETS["classes"] + COLUMNS)
    export_onnx(model_file(tmp_path, agreed.facts()), tmp_path / "north.onnx")
    file = onnx.load(tmp_path / "north.onnx")
    said = {prop.key: prop.value for prop in file.metadata_props}
    assert json.loads(said["origin"])["epsilon"] == 3.5
    assert said["columns"] == agreed.to_toml()
    assert "home" not in said
    assert "shown to anybody" in file.doc_string


def test_a_home_model_is_exported_only_for_its_owner_and_says_so(tmp_path: Path) -> None:
    facts = Description.parse('task = "classes"\n' + TARGETS["classes"] + COLUMNS).facts()
    published = PersonalModel.read(model_file(tmp_path, facts))
    home = tmp_path / "north.home.safetensors"
    home.write_bytes(home_model(published, flat_parameters(published.module) + 1, {"tau": 1.0}))
    with pytest.raises(HomeModel, match=r"is a home model.*say that this one stays at home") as refused:
        export_onnx(home, tmp_path / "home.onnx")
    assert refused.value.options == ("home",)
    assert not (tmp_path / "home.onnx").exists()
    assert export_onnx(home, tmp_path / "home.onnx", home=True)["home"] is True
    assert stat.S_IMODE((tmp_path / "home.onnx").stat().st_mode) == 0o600
    file = onnx.load(tmp_path / "home.onnx")
    said = {prop.key: prop.value for prop in file.metadata_props}
    assert said["home"] == "true"
    assert json.loads(said["origin"])["epsilon"] is None
    assert "stays at home" in file.doc_string


def test_an_export_takes_the_place_of_nothing_but_an_export_of_its_kind(tmp_path: Path) -> None:
    facts = Description.parse('task = "classes"\n' + TARGETS["classes"] + COLUMNS).facts()
    north = model_file(tmp_path, facts)
    published = PersonalModel.read(north)
    home = tmp_path / "north.home.safetensors"
    home.write_bytes(home_model(published, flat_parameters(published.module) + 1, {"tau": 1.0}))
    (tmp_path / "north.csv").write_text("age,pressure,sex,grade\n30,120,f,1\n")
    (tmp_path / "ledger.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for _ in range(2):
        export_onnx(north, tmp_path / "north.onnx")
        export_onnx(home, tmp_path / "home.onnx", home=True)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    others = ("north.home.safetensors", "north.csv", "ledger.sqlite", "empty", "folder")
    refused = [(north, name, "no ONNX file of ours") for name in others] + [
        (north, "home.onnx", "the ONNX file of a home model"),
        (home, "north.onnx", "the ONNX file of a published model"),
    ]
    for source, name, kind in refused:
        with pytest.raises(CannotExport, match=f"exists and is {kind}: choose another file") as refusal:
            export_onnx(source, tmp_path / name, home=True)
        assert refusal.value.options == ("onnx",)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_what_onnx_cannot_say_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = COLUMNS + '[columns.note]\nkind = "text"\nsize = 8\n'
    facts = Description.parse('task = "classes"\n' + TARGETS["classes"] + noted).facts()
    with pytest.raises(CannotExport, match=r"column 'note' is free text.*train without this column"):
        export_onnx(model_file(tmp_path, facts), tmp_path / "out.onnx")
    with pytest.raises(CannotExport, match="a layer Conv2d is not exported"):
        export_onnx(model_file(tmp_path, Facts((1, 28, 28), 10), model="lenet"), tmp_path / "out.onnx")
    source = model_file(tmp_path, Facts((4,), 2))
    with pytest.raises(CannotExport, match="holds the model itself"):
        export_onnx(source, source)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SottovoceError, match=r"pip install 'sottovoce\[onnx\]'"):
        export_onnx(source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
