"""The command that says what a run is doing, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.run.directory import RunDirectory


def test_status_tells_people_and_scripts_that_a_run_is_finished_or_running(run: Path) -> None:
    told = CliRunner().invoke(app, ["status", str(run)])
    assert told.exit_code == 0
    assert "finished" in told.stdout
    assert "ε spent in this run" in told.stdout
    with RunDirectory(run).locked():
        told = CliRunner().invoke(app, ["status", str(run), "--json"])
    assert told.exit_code == 3
    assert json.loads(told.stdout)["state"] == "running"


@pytest.mark.parametrize("json_", [True, False])
def test_status_of_what_is_no_run_is_one_line_or_one_object_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], json_: bool
) -> None:
    told = CliRunner().invoke(app, ["status", str(tmp_path), *(["--json"] if json_ else [])])
    assert told.exit_code == 2
    if json_:
        assert json.loads(told.stdout)["state"] == "unknown"
    else:
        assert told.stdout == ""
        assert "holds no run" in told.stderr
