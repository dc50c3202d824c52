"""A finished run of the command line, and the one line that it prints when it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli import main
from sottovoce.cli.application import app
from tests.small import SMALL

Failing = Callable[..., str]
SETTINGS = [
    f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in SMALL.items()
]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    answer = CliRunner().invoke(app, ["train", *SETTINGS, "--out", str(out), "--json"])
    assert answer.exit_code == 0, answer.output
    return out


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Failing:
    """Runs a command that must fail; returns its line."""

    def fail(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["sottovoce", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("error: ")
        return last

    return fail
