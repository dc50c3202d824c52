"""The commands of a real federation refuse in one line what they cannot do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.errors import SottovoceError
from sottovoce.onboarding.tokens import new_token

from .conftest import Failing


def test_a_missing_package_is_named_with_what_to_install(
    run: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert failing("serve", str(run)).endswith("pip install 'sottovoce[serve]'")


def test_one_plan_file_is_enough(failing: Failing) -> None:
    assert "second plan file" in failing("federate", "a.toml", "--plan", "b.toml", "--out", "app")


def test_nothing_is_served_unencrypted_beyond_this_machine(run: Path, failing: Failing) -> None:
    pytest.importorskip("uvicorn")
    assert "unencrypted" in failing("serve", str(run), "--host", "0.0.0.0")


def test_the_command_serves_nothing_unencrypted_to_the_world(tmp_path: Path) -> None:
    new_token(tmp_path, "alice")
    for options, reason in (
        (["--host", "0.0.0.0"], "unencrypted"),
        (["--certificate", "server.crt"], "go together"),
    ):
        result = CliRunner().invoke(app, ["serve", str(tmp_path), *options])
        assert isinstance(result.exception, SottovoceError)
        assert reason in str(result.exception)
