"""NVFlare on loopback: its server and sites as processes under mutual TLS, with kits that it provisions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from sottovoce.federation.nvflare.kit import prepare
from tests.federation.processes import BIN, ENVIRONMENT, free_port

ADMIN = "admin@ours.org"
LIMIT_SECONDS = 900.0  # for hangs
PROJECT = """api_version: 3
name: ours
description: a federation on loopback
participants:
  - {{name: localhost, type: server, org: ours, fed_learn_port: {port}, admin_port: {admin}}}
{sites}
  - {{name: {who}, type: admin, org: ours, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config, scheme: grpc}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


class Network:
    """Kits in a folder, and the processes that run them; use as a context manager."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self.folder, self.sites = folder, list(sites)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        listed = "\n".join(f"  - {{name: {site}, type: client, org: ours}}" for site in sites)
        text = PROJECT.format(port=free_port(), admin=free_port(), sites=listed, who=ADMIN)
        (folder / "project.yml").write_text(text)
        self._environment = {**os.environ, **ENVIRONMENT, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self._environment["HOME"] = str(folder)
        self.command("nvflare", "provision", "-p", str(folder / "project.yml"), "-w", str(folder / "kits"))

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name)

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / "ours" / "prod_00" / name

    @property
    def admin(self) -> Path:
        return self.kit(ADMIN)

    def command(self, *words: str, check: bool = True) -> str:
        """The output of a command."""
        done = subprocess.run(
            [str(BIN / words[0]), *words[1:]],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def prepare(self, nodes: dict[str, Path]) -> None:
        """Prepares the server's kit, and each site's for its owner's settings."""
        prepare(self.kit("localhost"))
        for site, file in nodes.items():
            prepare(self.kit(site), file)

    def start(self, name: str) -> None:
        """A server or a site, in a process group of its own: as its kit's start script starts it."""
        what, config = ("server", "fed_server") if name == "localhost" else ("client", "fed_client")
        module = f"nvflare.private.fed.app.{what}.{what}_train"
        options = ["secure_train=true", "org=ours", "config_folder=config"]
        options += [] if what == "server" else [f"uid={name}"]
        kit = self.kit(name)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-u",
                    "-m",
                    module,
                    "-m",
                    str(kit),
                    "-s",
                    f"{config}.json",
                    "--set",
                    *options,
                ],
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=kit,
                start_new_session=True,
            )

    def start_all(self) -> None:
        for name in ("localhost", *self.sites):
            self.start(name)

    def supervise(self, job: Path) -> None:
        """The command that brings the job to its end."""
        with (self.folder / "federate.log").open("ab") as log:
            self.running["federate"] = subprocess.Popen(
                [str(BIN / "sottovoce"), "federate", "--app", str(job), "--on", str(self.admin)],
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait(self) -> str:
        """What the supervisor has said, once it has come to its end."""
        process = self.running.pop("federate")
        try:
            process.wait(LIMIT_SECONDS)
        finally:
            self._end(process)
        said = self.log("federate")
        assert process.returncode == 0, said[-4000:]
        return said

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        self._end(self.running.pop(name))

    def kill_job(self, name: str) -> None:
        """Kills the process of a job at a server or a site, and not its parent."""
        for child in psutil.Process(self.running[name].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(true: object, what: str = "it") -> None:
    """Waits until a function says so; the limit is for hangs."""
    assert callable(true)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.1)
