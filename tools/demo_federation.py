"""`make demo-federation`: the services of deploy/compose.yaml as plain processes on loopback; ends by itself.

Every command is read from that file. Folders of a container become folders in `--folder`, ports become free
ones (`--ports fixed` keeps those of the file), and the name `server` becomes 127.0.0.1. Two hospitals train,
a third one gets its model from the onboarding service, and the live page shows it. `--shared` adds
deploy/compose.shared.yaml: the hospitals share the noise, and two helpers hide all but sums.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from sottovoce.report.look import look
from sottovoce.report.status import Status

DEPLOY = Path(__file__).parents[1] / "deploy"
PORTS = ("8700", "8701", "8443", "8444", "8445", "8446", "9094", "9095", "9096", "9097")
LIMIT_SECONDS = 1800.0  # for hangs
SERVICES = ("budapest", "longbeach", "onboarding", "watch", "server", "register", "superlink", "proxy")
"""In the worst order: those who wait come first."""
HELPERS = ("board", "registry")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def services(*, shared: bool) -> dict[str, Any]:
    """The services of compose.yaml, or of both files: the second adds helpers, and says more of sites."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    if shared:
        more = yaml.safe_load((DEPLOY / "compose.shared.yaml").read_text())["services"]
        found |= {name: found.get(name, {}) | said for name, said in more.items()}
    return found


def show(page: str) -> None:
    """Opens the live page, where there is a screen."""
    if sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        webbrowser.open(page)


