"""What a federation is said to be doing: by locks that end with a process, and by what its server wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.federation.status.progress import write_run
from sottovoce.machine.files import locked
from sottovoce.report.look import SUPERVISOR, look
from sottovoce.report.status import FILE, Status

from .test_progress import Told


def seen(folder: Path) -> Status:
    found = look(folder)
    assert isinstance(found, Status)
    return found


def test_a_federation_waits_runs_fails_when_killed_and_is_finished_with_its_result(tmp_path: Path) -> None:
    told = Told(tmp_path, late=3600.0)
    assert (seen(tmp_path).state, seen(tmp_path).why) == ("running", "the server is starting")
    told.world.enrol(0)
    told.update()
    found = seen(tmp_path)
    assert (found.state, found.exit_code) == ("waiting", 4)
    assert "participant-1 has not enrolled" in found.why
    assert "goes on without them in 10 min" in found.why
    told.world.enrol_all()
    told.phase()
    told.phase()
    found = seen(tmp_path)
    assert (found.state, found.why, found.phase) == ("running", "round 2 of 2", "rounds")
    assert found.seconds_left is not None
    assert (found.counted("enrolled"), found.counted("connected"), found.participants) == (3, 3, 3)
    told.world.kill()
    found = seen(tmp_path)
    assert (found.state, found.exit_code, found.seconds_left) == ("failed", 1, None)
    assert "start it again" in found.why
    assert (found.counted("enrolled"), found.counted("connected"), found.waiting) == (3, 0, [])
    told.world.start()
    told.begin()
    told.phase()
    write_run(tmp_path, told.world.coordinator)
    assert (seen(tmp_path).state, seen(tmp_path).phase) == ("running", "models")
    told.world.kill()
    found = seen(tmp_path)
    assert (found.state, found.exit_code, found.round, found.rounds) == ("finished", 0, 2, 2)


def test_a_supervised_federation_without_a_server_waits_for_what_federate_waits_for(tmp_path: Path) -> None:
    (tmp_path / SUPERVISOR).write_text(json.dumps({"waits": "the SuperLink does not answer"}))
    assert seen(tmp_path).state == "failed"
    with locked((tmp_path / SUPERVISOR).with_suffix(".lock")):
        found = seen(tmp_path)
    assert (found.state, found.why) == ("waiting", "sottovoce federate waits: the SuperLink does not answer")


def test_looking_writes_nothing_and_does_not_open_the_store(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.update()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "server.sqlite").chmod(0)
    seen(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is damaged"),
        ("3", "is damaged"),
        ('{"format": 1}', "was written by another version"),
        ('{"format": 2}', "was made by another version, or is damaged"),
        ('{"format": 2, "about": {"colour": 1}, "history": [], "round": 0}', "made by another version"),
    ],
)
def test_what_cannot_be_read_is_unknown_in_one_line(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / FILE).write_text(content)
    found = seen(tmp_path)
    assert (found.state, found.exit_code) == ("unknown", 2)
    assert why in found.why
    assert "\n" not in found.why


def test_what_may_not_be_read_is_unknown_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_text("{}")

    def refused(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refused)
    assert seen(tmp_path).why == f"cannot read {tmp_path / FILE}: Permission denied"
