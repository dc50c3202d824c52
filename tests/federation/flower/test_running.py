"""`sottovoce federate` waits for whatever is not there, says for what, and gives up only when told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation.flower import running
from sottovoce.federation.flower.running import run_app
from sottovoce.federation.status import supervisor
from sottovoce.federation.status.supervisor import News, RunFailed
from sottovoce.machine.files import FileError, locked
from sottovoce.report.look import SUPERVISOR, Minutely, look
from sottovoce.report.status import Status

SUBMITTED = {"success": True, "run-id": "7"}


def listed(status: str) -> dict[str, Any]:
    return {"runs": [{"run-id": "7", "status": status}]}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    where = json.dumps(str(tmp_path / "run"))
    (folder / "pyproject.toml").write_text(f"[tool.flwr.app.config]\nrun-directory = {where}\n")
    return folder


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any] | None]]:
    """What `flwr` answers, one after the other; no time passes."""
    given: list[dict[str, Any] | None] = []
    monkeypatch.setattr(running, "_flwr", lambda *_: given.pop(0))
    monkeypatch.setattr(supervisor.time, "sleep", lambda _: None)
    yield given
    assert given == []


def test_a_superlink_that_is_not_there_yet_or_goes_away_is_waited_for(
    app: Path, answers: list[dict[str, Any] | None]
) -> None:
    said: list[str] = []
    answers += [None] * 50 + [SUBMITTED, None, listed("running"), None, listed("finished:failed")]
    answers += [SUBMITTED, listed("finished:completed")]
    assert run_app(app, "here", say=said.append) == "7"
    assert said[:2] == ["waiting: the SuperLink does not answer", "run 7 submitted"]
    assert said.count("waiting: the SuperLink does not answer") <= 3  # fifty tries in less than a minute
    assert any("ended as finished:failed: continuing" in line for line in said)


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ('{"success": false, "error-message": "Connection to the SuperLink is unavailable."}', None),
        ("no JSON at all", None),
        (
            '{"success": false, "error-message": "no such app"}',
            {"success": False, "error-message": "no such app"},
        ),
    ],
)
def test_a_superlink_that_is_not_reached_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, answer: dict[str, Any] | None
) -> None:
    flwr = tmp_path / "flwr"
    flwr.write_text(f"#!/bin/sh\necho '{told}'\n")
    flwr.chmod(0o700)
    monkeypatch.setattr(running, "program", lambda _: str(flwr))
    assert running._flwr("ls", "here") == answer


def test_it_gives_up_when_told_and_leaves_its_place_to_another(
    app: Path, answers: list[dict[str, Any] | None]
) -> None:
    answers.append(None)
    with pytest.raises(
        RunFailed, match=r"gave up after 0 s without progress \(the SuperLink does not answer"
    ):
        run_app(app, "here", give_up=0.0)
    answers += [SUBMITTED, listed("finished:completed")]
    assert run_app(app, "here") == "7"


def test_one_command_at_a_time_works_on_a_run_and_status_says_what_it_waits_for(
    app: Path, answers: list[dict[str, Any] | None], tmp_path: Path
) -> None:
    seen: list[Status] = []

    def note(_: str) -> None:
        seen.append(look(tmp_path / "run"))

    answers += [None, SUBMITTED, listed("finished:completed")]
    run_app(app, "here", say=note)
    assert {found.state for found in seen} == {"waiting"}
    assert seen[-1].why == "sottovoce federate waits: the SuperLink does not answer"
    with (
        locked((tmp_path / "run" / SUPERVISOR).with_suffix(".lock")),
        pytest.raises(FileError, match="another"),
    ):
        run_app(app, "here")


def test_a_server_that_an_earlier_command_left_at_work_is_watched_to_its_end(
    app: Path, answers: list[dict[str, Any] | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    held = [True, True, True, False]
    monkeypatch.setattr(supervisor, "is_locked", lambda _: held.pop(0))
    waits = replace(status(2), state="waiting", why="late", waiting=[{"name": "site-0", "why": "is late"}])
    monkeypatch.setattr(supervisor, "look", lambda _: waits)
    answers += [SUBMITTED, listed("finished:completed")]
    run_app(app, "here", say=said.append)
    assert held == []
    assert said[0] == "a server works on this run already: watching it"
    assert len(said) == len(set(said))  # nothing twice within a minute
    assert {"waiting: late", "run 7 submitted"} <= set(said)


def test_a_run_directory_that_may_not_be_made_is_refused_in_one_line(app: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in its place")
    with pytest.raises(RunFailed, match="the run directory of the app"):
        run_app(app, "here")


@pytest.mark.parametrize("text", [None, "[", "[tool]\n", "[tool.flwr.app]\nconfig = 3\n"])
def test_what_is_no_app_is_refused_in_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(RunFailed, match="app") as refused:
        run_app(tmp_path, "here")
    assert "\n" not in str(refused.value)


def status(enrolled: int, phase: str = "contexts", round: int = 0) -> Status:
    clients = [
        {"name": f"site-{i}", "enrolled": i < enrolled, "connected": True, "late": False} for i in (0, 1)
    ]
    return Status("run", "running", "", clients=clients, participants=2, phase=phase, round=round, rounds=3)


def test_enrolment_is_shown_as_it_happens() -> None:
    said: list[str] = []
    news = News(said.append)
    news.tell(Status("run", "running", "the server is starting"))
    for found in (status(0), status(0), status(1), status(2), status(2, "rounds"), status(2, "rounds", 1)):
        news.tell(found)
    assert said == [
        "enrolled: nobody (0 of 2); missing: site-0, site-1",
        "phase: contexts",
        "enrolled: site-0 (1 of 2); missing: site-1",
        "enrolled: site-1 (2 of 2)",
        "round 1 of 3",
    ]


def test_the_same_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    minutely = Minutely(said.append)
    for second in range(121):
        monkeypatch.setattr("sottovoce.report.look.time.monotonic", lambda at=second: 1000.0 + at)
        minutely.say("waiting")
    assert said == ["waiting"] * 3
    minutely.say("waiting for somebody else")
    assert said[-1] == "waiting for somebody else"
