"""The story of a folder of sites, every command of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sottovoce import data
from sottovoce.cli import quickstart
from sottovoce.cli.application import app
from sottovoce.personal import PersonalModel

from .conftest import Failing

runner = CliRunner()
TRAINED = {"budapest", "cleveland", "switzerland"}


def test_the_story_of_tables_runs_from_check_to_personalize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "SETTINGS", [*quickstart.SETTINGS, "rounds=3"])
    out = tmp_path / "story"
    answer = runner.invoke(app, ["quickstart", "tables", "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    said = [line for line in answer.stdout.splitlines() if line.startswith("$ sottovoce")]
    names = [line.split()[2] for line in said]
    assert names == ["check", "compare", "train", "models", "predict", "personalize", "finish", "ledger"]
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == quickstart.SOME
    assert all(row["decision"] in ("healthy", "disease") for row in rows)
    assert {path.stem for path in (out / "models").glob("*.safetensors")} == {*TRAINED, quickstart.NEWCOMER}
    joined = out / "models" / f"{quickstart.NEWCOMER}.safetensors"
    assert PersonalModel.read(joined).origin.client == quickstart.NEWCOMER
    # The newcomer had no diagnosis, then a few: its home model is made of those and stays at home.
    assert "diagnosis" not in (out / f"{quickstart.NEWCOMER}.csv").read_text()
    home = PersonalModel.read(out / f"{quickstart.NEWCOMER}.home.safetensors", home=True)
    assert home.home
    assert len((out / "labelled.csv").read_text().splitlines()) == quickstart.LABELLED + 1
    # The day has cost each hospital what its one run was planned for: the rehearsal has ledgers of its own.
    result: dict[str, Any] = json.loads((out / "run" / "result.json").read_text())
    assert result["epsilon"]["spent_max"] == pytest.approx(4.0, abs=1e-3)
    assert not (data.SHIPPED / "heart" / "ledger.sqlite").exists()
    assert (out / "hospitals" / "ledger.sqlite").exists()


def test_an_unknown_story_or_one_that_was_told_is_refused(tmp_path: Path, failing: Failing) -> None:
    assert "did you mean 'tables'?" in failing("quickstart", "table")
    (tmp_path / "hospitals").mkdir()
    assert "already holds" in failing("quickstart", "tables", "--out", str(tmp_path))
