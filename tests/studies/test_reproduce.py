"""The command: runs what is missing, prints ours beside theirs, writes index and report, says what failed."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from studies.cells import open_cells
from studies.index import read_index
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.errors import SottovoceError
from studies import reproduce


@pytest.fixture
def tiny(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "open_cells", partial(open_cells, folder=tables))


@pytest.mark.usefixtures("tiny")
def test_a_table_is_made_shown_and_made_only_once(tmp_path: Path) -> None:
    command = ["reproduce", "main-table", "--epsilon", "8", "--seeds", "41", "--jobs", "1"]
    command += ["--out", str(tmp_path)]
    first = CliRunner().invoke(app, [*command, "--json"])
    assert first.exit_code == 0
    printed = json.loads(first.stdout)
    assert printed["problems"] == []
    assert [cell["label"] for cell in printed["cells"]] == ["Ours", "Factorized", "Replay", "Labels"]
    assert printed["cells"] == read_index(tmp_path / "index.json")
    assert "40.0 ± 2.0" in (tmp_path / "reproduction.html").read_text()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    assert len(times) == 4
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 0
    assert "4 runs, 4 of them finished before" in second.output
    assert "(40.0 ± 2.0," in second.stdout
    assert "used" in second.stdout
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.usefixtures("tiny")
def test_a_run_that_fails_is_named_in_the_error(tmp_path: Path) -> None:
    command = ["reproduce", "main-table", "--dataset", "no-such-data", "--seeds", "41", "--jobs", "1"]
    result = CliRunner().invoke(app, [*command, "--epsilon", "8", "--out", str(tmp_path)])
    assert isinstance(result.exception, SottovoceError)
    assert "no-such-data" in str(result.exception)


@pytest.mark.usefixtures("tiny")
def test_a_cluster_without_ray_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["reproduce", "main-table", "--cluster", "auto", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, SottovoceError)
    assert "pip install 'sottovoce[cluster]'" in str(result.exception)


@pytest.mark.parametrize("seeds", ["x", "45-41", "41,", ""])
def test_seeds_that_name_nothing_are_refused(seeds: str) -> None:
    with pytest.raises(SottovoceError, match="41-45 or 41,43"):
        reproduce._seeds(seeds)
