"""`sottovoce check` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from sottovoce.cli.application import app
from tests.data.hospitals import AGREED, HEADER, ROWS, folder, other_rows

from .conftest import Failing

runner = CliRunner()


def test_a_clean_folder_is_a_table_and_a_verdict(tmp_path: Path) -> None:
    answer = runner.invoke(
        app, ["check", str(folder(tmp_path, north=HEADER + ROWS, west=HEADER + other_rows(1)))]
    )
    assert answer.exit_code == 0
    assert "2 clients, 4 records" in answer.stdout
    assert "nothing was charged" in answer.stdout


def test_json_is_for_programs(tmp_path: Path) -> None:
    folder(
        tmp_path, 'unit = "id"\n' + AGREED, a=HEADER.strip() + ",id\n30,120,f,benign,7\n30,120,x,benign,7\n"
    )
    answer = json.loads(runner.invoke(app, ["check", str(tmp_path), "--json"]).stdout)
    assert answer["ok"] is True
    (site,) = answer["sites"]
    assert (site["client"], site["records"], site["units"], site["unusable"]) == ("a", 2, 1, 0)
    assert site["columns"]["sex"] == {
        "missing": 0, "unreadable": 0, "commas": 0, "outside": 0, "unknown": 1, "examples": ["x"],
        "constant": False, "faults": [],
    }  # fmt: skip
    assert site["targets"] == {"benign": 2, "malignant": 0}
    assert any("malignant" in line for line in site["suspicions"])


def test_a_problem_is_one_line_that_names_client_and_column(tmp_path: Path, failing: Failing) -> None:
    folder(tmp_path, north=HEADER + ROWS, west="age,sex,diagnosis\n1,f,benign\n")
    assert "west has no column 'pressure'" in failing("check", str(tmp_path))
    assert "west has no column 'pressure'" in failing("check", str(tmp_path / "west.csv"))
    assert "west has no column 'pressure'" in failing("check", str(tmp_path), "--json")


def test_what_is_no_folder_of_sites_is_said_in_one_line(tmp_path: Path, failing: Failing) -> None:
    assert "does not exist" in failing("check", str(tmp_path / "nowhere"))
    assert "records.toml: write one" in failing("check", str(tmp_path))
    folder(tmp_path, AGREED.replace("low = 0", "low = 200"))
    assert "[columns.age] low is 200 and high is 120" in failing("check", str(tmp_path))


def test_cells_cannot_color_the_terminal(tmp_path: Path) -> None:
    folder(tmp_path, north=HEADER + "30,120,[red]\x1b[31m,benign\n90,140,m,malignant\n")
    said = runner.invoke(app, ["check", str(tmp_path)]).stdout
    assert "\x1b" not in said
    assert "[red]" in said
