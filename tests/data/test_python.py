"""Records as people hold them in Python train, are rehearsed and evaluated; what cannot be is one line."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sottovoce import (
    PersonalModel,
    compare,
    evaluate,
    from_clients,
    from_huggingface,
    from_torch,
    load,
    predict,
    train,
    write_models,
)
from sottovoce.data import DataError, Dataset, Description, Facts, check
from sottovoce.data.python import _columns, given
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from tests.small import ILL

FEW: dict[str, Any] = {"rounds": 2, "epsilon": 4, "channel": "direct", "seeded": True}


def arrays(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 3))
    return x, (x[:, 0] > 0).astype(int)


def torch_dataset(seed: int, count: int = 40) -> TensorDataset:
    x, y = arrays(seed, count)
    return TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))


def few() -> Plan:
    return Plan.load(overrides=FEW)


def frame(seed: int, count: int = 40) -> Any:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, count).astype(float)
    ill = np.where(age > 55, "yes", "no")
    age[0] = np.nan
    return pandas.DataFrame(
        {"age": age, "sex": rng.choice(["f", "m", "x"], count), "ill": ill, "id": range(count)}
    )


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    path = tmp_path / "records.toml"
    path.write_text(ILL)
    return path


HELD: dict[str, Any] = {"torch datasets": torch_dataset, "arrays": arrays}


@pytest.mark.parametrize("kind", HELD)
def test_a_dict_of_records_trains_and_is_evaluated(tmp_path: Path, kind: str) -> None:
    clients = {"a": HELD[kind](1), "b": HELD[kind](2, 60)}
    result = train(few(), tmp_path / "run", clients=clients)
    assert {row["name"]: row["size"] for row in result["clients"]} == {"a": 40, "b": 60}
    assert result["dataset"] == "own data"
    assert evaluate(str(tmp_path / "run"), clients=clients)["accuracy"] == result["accuracy"]
    other = train(few(), tmp_path / "list", dataset=list(clients.values()))
    assert set(other["accuracy"]["seen_per_client"]) == {"client-0", "client-1"}


def test_arrays_and_torch_datasets_of_the_same_records_are_the_same_dataset() -> None:
    one, other = (from_clients({"a": held(1), "b": held(2)}) for held in HELD.values())
    assert one.digest == other.digest
    assert one.facts == other.facts


def test_compare_takes_what_train_takes_and_keeps_nothing_of_another_preset(tmp_path: Path) -> None:
    clients = {name: torch_dataset(i) for i, name in enumerate(("a", "b", "c"))}
    plan = Plan.load(overrides={**FEW, "future_clients": 1})
    found = compare(plan, clients=clients, repeats=2)
    assert found["features"] == "none"
    assert found["dataset"] == "own data"
    future = found["rows"]["blend"]["future_per_client"]
    assert len(future) == 1  # the same site joins later in every split
    compare(plan, tmp_path / "c", dataset=from_clients(clients), repeats=1)
    trained = train(plan, tmp_path / "run", clients=clients)
    assert set(trained["accuracy"]["future_per_client"]) == set(future)
    assert (tmp_path / "c" / "compare.json").exists()


def test_tables_are_encoded_as_their_files_would_be(tmp_path: Path, agreed: Path) -> None:
    tables = {"a": frame(1), "b": frame(2)}
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    given_, read = from_clients(tables, records=agreed), load(tmp_path)
    assert given_.digest == read.digest
    assert given_.facts == read.facts
    assert (
        from_clients({"a": str(tmp_path / "a.csv"), "b": tables["b"]}, records=str(agreed)).digest
        == read.digest
    )
    arrow = pytest.importorskip("pyarrow")
    both = {name: arrow.Table.from_pandas(table) for name, table in tables.items()}
    assert from_clients(both, records=tmp_path).digest == read.digest


def test_tables_train_and_their_models_predict_by_paths_that_are_texts(tmp_path: Path, agreed: Path) -> None:
    plan = Plan.load(overrides={**FEW, "seeded": False})
    train(plan, str(tmp_path / "run"), clients={"a": frame(1), "b": frame(2)}, records=str(agreed))
    write_models(str(tmp_path / "run"), str(tmp_path / "models"))
    frame(3).to_csv(tmp_path / "new.csv", index=False)
    model = PersonalModel.read(str(tmp_path / "models" / "a.safetensors"))
    summary = predict(model, str(tmp_path / "new.csv"), str(tmp_path / "out.csv"))
    assert summary.records == 40
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "records.toml").write_text(ILL)
    frame(3).to_csv(tmp_path / "sites" / "a.csv", index=False)
    assert len(check(str(tmp_path / "sites")).sites) == 1


def test_a_path_and_a_single_torch_dataset_are_datasets_too(tmp_path: Path) -> None:
    x, y = arrays(1, 60)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    by_path, by_items, by_arrays = (
        given(str(tmp_path / "own.npz")),
        given(torch_dataset(1, 60)),
        given((x, y)),
    )
    assert by_path is not None
    assert by_items is not None
    assert by_arrays is not None
    assert by_path.digest == by_items.digest == by_arrays.digest
    dealt = Plan.load(overrides={**FEW, "partition": "iid", "participants": 2, "future_clients": 0})
    assert train(dealt, tmp_path / "run", dataset=torch_dataset(1, 60))["participants"] == 2
    assert given(Subset(torch_dataset(1), range(10))) is not None


def test_datasets_of_units_stay_units_of_their_clients() -> None:
    x = torch.rand(6, 2)
    one = Dataset("one", x, torch.zeros(6).long(), Facts((2,), 2), unit=torch.tensor([0, 0, 1, 1, 2, 2]))
    both = from_clients({"b": one, "a": replace(one, x=x / 2)})
    assert both.unit is not None
    assert both.unit.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert both.clients == ("a", "b")


def test_hugging_face_datasets_bring_classes_and_clients() -> None:
    datasets = pytest.importorskip("datasets")
    pictures = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    label = datasets.ClassLabel(names=["cat", "dog", "owl"])
    rows = datasets.Dataset.from_dict(
        {"image": list(pictures), "label": [0, 1] * 15, "writer": ["w0", "w1", "w2"] * 10},
        features=datasets.Features(image=datasets.Image(), label=label, writer=datasets.Value("string")),
    )
    found = from_huggingface(rows, client="writer")
    assert (found.facts.classes, found.facts.class_names) == (3, ("cat", "dog", "owl"))
    assert found.clients == ("w0", "w1", "w2")
    assert torch.equal(found.x, torch.from_numpy(pictures).permute(0, 3, 1, 2))
    by_client = {f"w{i}": rows.shard(3, i) for i in range(3)}
    assert from_clients(by_client).facts == found.facts
    with pytest.raises(DataError, match="not one class label but none: name the columns"):
        from_huggingface(rows.remove_columns("label"))
    with pytest.raises(DataError, match="no column 'digit': it has image, label, writer"):
        from_huggingface(rows, y="digit")


def test_the_time_zone_of_one_record_decides_about_no_day_of_another() -> None:
    """pyarrow takes the first cell's zone for a whole column of Python's own instants."""
    pandas = pytest.importorskip("pandas")
    agreed = Description.parse(
        'task = "classes"\n[target]\ncolumn = "ill"\nvalues = ["0", "1"]\n[columns.seen]\nkind = "date"\n'
        'since = 2020-01-01\nuntil = 2020-12-31\nparts = ["days"]\n'
    )
    late, found = datetime(2020, 1, 1, 20, tzinfo=UTC), set()
    for hours in (0, 9, -9):
        first = datetime(2020, 5, 1, tzinfo=timezone(timedelta(hours=hours)))
        seen = pandas.Series([first, late, date(2020, 2, 1), None], dtype=object)
        table = pandas.DataFrame({"seen": seen, "ill": [0, 1, 0, 1]})
        found.add(tuple(from_clients({"a": table}, records=agreed).x[:, 0].tolist()))
    [(_, second, third, fourth)] = found
    assert second < third < fourth
    ids = pandas.DataFrame({"id": pandas.Series([2**60 + 1, None], dtype=object)})
    assert _columns("a", ids).texts("id").cells == [str(2**60 + 1), ""]


def test_a_table_of_hugging_face_is_read_by_its_agreement(tmp_path: Path, agreed: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = frame(1)
    rows = datasets.Dataset.from_pandas(table, preserve_index=False)
    assert (
        from_clients({"a": rows}, records=agreed).digest == from_clients({"a": table}, records=agreed).digest
    )


X, Y = arrays(1)
BYTES = torch.ones(9, 3).byte()
WRONG: dict[str, tuple[Any, str]] = {
    "two ways": ({"dataset": (X, Y), "clients": {"a": (X, Y)}}, "leave one of them out"),
    "nothing": ({"clients": {}}, "give at least one"),
    "a generator": ({"clients": (one for one in [(X, Y)])}, "a dict .* or a list"),
    "three arrays": ({"clients": {"a": (X, Y, Y)}}, "a: 3 arrays are no pair"),
    "texts": ({"clients": {"a": (X.astype(str), Y)}}, "a: an array of <U32 holds no numbers"),
    "too few labels": ({"clients": {"a": (X, Y[:-1])}}, r"a: X has 40 records but y has shape \(39,\)"),
    "unlike shapes": ({"clients": {"a": (X, Y), "b": (X[:, :2], Y)}}, r"b holds .*\(2,\).*\(3,\)"),
    "float labels": ({"clients": {"a": (X, Y / 2)}}, "labels must be integers"),
    "one name twice": ({"clients": {1: (X, Y), "1": (X, Y)}}, "two clients are called '1'"),
    "no name": ({"clients": {"": (X, Y)}}, "cannot name a client"),
    "an array alone": ({"clients": {"a": X}}, "a: ndarray is not known as records"),
    "an object": ({"dataset": object()}, "dataset: object is not known as records"),
    "the same twice": ({"clients": {"a": (X, Y), "b": (X[::-1], Y[::-1])}}, "b and a hold the same records"),
    "kinds mixed": ({"clients": {"a": (X, Y), "b": from_torch(torch_dataset(1))}}, "unlike kinds"),
    "facts unlike": (
        {"clients": {"a": from_torch(torch_dataset(1)), "b": from_torch(torch_dataset(1), classes=3)}},
        "described otherwise",
    ),
    "unlike items": (
        {"dataset": ConcatDataset([torch_dataset(1), TensorDataset(torch.ones(3, 2), torch.ones(3).long())])},
        "records of own data differ in shape",
    ),
    "bytes beside numbers": (
        {"dataset": ConcatDataset([TensorDataset(BYTES, torch.ones(9).long()), torch_dataset(1)])},
        "records of own data are bytes, which count from 0 to 1, and other numbers",
    ),
    "records alone": ({"records": "records.toml"}, "give those too"),
    "no such file": ({"clients": {"a": {"age": [1]}}, "records": "nowhere.toml"}, "no nowhere.toml"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_one_line(what: str) -> None:
    arguments, said = WRONG[what]
    with pytest.raises(SottovoceError, match=said) as caught:
        given(**arguments)
    assert "\n" not in str(caught.value)


def test_a_table_without_a_description_is_told_what_to_do(agreed: Path) -> None:
    for arguments in ({"clients": {"a": frame(1)}}, {"dataset": frame(1)}):
        with pytest.raises(DataError, match=r"describe the tables .* with records='records.toml'"):
            given(**arguments)
    with pytest.raises(DataError, match="a: object is no table"):
        given(clients={"a": object()}, records=agreed)
    with pytest.raises(DataError, match="a has no column 'sex'"):
        given(clients={"a": frame(1).drop(columns="sex")}, records=agreed)
