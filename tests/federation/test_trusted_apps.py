"""A client that trusts a key runs only apps signed with it, whatever the operator of the server submits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .probe import write_probe
from .processes import BIN, DEPLOY, Processes
from .test_door import SECRET, start_node

pytestmark = pytest.mark.slow

SIGNING = (sys.executable, str(DEPLOY / "sign_app.py"))


def tool(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=600).stdout


def answer(processes: Processes, name: str) -> bytes:
    """Runs the app `name` as the operator and returns what came back."""
    loot = processes.folder / f"loot-{name}"
    processes.flwr("run", str(processes.folder / name), "here")
    processes.wait(f"an answer to {name}", lambda: loot.exists() and loot.stat().st_size > 0, 90.0)
    processes.pause(1.0)
    return loot.read_bytes()


def test_even_the_operator_of_the_server_cannot_run_an_app_that_no_trusted_key_signed(tmp_path: Path) -> None:
    for name in ("read", "unread"):
        write_probe(tmp_path / name, tmp_path / f"loot-{name}")
    for key in ("reader", "stranger"):
        tool(tmp_path, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    for name, key in (("read", "reader"), ("unread", "stranger")):
        tool(tmp_path, str(BIN / "flwr"), "build", "--app", name)
        [fab] = tmp_path.glob("*.fab")
        (tmp_path / f"{name}.json").write_text(tool(tmp_path, *SIGNING, "sign", key, fab.name))
        fab.unlink()
    (tmp_path / "trusted.yaml").write_text(tool(tmp_path, *SIGNING, "trust", "reader.pub"))
    with Processes(tmp_path, tls=True) as processes:
        processes.start_superlink()
        processes.register_nodes(1)
        start_node(processes, processes.start_proxy(), "--trusted-entities", str(tmp_path / "trusted.yaml"))
        assert b"could not be verified" in answer(processes, "read")
        (tmp_path / "loot-read").unlink()
        tool(tmp_path, *SIGNING, "attach", "superlink.db", "read.json", "unread.json")
        assert b"could not be verified" in answer(processes, "unread")
        assert answer(processes, "read") == SECRET
        (tmp_path / "loot-unread").unlink()
        forged = json.loads((tmp_path / "read.json").read_text())
        forged["fab_hash"] = json.loads((tmp_path / "unread.json").read_text())["fab_hash"]
        (tmp_path / "forged.json").write_text(json.dumps(forged))
        tool(tmp_path, *SIGNING, "attach", "superlink.db", "forged.json")
        assert b"could not be verified" in answer(processes, "unread")
        assert "FAB verification failed" in processes.log("supernode-0")
