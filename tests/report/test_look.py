"""What a run is said to be doing: running as long as a process trains in it, failed when that was ended."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from sottovoce.report.look import look
from sottovoce.report.status import EXIT_CODES, Status
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import train
from tests.small import small_plan

TRAIN = """
import sys
from sottovoce.run.training import train
from tests.small import small_plan
train(small_plan(rounds=int(sys.argv[2]), seeded=False), sys.argv[1], resume=len(sys.argv) > 3)
"""


@contextmanager
def training(out: Path, rounds: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that trains."""
    with subprocess.Popen([sys.executable, "-c", TRAIN, str(out), str(rounds), *options]) as process:
        try:
            yield process
        finally:
            process.kill()


def waited(out: Path, process: subprocess.Popen[bytes], rounds: int) -> Status:
    """The status once so many rounds are over."""
    while (found := look(out)).round < rounds:
        assert process.poll() is None
        time.sleep(0.05)
    return found


def test_a_run_is_running_while_a_process_trains_failed_when_it_was_killed_and_finished_at_its_end(
    tmp_path: Path,
) -> None:
    out, rounds = tmp_path / "run", 2_000
    assert look(out).state == "unknown"
    with training(out, rounds) as process:
        found = waited(out, process, 3)
        assert (found.state, found.phase, found.rounds) == ("running", "rounds", rounds)
        assert found.seconds_left is not None
        assert found.seconds_left > 0
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found = look(out)
    assert (found.state, found.exit_code) == ("failed", 1)
    assert "resume it" in found.why
    assert found.seconds_left is None
    with training(out, rounds, "resume") as process:
        assert waited(out, process, found.round + 1).state == "running"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("status") / "run"
    train(small_plan(seeded=False, context="labels"), out)
    return out


def test_a_finished_run_says_what_it_has_spent_and_sent(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    found = look(finished)
    assert (found.state, found.exit_code, found.phase) == ("finished", 0, "finished")
    assert (found.round, found.rounds) == (4, 4)
    assert found.bytes_up == result["uplink"]["total_bytes"]
    assert found.bytes_down == result["downlink"]["bytes"]
    assert found.epsilon["target"] == result["epsilon"]["target"]
    assert found.epsilon["spent"] == pytest.approx(result["epsilon"]["spent_max"])
    spent = found.epsilon["spent"]
    for kind in ("context", "gradient"):
        assert 0 < (found.epsilon[kind] or 0) < (spent or 0)
    assert found.accuracy["round"] == 4
    last = json.loads((finished / "rounds.jsonl").read_text().splitlines()[-1])
    assert found.accuracy["seen"] == last["seen"]
    assert [line["round"] for line in found.history] == [1, 2, 3, 4]
    assert "clients" not in found.history[0]  # nothing about a single one
    assert json.loads(json.dumps(asdict(found)))["history"][0]["bytes_up"] > 0


def test_asking_changes_nothing_and_keeps_nobody_from_training(finished: Path) -> None:
    def content() -> dict[str, tuple[int, bytes]]:
        return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in finished.iterdir() if p.is_file()}

    before = content()
    with RunDirectory(finished).locked():
        assert look(finished).state == "running"
    assert look(finished).state == "finished"
    assert content() == before


def test_whoever_begins_to_train_waits_for_those_who_only_ask(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.lock_file.touch()
    with directory.lock_file.open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.3, fcntl.flock, [asking, fcntl.LOCK_UN]).start()
        with directory.locked():
            assert look(tmp_path).state == "unknown"  # there is no plan yet


def test_of_a_run_without_privacy_no_epsilon_is_said(tmp_path: Path) -> None:
    train(small_plan(epsilon=float("inf"), rounds=1), tmp_path / "run")
    assert look(tmp_path / "run").epsilon == {"target": None}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("status.json", "{", "damaged"),
        ("status.json", "[]", "damaged"),
        ("status.json", '{"format": 1}', "written by another version"),
        ("status.json", '{"format": 2}', "made by another version, or is damaged"),
        ("status.json", '{"format": 2, "state": "running", "why": "", "colour": 1}', "another version"),
        ("result.json", "{", "damaged"),
        ("rounds.jsonl", "what\n", "damaged"),
        ("rounds.jsonl", "{}\n", "damaged"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_the_reason_is_one_line(
    finished: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / name).write_text(text)
    found = look(run)
    assert (found.state, found.exit_code) == ("unknown", 2)
    assert said in found.why
    assert "\n" not in found.why


def test_a_file_and_an_empty_folder_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a directory" in look(tmp_path / "file").why
    assert "holds no run" in look(tmp_path).why


def test_a_run_from_before_there_was_a_status_is_told_by_its_rounds_and_its_result(
    finished: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "status.json").unlink()
    found, whole = look(run), look(finished)
    assert (found.state, found.why, found.dataset, found.rounds) == (
        *(whole.state, whole.why, whole.dataset),
        whole.rounds,
    )
    assert (found.history, found.bytes_up, found.accuracy) == (whole.history, whole.bytes_up, whole.accuracy)
    assert found.epsilon["spent"] == pytest.approx(whole.epsilon["spent"])
    (run / "result.json").unlink()
    assert (look(run).state, look(run).round) == ("failed", 4)
    with RunDirectory(run).locked():
        assert look(run).state == "running"


def test_a_status_is_for_the_owner_and_has_nothing_of_a_single_client(finished: Path) -> None:
    path = finished / "status.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "participant-" not in path.read_text()


def test_a_run_that_was_moved_finds_its_ledger(finished: Path, tmp_path: Path) -> None:
    assert look(shutil.copytree(finished, tmp_path / "run")).epsilon == look(finished).epsilon


def test_a_ledger_that_cannot_be_read_leaves_the_rest_known(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    told = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**told, "ledger": str(tmp_path / "none.sqlite")}))
    found = look(run)
    assert found.state == "finished"
    assert found.epsilon["spent"] == pytest.approx(look(finished).epsilon["spent"])
    assert not (tmp_path / "none.sqlite").exists()


def test_a_ledger_is_read_while_its_owner_writes(finished: Path) -> None:
    with sqlite3.connect(finished / "ledger.sqlite", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert look(finished).epsilon["spent"]
        writer.execute("ROLLBACK")


def test_every_state_has_an_exit_code_of_its_own() -> None:
    assert EXIT_CODES == {"finished": 0, "failed": 1, "unknown": 2, "running": 3, "waiting": 4}
