"""The commands that say what a run is doing, for people and for scripts."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.cli.status import wait_for
from sottovoce.run.directory import RunDirectory
from tests.federation.status.test_progress import Told
from tests.federation.test_contact import Watched
from tests.federation.world import QUICK
from tests.report.live.test_page import request

from .conftest import Failing


def test_status_tells_people_and_scripts_that_a_run_is_finished_or_running(run: Path) -> None:
    told = CliRunner().invoke(app, ["status", str(run)])
    assert told.exit_code == 0
    assert "finished" in told.stdout
    assert "ε spent in this run" in told.stdout
    with RunDirectory(run).locked():
        told = CliRunner().invoke(app, ["status", str(run), "--json"])
    assert told.exit_code == 3
    found = json.loads(told.stdout)
    assert found["state"] == "running"
    assert "history" not in found


@pytest.mark.parametrize(
    ("file", "command"), [("plan.toml", "train --resume --out"), ("server.sqlite", "federate --app APP --on")]
)
def test_status_adds_the_command_that_continues_what_was_killed(
    run: Path, tmp_path: Path, file: str, command: str
) -> None:
    (tmp_path / "killed").mkdir()
    shutil.copy(run / "plan.toml", tmp_path / "killed" / file)
    told = CliRunner().invoke(app, ["status", str(tmp_path / "killed")])
    assert told.exit_code == 1
    assert f"sottovoce {command}" in " ".join(told.stdout.replace("│", " ").split())


@pytest.mark.parametrize("json_", [True, False])
def test_status_of_what_is_no_run_is_one_line_or_one_object_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_: bool
) -> None:
    monkeypatch.setattr("os.access", lambda *_, **__: False)  # nor may it be read
    told = CliRunner().invoke(app, ["status", str(tmp_path), *(["--json"] if json_ else [])])
    assert told.exit_code == 2
    if json_:
        assert json.loads(told.stdout)["state"] == "unknown"
    else:
        assert told.stdout == ""
        assert "holds no run" in told.stderr


def test_watch_serves_the_page_until_ctrl_c_and_says_where(run: Path) -> None:
    program = "from sottovoce.cli import main; main()"
    command = [sys.executable, "-c", program, "watch", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = process.stdout.readline().split()[0]
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(request(link), timeout=600) as answer:
                assert b"Sottovoce, live" in answer.read()
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=600) == 0


def test_watch_refuses_in_one_line(run: Path, tmp_path: Path, failing: Failing) -> None:
    assert "holds no run" in failing("watch", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "in use" in failing("watch", str(run), "--port", str(taken.getsockname()[1]))


def test_status_of_a_federation_says_what_it_waits_for(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.world.enrol(0)
    told.update(connected=(0,))
    shown = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert shown.exit_code == 4
    text = " ".join(shown.stdout.split())
    for part in ("participant-1 has not enrolled", "1 enrolled, 1 connected of 3", "contexts, of enrolment"):
        assert part in text
    found = json.loads(CliRunner().invoke(app, ["status", str(tmp_path), "--json"]).stdout)
    assert (found["state"], found["clients"][0]["enrolled"]) == ("waiting", True)


def test_status_at_a_client_says_what_its_ledger_has_left(tmp_path: Path) -> None:
    world = Watched(tmp_path, **QUICK)
    world.enrol(0)
    shown = CliRunner().invoke(app, ["status", str(world.directory(0))])
    assert shown.exit_code == 4
    assert "ε 0 of 8 spent; this run will spend 5.3" in " ".join(shown.stdout.split())
    found = json.loads(CliRunner().invoke(app, ["status", str(world.directory(0)), "--json"]).stdout)
    assert found["epsilon"]["budget"] == 8


def test_a_token_for_the_page_is_shown_once_and_revoked(tmp_path: Path, failing: Failing) -> None:
    folder = str(tmp_path / "run")  # before there is a run
    made = CliRunner().invoke(app, ["watch", folder, "--new-token", "carol", "--json"])
    token = json.loads(made.stdout)["token"]
    kept = (tmp_path / "run" / "watch-tokens.txt").read_text()
    assert token not in kept
    assert "carol" in kept
    assert CliRunner().invoke(app, ["watch", folder, "--revoke", "carol"]).exit_code == 0
    assert "nobody called carol has a token" in failing("watch", folder, "--revoke", "carol")


def test_waiting_ends_when_there_is_something_to_see(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def appear(_: float) -> None:
        shutil.copytree(run, tmp_path / "run")

    monkeypatch.setattr("sottovoce.cli.status.time.sleep", appear)
    wait_for(tmp_path / "run", "finished")
    assert "waiting: " in capsys.readouterr().err
