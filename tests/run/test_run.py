"""Own records and an own module from Python: what was given is written down, and nothing else is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sottovoce import Plan, compare, train
from sottovoce.errors import SottovoceError
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import evaluate
from tests.run.test_dry_run import own, own_plan
from tests.run.test_folder import sites


def test_nothing_of_a_preset_for_another_dataset_is_applied(tmp_path: Path) -> None:
    plan = own_plan()
    assert plan.dataset == "mnist-small"
    assert plan.features != "none"
    result = train(plan, tmp_path / "run", dataset=own())
    written = RunDirectory(tmp_path / "run").plan()
    assert result["dataset"] == written.dataset == "mine"
    assert (written.features, written.records_per_client, written.participants) == ("none", 0, 2)
    assert written.partition == "client"
    assert set(result["accuracy"]["seen_per_client"]) == {"east", "west"}
    assert sum(row["size"] for row in result["clients"]) == 60
    assert (tmp_path / "run" / "report.html").exists()


def test_what_somebody_has_set_stays(tmp_path: Path) -> None:
    plan = own_plan(clip=0.7, future_clients=1, seed=3)
    train(plan, tmp_path / "run", dataset=own())
    written = RunDirectory(tmp_path / "run").plan()
    assert (written.clip, written.future_clients, written.participants, written.rounds) == (0.7, 1, 1, 2)
    assert plan.replace(clip=0.6).given["clip"] == 0.6


def test_a_run_on_records_from_python_says_how_to_repeat_it(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    plan = own_plan(seeded=True)
    first = train(plan, tmp_path / "one", dataset=own(), module=module)
    written = Plan.load(tmp_path / "one" / "plan.toml")
    assert written.model == "python:Linear"
    with pytest.raises(SottovoceError, match=r"no dataset 'mine'.*dataset=…"):
        train(written, tmp_path / "two")
    with pytest.raises(SottovoceError, match=r"given from Python: pass it again"):
        train(written, tmp_path / "two", dataset=own())
    again = train(written, tmp_path / "two", dataset=own(), module=module)
    assert again["accuracy"] == first["accuracy"]
    assert evaluate(tmp_path / "two", dataset=own(), module=module)["accuracy"] == first["accuracy"]


def test_a_folder_loaded_in_python_is_repeated_from_its_plan(tmp_path: Path) -> None:
    from sottovoce import load

    folder = sites(tmp_path / "sites")
    first = train(own_plan(seeded=True), tmp_path / "one", dataset=load(folder))
    again = train(Plan.load(tmp_path / "one" / "plan.toml"), tmp_path / "two")
    assert again["accuracy"] == first["accuracy"]
    assert again["dataset"] == str(folder)


def test_a_given_module_is_left_as_it_was(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    train(own_plan(), tmp_path / "run", dataset=own(), module=module)
    assert torch.equal(module.weight, before)


def test_metrics_of_ones_own_stand_in_the_result_its_files_and_its_report(tmp_path: Path) -> None:
    share = lambda true, decided: float((true == decided).mean())  # noqa: E731
    result = train(own_plan(), tmp_path / "run", dataset=own(), metrics={"own_share": share})
    per_client = result["metrics"]["per_client"]
    for name, accuracy in result["accuracy"]["seen_per_client"].items():
        assert 100 * per_client[name]["own_share"] == pytest.approx(accuracy)
    assert RunDirectory(tmp_path / "run").result() == result
    assert "own share" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    half = evaluate(tmp_path / "run", dataset=own(), metrics={"half": lambda true, decided: 0.5})
    assert half["metrics"]["seen"]["half"] == 0.5
    with pytest.raises(SottovoceError, match="metric 'half' is no function"):
        train(own_plan(), tmp_path / "none", dataset=own(), metrics={"half": 0.5})  # type: ignore[dict-item]
    assert not (tmp_path / "none").exists()


def test_a_result_is_a_table_of_its_clients(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    result = train(own_plan(), tmp_path / "run", dataset=own())
    frame = result.frame()
    assert list(frame["name"]) == ["east", "west"]
    assert list(frame["accuracy"]) == list(result["accuracy"]["seen_per_client"].values())
    assert list(frame["epsilon"]) == [row["epsilon"] for row in result["clients"]]
    assert frame["auroc"].notna().all()
    found = compare(own_plan(), dataset=own(), repeats=1)
    rows = found.frame().set_index(["row", "client"])["points"]
    assert rows["finished", "east"] == found["rows"]["finished"]["per_client"]["east"]
    assert len(rows) == 12
