"""The page that takes a reader to a working federation, run as it is written."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from .processes import BIN, DEPLOY, ENVIRONMENT, nginx

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


PORTS = (8701, 8700, 9710, 9711, 8444)
"""Where what keeps running listens, in the order of the page."""


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def blocks() -> list[tuple[str, bool]]:
    """Commands of the page in order, and whether they keep running."""
    found = re.findall(r"^```bash( keeps-running)?\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [(text, bool(mark)) for mark, text in found]


@pytest.mark.slow
def test_every_command_of_the_page_works_in_order(tmp_path: Path) -> None:
    nginx()
    clone = tmp_path / "clone" / "deploy"
    clone.mkdir(parents=True)
    for file in ("nginx.conf", "sign_app.py"):
        (clone / file).write_text((DEPLOY / file).read_text().replace("0.0.0.0", "127.0.0.1"))
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    setting = "export SERVER=127.0.0.1 CLONE=$PWD/clone FLWR_HOME=$PWD/flwr\n"
    running: list[subprocess.Popen[bytes]] = []
    assert not any(map(listening, PORTS)), "somebody else listens on the ports of the page"
    try:
        for text, keeps_running in blocks():
            script = setting + text.replace(
                "export SERVER=server.example.org CLONE=$HOME/sottovoce\n", ""
            ).replace("0.0.0.0", "127.0.0.1")
            if keeps_running:
                log = (tmp_path / f"log-{len(running)}").open("wb")
                process = subprocess.Popen(
                    ["bash", "-ec", script],
                    cwd=tmp_path,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                running.append(process)
                while not listening(PORTS[len(running) - 1]):  # pytest's limit is for hangs
                    assert process.poll() is None, (tmp_path / f"log-{len(running) - 1}").read_text()[-2000:]
                    time.sleep(0.2)
            else:
                done = subprocess.run(
                    ["bash", "-ec", script],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=900,
                    check=False,
                )
                assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        for model in ("west/model", "north/personal", "south/personal"):
            assert len(load_file(tmp_path / f"{model}.safetensors")) == 2, model
        assert len((tmp_path / "north" / "predictions.csv").read_text().splitlines()) == 301
        assert (tmp_path / "superlink.db").stat().st_mode & 0o077 == 0
        assert "round 3 of 3" in (tmp_path / "run" / "federation.log").read_text()
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_every_test_that_the_operations_page_names_is_there() -> None:
    page = (PAGE.parent / "operations.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    tests = "".join(path.read_text() for path in PAGE.parents[1].glob("tests/**/test_*.py"))
    assert len(named) >= 9
    assert [name for name in named if f"def {name}(" not in tests] == []