class Federation:
    """The services of a compose file, or of both, as processes; use as a context manager."""

    def __init__(self, folder: Path, *, fixed: bool = False, shared: bool = False) -> None:
        self.folder = folder
        self.services = services(shared=shared)
        self.order = (*HELPERS, *SERVICES) if shared else SERVICES
        chosen = PORTS if fixed else map(str, free_ports(len(PORTS)))
        self.ports = dict(zip(PORTS, chosen, strict=True))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "logs").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.stop(name)

    def command(self, service: str) -> list[str]:
        """A service's command, with places of this machine in the place of a container's."""
        return [self._here(service, word) for word in self.services[service]["command"]]

    def _here(self, service: str, word: str) -> str:
        home = "server" if self.services[service].get("network_mode") else service
        places = {
            "/opt/sottovoce/deploy": DEPLOY,
            "/run/secrets": self.folder / "secrets",
            "/run/nginx": self.folder / "proxy",
            "/etc/sottovoce": self.folder,
            "/data": self.folder / home,
            "/federation": self.folder,
        }
        for place, here in places.items():
            found = re.fullmatch(rf"(key=)?{place}(/.*)?", word)
            if found:
                return f"{found[1] or ''}{here}{found[2] or ''}"
        if "${HELPERS:-}" in word:
            said = self.folder / "helpers.env"
            fingerprints = said.read_text().strip().removeprefix("HELPERS=") if said.exists() else ""
            return word.replace("${HELPERS:-}", fingerprints)
        word = re.sub(r"^server:", "127.0.0.1:", word)
        return re.sub(r"\b\d{4}\b", lambda found: self.ports.get(found[0], found[0]), word)

    def environment(self, service: str) -> dict[str, str]:
        said = self.services[service].get("environment", {})
        mine = {name: self._here(service, value) for name, value in said.items()}
        beside = str(Path(sys.executable).parent)
        path = f"{beside}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin"
        return {**os.environ, **mine, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def prepare(self) -> None:
        """What `docker compose run --rm prepare` does."""
        command = self.command("prepare")
        command += ["--data", str(self.folder / "server"), "--port", self.ports["8701"]]
        environment = {**self.environment("prepare"), "FLWR_HOME": str(self.folder / "server" / "flwr")}
        subprocess.run([sys.executable, *command[1:]], env=environment, check=True)
        nginx = (DEPLOY / "nginx.conf").read_text().replace("0.0.0.0", "127.0.0.1")
        for port, ours in self.ports.items():
            nginx = nginx.replace(f":{port}", f":{ours}")
        (self.folder / "nginx.conf").write_text(nginx)
        shutil.copytree(self.folder / "secrets", self.folder / "tls")
        (self.folder / "proxy").mkdir()

    def start(self, service: str) -> None:
        """Starts a service in a process group of its own, with its log in the folder."""
        command = self.command(service)
        if service in ("watch", "onboarding"):  # their defaults are the ports of the file
            command += ["--port", self.ports["8445" if service == "watch" else "8444"]]
        found = shutil.which(command[0], path=self.environment(service)["PATH"])
        if found is None:
            raise SystemExit(
                f"{command[0]} is missing: apt-get install nginx-light, or pip install '.[flower]'"
            )
        with (self.folder / "logs" / f"{service}.log").open("ab") as log:
            self.running[service] = subprocess.Popen(
                [sys.executable if command[0] == "python" else found, *command[1:]],
                stdout=log,
                stderr=log,
                env=self.environment(service),
                cwd=self.folder / "server",
                start_new_session=True,
            )

    def stop(self, service: str) -> None:
        """Ends a service, and whatever it has started."""
        process = self.running.pop(service)
        for signal in (15, 9):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15.0)

    def log(self, service: str) -> str:
        path = self.folder / "logs" / f"{service}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def sottovoce(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        beside = str(Path(sys.executable).with_name("sottovoce"))
        return subprocess.run(
            [beside, *arguments], capture_output=True, text=True, check=check, cwd=self.folder
        )

    def wait(self, seconds: float = LIMIT_SECONDS) -> Iterator[Status]:
        """The status of the federation, every second until it is finished; the limit is for hangs."""
        deadline, state = time.monotonic() + seconds, ""
        while state != "finished" or self.running["server"].poll() is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"no end after {seconds:.0f} s: see {self.folder / 'logs'}")
            for service, process in self.running.items():
                if process.poll() and service not in ("server", "register"):
                    raise SystemExit(f"{service} has ended: {self.log(service)[-2000:]}")
            found = look(self.folder / "server" / "run")
            state = found.state
            yield found
            time.sleep(1.0)

    def onboard(self) -> Path:
        """The third hospital gets its model, for the price of one context."""
        home = self.folder / "cleveland"
        options = ["--data", str(home / "cleveland.csv"), "--out", str(home / "model.safetensors"), "--yes"]
        options += ["--token-file", str(self.folder / "secrets" / "cleveland.token")]
        options += ["--authority", str(home / "ca.crt")]
        address = f"https://127.0.0.1:{self.ports['8443']}"
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            done = self.sottovoce("onboard", address, *options, check=False)
            if done.returncode == 0:
                return home / "model.safetensors"
            if not re.search(r"cannot reach|broke|refused \(50\d\)", done.stderr):
                raise SystemExit(done.stderr)
            time.sleep(2.0)  # the service is about to begin
        raise SystemExit(done.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder that is not there yet; by default a new one")
    parser.add_argument("--ports", choices=["free", "fixed"], default="free")
    parser.add_argument("--shared", action="store_true", help="noise that the hospitals share, and helpers")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="sottovoce-demo-")) / "federation"
    began = time.monotonic()
    with Federation(folder.absolute(), fixed=given.ports == "fixed", shared=given.shared) as federation:
        print(f"preparing {folder}: certificates, keys, plan, app, two hospitals")
        federation.prepare()
        for service in reversed(federation.order):
            federation.start(service)
        token = (folder / "secrets" / "watch.token").read_text().strip()
        page, opened = f"http://127.0.0.1:{federation.ports['8445']}", False
        print(f"live page: {page}, password {token}")
        print(f"  from elsewhere: https://127.0.0.1:{federation.ports['8446']}, with the same")
        said = ""
        for found in federation.wait():
            line = f"{found.state}: {found.why}"
            if line != said:
                print(f"{time.monotonic() - began:5.0f} s  {line}", flush=True)
                said = line
            if not opened and "shows" in federation.log("watch"):
                opened = True
                show(page)
        for site in ("longbeach", "budapest"):
            state = look(folder / site / "state")
            assert state.role == "client"
            print(f"{site}: {state.why}; {state.headroom}")
        print(f"cleveland has its model: {federation.onboard()}")
    print(f"done in {time.monotonic() - began:.0f} s; what they wrote is in {folder}")


if __name__ == "__main__":
    main()
