"""`sottovoce compare` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from sottovoce.cli.application import app
from tests.data.hospitals import folder
from tests.run.test_comparison import site

from .conftest import Failing

runner = CliRunner()


def test_compare_prints_rows_and_writes_a_page(tmp_path: Path) -> None:
    hospitals = folder(tmp_path / "hospitals", north=site(1, 90, 30), south=site(2, 60, -30))
    words = ["compare", f"dataset={hospitals}", "epsilon=4", "rounds=2", "--repeats", "2"]
    answer = runner.invoke(app, [*words, "--out", str(tmp_path / "c"), "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert {"alone", "shared", "blend", "home_alone", "finished"} < set(found["rows"])
    assert found["rows"]["blend"]["future"] is None
    assert (tmp_path / "c" / "compare.html").exists()
    shown = runner.invoke(app, [*words, "--out", str(tmp_path / "d")]).stdout
    assert "by joining" in shown
    assert "alone at home" in shown
    assert "not covered by ε" in shown


def test_compare_refuses_in_a_line(tmp_path: Path, failing: Failing) -> None:
    said = failing("compare", "dataset=mnist-small", "preset=tuned", "--out", str(tmp_path / "c"))
    assert "method=blend" in said
