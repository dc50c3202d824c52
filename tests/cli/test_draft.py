"""`sottovoce draft` as a user meets it: asked at a terminal, or a template; marks for what it sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli import data as command
from sottovoce.cli.application import app
from sottovoce.data import Description

from .conftest import Failing

runner = CliRunner()
SITE = "id,age,sex,seen,note,ill\n1,30,f,2020-01-02,x,no\n2,40,m,2021-01-02,y,yes\n3,44,m,2021-01-02,y,yes\n"
ANSWERS = ["ill", "id", "classes", "no, yes", "number", "0", "120", "sx", "category", "f, m", "date",
           "2020-01-01", "soon", "2029-12-31", "text"]  # fmt: skip


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    (tmp_path / "north.csv").write_text(SITE)
    return tmp_path


def test_a_person_is_asked_column_by_column(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "attended", lambda: True)
    answer = runner.invoke(app, ["draft", str(sites)], input="\n".join(ANSWERS) + "\n")
    assert answer.exit_code == 0, answer.output
    assert "choose from number, category, date, text" in answer.stderr  # after "sx"
    agreed = Description.load(sites / "records.toml")
    assert (agreed.unit, agreed.target.names.values, agreed.looked_up) == ("id", ("no", "yes"), [])
    assert list(agreed.columns) == ["age", "sex", "seen", "note"]
    assert runner.invoke(app, ["check", str(sites)]).exit_code == 0


def test_a_machine_gets_a_template_with_blanks(sites: Path, failing: Failing) -> None:
    answer = runner.invoke(app, ["draft", str(sites), "--target", "ill", "--json"])
    assert json.loads(answer.stdout) == {
        "records": str(sites / "records.toml"), "blanks": 7, "looked_up": False,
    }  # fmt: skip
    assert "task is still to be filled in" in failing("check", str(sites))
    assert "is there already" in failing("draft", str(sites))


def test_looking_says_what_it_costs(sites: Path) -> None:
    answer = runner.invoke(
        app, ["draft", str(sites / "north.csv"), "--look", "--target", "ill", "--unit", "id"]
    )
    assert answer.exit_code == 0, answer.output
    assert "no ε covers it" in answer.stderr
    assert "looked up in north.csv" in (sites / "records.toml").read_text()
    shown = runner.invoke(app, ["check", str(sites)])
    assert shown.exit_code == 0
    assert "no ε covers" in shown.stdout
    doubts = json.loads(runner.invoke(app, ["plan", f"dataset={sites}", "channel=direct", "--json"]).stdout)[
        "doubts"
    ]
    assert any("values of ill; " in doubt and ": looked up in records" in doubt for doubt in doubts)


def test_a_dictionary_needs_no_site(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "codebook.csv").write_text("column,low,high,values,role\nage,0,120,,\nill,,,no|yes,target\n")
    words = ["draft", str(tmp_path / "sites"), "--dictionary", str(tmp_path / "codebook.csv")]
    assert runner.invoke(app, words).exit_code == 0
    assert list(Description.load(tmp_path / "sites" / "records.toml").columns) == ["age"]


def test_what_cannot_be_drafted_is_said_in_a_line(sites: Path, failing: Failing) -> None:
    assert "does not exist" in failing("draft", str(sites / "nowhere"))
    assert "--target COLUMN" in failing("draft", str(sites), "--look")
    assert "choose one of them" in failing(
        "draft", str(sites), "--look", "--dictionary", str(sites / "north.csv")
    )
    assert "has no column 'dead'" in failing("draft", str(sites), "--target", "dead")
    (sites / "empty").mkdir()
    assert "has no file of a site" in failing("draft", str(sites / "empty"))
