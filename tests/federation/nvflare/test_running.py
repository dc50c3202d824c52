"""A job is submitted again until all have their models; who failed twice is left out, who comes is let in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sottovoce.federation.nvflare import LOST, running, write_job
from sottovoce.federation.nvflare.running import run_job
from sottovoce.federation.status import supervisor
from sottovoce.federation.status.supervisor import RunFailed
from tests.federation.world import QUICK, World


class Server:
    """An NVFlare server as its administrator sees it: who is connected, and what becomes of each job."""

    def __init__(self, *fates: str | Callable[[Server], str]) -> None:
        self.fates, self.connected = list(fates), ["client-0", "client-1", "client-2"]
        self.submitted: list[dict[str, Any]] = []
        self.aborted = 0

    def get_connected_client_list(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.connected]

    def submit_job(self, folder: str) -> str:
        self.submitted.append(json.loads((Path(folder) / "meta.json").read_text()))
        return f"job-{len(self.submitted)}"

    def get_job_meta(self, run: str) -> dict[str, str]:
        fate = self.fates.pop(0)
        return {"status": fate if isinstance(fate, str) else fate(self)}

    def abort_job(self, run: str) -> None:
        self.aborted += 1

    def close(self) -> None: ...


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    world = World(tmp_path, **QUICK)
    monkeypatch.setattr(supervisor.time, "sleep", lambda _: None)
    return write_job(world.agreement, tmp_path / "job", run_directory=tmp_path / "run", simulated=True)


def run(server: Server, job: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said until the status says that all is finished, which is after the last fate."""
    said: list[str] = []
    monkeypatch.setattr(running, "_session", lambda kit: server)
    read = running.look

    def status(directory: Path) -> Any:
        phase = "rounds" if server.fates else "finished"
        return SimpleNamespace(phase=phase, counted=lambda _: 3) if server.submitted else read(directory)

    monkeypatch.setattr(running, "look", status)
    run_job(job, job, say=said.append)
    return said


def test_a_job_that_ended_early_is_submitted_again(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("RUNNING", "FINISHED:EXECUTION_EXCEPTION", "RUNNING")
    said = run(server, job, monkeypatch)
    assert len(server.submitted) == 2
    assert any("ended as FINISHED:EXECUTION_EXCEPTION: continuing" in line for line in said)
    assert server.submitted[0]["deploy_map"] == {"app": ["server", "client-0", "client-1", "client-2"]}


def test_a_site_that_comes_late_is_taken_in(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def arrives(server: Server) -> str:
        server.connected.append("client-3")
        return "RUNNING"

    server = Server(arrives, "RUNNING")
    run(server, job, monkeypatch)
    assert server.aborted == 1
    assert "client-3" in server.submitted[1]["deploy_map"]["app"]


def test_a_site_for_which_two_jobs_ended_is_left_out_and_taken_back(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def falls(server: Server) -> str:
        (job.parent / "run" / LOST).write_text("client-1")
        return "FINISHED:EXECUTION_EXCEPTION"

    def rests(server: Server) -> str:
        monkeypatch.setattr(running, "GRACE_SECONDS", 0.0)
        monkeypatch.setattr(
            running.time, "monotonic", lambda: time.perf_counter() + 10 * running.REST_SECONDS
        )
        return "RUNNING"

    monkeypatch.setattr(running, "GRACE_SECONDS", -1.0)
    server = Server(falls, falls, rests, "RUNNING")
    said = run(server, job, monkeypatch)
    there = ["client-1" in meta["deploy_map"]["app"] for meta in server.submitted]
    assert there[:3] == [True, True, False]
    assert there[-1]
    assert any("client-1 is left out" in line for line in said)


def test_what_is_no_job_or_no_administrator_s_kit_is_refused_in_one_line(job: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="holds no job"):
        run_job(tmp_path / "nowhere", tmp_path)
    with pytest.raises(RunFailed, match="no administrator's startup kit"):
        run_job(job, tmp_path)
