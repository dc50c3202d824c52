"""Commands of the studies: there in a clone, and elsewhere one line that says what they need."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sottovoce.cli import studies
from sottovoce.cli.application import app
from sottovoce.errors import SottovoceError


def test_a_clone_has_the_commands() -> None:
    for command in ("reproduce", "bench"):
        answer = CliRunner().invoke(app, [command, "--help"])
        assert answer.exit_code == 0, answer.output
        assert "Options" in answer.output


@pytest.mark.parametrize("words", [["bench"], ["bench", "channel", "--json"], ["reproduce", "all", "--help"]])
def test_without_a_clone_they_say_what_they_need(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "CLONE", tmp_path)
    bare = typer.Typer()
    studies.register(bare)
    answer = CliRunner().invoke(bare, words)
    assert isinstance(answer.exception, SottovoceError)
    assert str(answer.exception).startswith("the studies are not in the installed package: clone")


def test_a_report_of_a_reproduction_needs_a_clone_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.json").write_text("[]")
    monkeypatch.setattr(studies, "CLONE", tmp_path)
    answer = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert "clone the repository" in str(answer.exception)
