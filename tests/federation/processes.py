"""A real federation as processes on loopback: SuperLink, SuperNodes and the onboarding service, with TLS.

Everything lives in one folder and every process is started and ended here, by its own process group, so that
a test can kill any of them with -9 and nothing outlives it.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
DEPLOY = Path(__file__).parents[2] / "deploy"
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


REST_SECONDS = 5.0  # between two starts of a SuperNode, as systemd would leave


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def nginx() -> str:
    """The proxy's program; where it is missing, a test fails instead of leaving the door untried."""
    found = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    assert found, "these tests need nginx: apt-get install nginx-light"
    return found


def write_certificates(folder: Path, *, days: float = 1.0) -> None:
    """`ca.crt`, and `server.crt` with `server.key` for 127.0.0.1; negative `days`: expired."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now = datetime.datetime.now(datetime.UTC)
    start = now - datetime.timedelta(days=30)

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        end = now + datetime.timedelta(days=1.0 if is_authority else days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
            )
        )
        if is_authority:
            usage = x509.KeyUsage(
                *([False] * 5), key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
            )
            builder = builder.add_extension(usage, critical=True)
        else:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(authority, hashes.SHA256())

    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate("test authority", authority, True).public_bytes(pem))
    (folder / "server.crt").write_bytes(certificate("127.0.0.1", server, False).public_bytes(pem))
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(key)


def write_node_key(path: Path) -> None:
    """A key pair as `ssh-keygen -t ecdsa -b 384` writes it: `path` and `path.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.write_bytes(private)
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


class Processes:
    """The processes of one federation in `folder`; use as a context manager."""

    def __init__(self, folder: Path, *, tls: bool, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.tls = tls
        self.port, self.onboarding_port, self.service_port = free_port(), free_port(), free_port()
        self.watch_port, self.page_port = free_port(), free_port()
        self._ports: dict[str, int] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self._started: dict[str, float] = {}
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            **(environment or {}),
            "FLWR_HOME": str(folder / "flwr"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "flwr").mkdir(exist_ok=True)
        security = "insecure = true"
        if tls:
            write_certificates(folder / "tls")
            security = f'root-certificates = "{folder / "tls" / "ca.crt"}"'
        address = f"127.0.0.1:{self.port}"
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\n{security}\n'
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *unused: object) -> None:
        for name in list(self._running):
            self.kill(name)
        for process in self.children(""):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def children(self, name: str) -> list[int]:
        """Processes of this federation whose command line holds `name`, also those that Flower started."""
        mark, found = f"FLWR_HOME={self.folder / 'flwr'}".encode(), []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                alive = mark in (folder / "environ").read_bytes().split(b"\0")
                if alive and name.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found

    def kill_one(self, name: str) -> bool:
        """kill -9 for one process whose command line holds `name`, if there is one."""
        for process in self.children(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                return True
        return False

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 1200.0) -> None:
        """Waits until the condition holds; the limit is for hangs."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._revive()
            if time.monotonic() > deadline:
                logs = "\n".join(f"{name}: {self.log(name)[-1500:]}" for name in sorted(self._running))
                raise AssertionError(f"{what} took more than {seconds:.0f} s\n{logs}")
            time.sleep(0.2)

    def start(self, name: str, *command: str) -> None:
        """Starts a process in a group of its own, with its log in the folder."""
        self._commands[name], self._started[name] = command, time.monotonic()
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9 for the process and everything that it started."""
        process = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def running(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def log(self, name: str) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start_superlink(self, *options: str) -> None:
        security = ["--insecure"]
        if self.tls:
            certificates = self.folder / "tls"
            security = ["--ssl-ca-certfile", str(certificates / "ca.crt")]
            security += ["--ssl-certfile", str(certificates / "server.crt")]
            security += ["--ssl-keyfile", str(certificates / "server.key"), "--enable-supernode-auth"]
        self.start(
            "superlink",
            "flower-superlink",
            *security,
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"),
            *options,
        )
        self.wait_for_port(self.port)

    def start_proxy(self, port: int | None = None) -> int:
        """nginx with the documented configuration; returns the public port before the SuperLink.

        The onboarding service is reached at `onboarding_port`, and listens at `service_port`; the live page
        at `page_port` and `watch_port`.
        """
        public, folder = port or free_port(), self.folder / "proxy"
        text = (DEPLOY / "nginx.conf").read_text()
        for documented, ours in (
            ("listen 0.0.0.0:8700 ", f"listen 127.0.0.1:{public} "),
            ("server 127.0.0.1:8701;", f"server 127.0.0.1:{self.port};"),
            ("listen 0.0.0.0:8443 ", f"listen 127.0.0.1:{self.onboarding_port} "),
            ("server 127.0.0.1:8444;", f"server 127.0.0.1:{self.service_port};"),
            ("listen 0.0.0.0:8446 ", f"listen 127.0.0.1:{self.page_port} "),
            ("server 127.0.0.1:8445;", f"server 127.0.0.1:{self.watch_port};"),
        ):
            assert text.count(documented) == 1
            text = text.replace(documented, ours)
        (self.folder / "nginx.conf").write_text(text)
        folder.mkdir(exist_ok=True)
        self.start("proxy", nginx(), "-e", "stderr", "-p", str(folder), "-c", str(self.folder / "nginx.conf"))
        self.wait_for_port(public)
        return public

    def start_service(self, *options: str) -> None:
        """The onboarding service of the run in `folder / "run"`."""
        run = str(self.folder / "run")
        self.start("service", "sottovoce", "serve", run, "--port", str(self.service_port), *options)
        self.wait_for_port(self.service_port)

    def start_supernode(self, index: int) -> None:
        name = f"supernode-{index}"
        security = ["--insecure"]
        if self.tls:
            key = self.folder / "tls" / f"node-{index}"
            security = ["--root-certificates", str(self.folder / "tls" / "ca.crt")]
            security += ["--auth-supernode-private-key", str(key)]
        clients = self.folder / "clients"
        config: dict[str, int | str | bool] = {"partition-id": index}
        if "seeded = true" in (clients / "agreement.toml").read_text():
            config["simulated"] = True  # played by this machine
        else:
            config["directory"] = str(clients / f"client-{index}")
            table = clients / f"client-{index}.csv"
            config["records"] = str(table if table.exists() else table.with_suffix(".npz"))
            config["agreement"] = str(clients / "agreement.toml")
        port = self._ports.setdefault(name, free_port())
        self.start(
            name,
            "flower-supernode",
            *security,
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(port)),
            *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())),
        )

    def register_nodes(self, count: int) -> None:
        """Node keys, made and registered with the SuperLink."""
        for index in range(count):
            key = self.folder / "tls" / f"node-{index}"
            write_node_key(key)
            self.flwr("supernode", "register", f"{key}.pub", "here")

    def flwr(self, *arguments: str, check: bool = True) -> str:
        """The output of a `flwr` command."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def run(self, *command: str) -> str:
        """The output of one of our commands."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pause(self, seconds: float) -> None:
        """Lets time pass, with everything running that should."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._revive()
            time.sleep(0.2)

    def _revive(self) -> None:
        """Starts SuperNodes again that have ended, as systemd would.

        With node keys, Flower turns a node away until its killed predecessor counts as offline, a minute.
        """
        for name, process in list(self._running.items()):
            rested = time.monotonic() - self._started[name] > REST_SECONDS
            if name.startswith("supernode") and process.poll() is not None and rested:
                self.kill(name)
                self.start(name, *self._commands[name])

    def wait_for_port(self, port: int) -> None:
        def listening() -> bool:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.wait(f"listening on port {port}", listening, 60.0)
