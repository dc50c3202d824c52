"""A client is kept connected: whatever ends its SuperNode, it is started again, until somebody ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sottovoce.federation.flower import joining
from sottovoce.federation.flower.joining import Connection, check_port, supernode
from sottovoce.federation.flower.running import RunFailed

TURNED_AWAY = "print('Failed to initialize: [code: 3] this node is not registered'); raise SystemExit(1)"
NOBODY_THERE = (
    "import time\nwhile True: print('Connection attempt failed, retrying', flush=True); time.sleep(.05)"
)
KEEPING = """
import sys
from pathlib import Path
from sottovoce.federation.flower.joining import Connection
Connection(sys.argv[2:], "server:1", Path(sys.argv[1]), lambda text: print(text, flush=True)).keep()
"""


def kept(program: str, folder: Path, *, until: Callable[[list[str]], bool]) -> list[str]:
    """What is said while a SuperNode is kept, `until` it is interrupted."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if until(said):
            raise KeyboardInterrupt

    connection = Connection([sys.executable, "-c", program], "server:1", folder, say)
    with pytest.raises((KeyboardInterrupt, RunFailed)):
        connection.keep(give_up=60.0)
    return said


def test_a_client_that_is_turned_away_tries_again_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real = time.sleep
    monkeypatch.setattr(joining, "FIRST_PAUSE", 0.01)

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        real(min(seconds, 0.05))
        if len([pause for pause in pauses if pause != 0.5]) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(joining.time, "sleep", sleep)
    said = kept(TURNED_AWAY, tmp_path / "none", until=lambda _: False)
    assert sum("[code: 3]" in line and not line.startswith("waiting") for line in said) == 3  # three starts
    waits = [line for line in said if "does not let this client in yet" in line]
    assert len(waits) == 1  # a line a minute
    assert "this node is not registered" in waits[0]
    growing = [pause for pause in pauses if pause != 0.5]
    assert growing == sorted(growing)
    assert growing[0] < growing[-1]


def test_a_server_that_does_not_answer_is_waited_for_until_told_to_give_up(tmp_path: Path) -> None:
    said = kept(NOBODY_THERE, tmp_path / "none", until=lambda lines: "does not answer" in lines[-1])
    assert said == ["waiting: server:1 does not answer"]  # its own lines would be one a second
    connection = Connection([sys.executable, "-c", NOBODY_THERE], "server:1", tmp_path / "none", print)
    with pytest.raises(RunFailed, match="gave up after 0 s without a connection to server:1"):
        connection.keep(give_up=0.0)


def test_a_server_that_is_gone_again_is_told_in_one_line_and_no_connection(tmp_path: Path) -> None:
    lost = f"print('SuperNode ID: 7', flush=True)\n{NOBODY_THERE}"
    said: list[str] = []
    with pytest.raises(RunFailed, match="without a connection"):
        Connection([sys.executable, "-c", lost], "server:1", tmp_path, said.append).keep(give_up=2.0)
    assert said.count("waiting: server:1 does not answer") == 1


def alive(mark: str) -> bool:
    """Whether a process that is not a zombie has this on its command line."""
    for folder in Path("/proc").iterdir():
        try:
            if (
                mark.encode() in (folder / "cmdline").read_bytes()
                and "Z (" not in (folder / "status").read_text()
            ):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_supernode_ends_with_the_command_that_keeps_it(tmp_path: Path, how: signal.Signals) -> None:
    mark = f"node-{tmp_path.name}-{os.getpid()}"
    child = f"import time; print('SuperNode', flush=True); time.sleep(600) # {mark}"
    command = [sys.executable, "-c", KEEPING, str(tmp_path / "none"), sys.executable, "-c", child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "SuperNode":
            pass
        process.send_signal(how)
        process.wait(timeout=600)
        deadline = time.monotonic() + 600
        while alive(mark):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_port_that_is_taken_is_refused_and_one_that_becomes_free_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=f"cannot listen on port {port}, it is in use: give another"):
            check_port(port, timeout=0.0)
        threading.Timer(0.3, taken.close).start()
        check_port(port, timeout=1200.0)


def test_the_command_of_a_supernode_says_what_its_owner_said(tmp_path: Path) -> None:
    config = {"partition-id": 1, "directory": "/a b", "finish": True, "epsilon": 8.0}
    files = {name: tmp_path / name for name in ("authority", "key", "trusted")}
    _, *words = supernode("host:8700", config, **files, port=9094)
    assert words[words.index("--node-config") + 1] == (
        'partition-id=1 directory="/a b" finish=true epsilon=8.0'
    )
    assert words[words.index("--root-certificates") + 1] == str(tmp_path / "authority")
    assert words[words.index("--auth-supernode-private-key") + 1] == str(tmp_path / "key")
    assert words[words.index("--trusted-entities") + 1] == str(tmp_path / "trusted")
    assert "--insecure" not in words
    assert "--insecure" in supernode("host:1", {}, authority=None, key=None, trusted=None, port=1)
