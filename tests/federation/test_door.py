"""What the network can reach of a server that is set up as the deployment page says: the attacks.

An intruder has the CA certificate and the public port, and uses the real `flwr` command line. The last test
tries the same at the SuperLink's own port, which is what was open before the proxy: there each attack gets
in, so none of them is refused for a reason of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from .probe import write_probe
from .processes import BIN, Processes, free_port, write_node_key
from .status.test_progress import Told

pytestmark = pytest.mark.slow

MEGABYTE = 10**6
SECRET = os.urandom(5 * MEGABYTE)
"""The records of the client: five megabytes that pass the proxy when the operator asks for them."""


@dataclass
class Intruder:
    """Somebody who holds the CA certificate and can reach one port of the server."""

    processes: Processes
    port: int
    name: str
    home: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.processes.folder / self.name
        self.home.mkdir()
        authority = self.processes.folder / "tls" / "ca.crt"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "there"\n[superlink.there]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{authority}"\n'
        )
        write_node_key(self.home / "key")
        self.loot = self.home / "loot"
        self.app = write_probe(self.home / "app", self.loot)

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env={**self.processes.environment, "FLWR_HOME": str(self.home)},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def attacks(self, run: str, node: str) -> dict[str, tuple[str, ...]]:
        """Every command of Flower's that would give an intruder something, the destructive ones last."""
        return {
            "register": ("supernode", "register", str(self.home / "key.pub"), "there"),
            "nodes": ("supernode", "list", "there"),
            "list": ("list", "there"),
            "log": ("log", run, "there", "--show"),
            "run": ("run", str(self.app), "there"),
            "stop": ("stop", run, "there"),
            "unregister": ("supernode", "unregister", node, "there"),
        }

    def has_the_records(self) -> bool:
        return self.loot.exists() and self.loot.read_bytes() == SECRET

    def ask(self, path: str, body: bytes, method: str = "POST", **headers: str) -> int:
        """The HTTP status of a request whose path is sent as it is written."""
        trusted = ssl.create_default_context(cafile=self.processes.folder / "tls" / "ca.crt")
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=trusted, timeout=30)
        with contextlib.closing(connection):
            kind = {"Content-Type": PROTOBUF_MEDIA_TYPE, "Accept": PROTOBUF_MEDIA_TYPE}
            connection.request(method, path, body, {**kind, **headers})
            return connection.getresponse().status

    def connect(self) -> ssl.SSLSocket:
        trusted = ssl.create_default_context(cafile=self.processes.folder / "tls" / "ca.crt")
        return trusted.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), timeout=30), server_hostname="127.0.0.1"
        )


@dataclass
class Server:
    """A documented server with one client and a run that goes on until `until` exists."""

    processes: Processes
    public: int
    run: str
    node: str
    until: Path

    def status(self) -> str:
        listed = json.loads(self.processes.flwr("list", "here", "--run-id", self.run, "--format", "json"))
        return str(listed["runs"][0]["status"])

    def nodes(self) -> list[str]:
        listed = json.loads(self.processes.flwr("supernode", "list", "here", "--format", "json"))
        return [str(node["node-id"]) for node in listed["nodes"]]

    def runs(self) -> list[str]:
        return [str(run["run-id"]) for run in self.list_runs()]

    def list_runs(self) -> list[dict[str, str]]:
        return list(json.loads(self.processes.flwr("list", "here", "--format", "json"))["runs"])


def start_node(processes: Processes, public: int, *options: str) -> None:
    """The client with its registered key, through the public port."""
    records = processes.folder / "records.bin"
    records.write_bytes(SECRET)
    processes.start(
        "supernode-0",
        "flower-supernode",
        *("--superlink", f"127.0.0.1:{public}", "--port", str(free_port())),
        *("--root-certificates", str(processes.folder / "tls" / "ca.crt")),
        *("--auth-supernode-private-key", str(processes.folder / "tls" / "node-0")),
        *("--node-config", f"records={json.dumps(str(records))}"),
        *options,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("door")
    with Processes(folder, tls=True) as processes:
        processes.start_superlink()
        public = processes.start_proxy()
        processes.register_nodes(1)
        start_node(processes, public)
        loot, until = folder / "loot", folder / "until"
        app = write_probe(folder / "app", loot, until=until, weight=5 * MEGABYTE)
        started = json.loads(processes.flwr("run", str(app), "here", "--format", "json"))
        processes.wait("the client's answer", loot.exists, 90.0)
        result = Server(processes, public, str(started["run-id"]), "", until)
        [result.node] = result.nodes()
        yield result


def test_the_registered_client_works_through_the_proxy_with_megabytes_both_ways(server: Server) -> None:
    loot = server.processes.folder / "loot"
    server.processes.wait("all of the answer", lambda: loot.read_bytes() == SECRET, 10.0)
    assert server.status() == "running"


def test_no_body_is_written_to_the_proxys_folder_or_log(server: Server) -> None:
    files = [path for path in (server.processes.folder / "proxy").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["nginx.pid"]
    assert server.processes.log("proxy") == ""


def test_who_holds_the_ca_certificate_can_neither_register_nor_run_nor_list_nor_stop(server: Server) -> None:
    intruder = Intruder(server.processes, server.public, "intruder")
    for name, command in intruder.attacks(server.run, server.node).items():
        done = intruder.flwr(*command)
        assert done.returncode != 0, f"{name}: {done.stdout}"
        assert "404 Not Found" in done.stdout + done.stderr, f"{name}: {done.stdout}{done.stderr}"
    assert server.status() == "running"
    assert server.nodes() == [server.node]
    assert server.runs() == [server.run]
    assert not intruder.loot.exists()


@pytest.mark.parametrize("keyed", [True, False], ids=["own key", "no key"])
def test_an_unregistered_node_is_turned_away(server: Server, keyed: bool) -> None:
    processes, name = server.processes, f"stranger-{keyed}"
    key = ("--auth-supernode-private-key", str(Intruder(processes, server.public, name).home / "key"))
    processes.start(
        name,
        "flower-supernode",
        *("--superlink", f"127.0.0.1:{server.public}", "--port", str(free_port()), "--max-retries", "0"),
        *("--root-certificates", str(processes.folder / "tls" / "ca.crt")),
        *(key if keyed else ()),
    )
    processes.wait("a refusal", lambda: "Failed to initialize the connection" in processes.log(name), 90.0)
    assert ("Failed to activate SuperNode" if keyed else "404 Not Found") in processes.log(name)
    processes.kill(name)
    assert server.nodes() == [server.node]


def test_messages_of_a_client_are_not_given_to_somebody_elses_key(server: Server) -> None:
    intruder = Intruder(server.processes, server.public, "reader")
    body = PullMessagesRequest(node=Node(node_id=int(server.node))).SerializeToString()
    assert intruder.ask("/v1/fleet/pull-messages", body) == 401
    for path in ("/v1/runtime/pull-messages", "/v1/runtime/acquire-task", "/v1/runtime/get-nodes"):
        assert intruder.ask(path, b"") == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "//v1/control/list-runs",
        "/v1//control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/fleet/pull-messages%2f..%2f..%2fcontrol/list-runs",
        "/v1/fleet/pull-messages;/../../control/list-runs",
        "/v1/fleet/pull-messages%0a/../control/list-runs",
        "/V1/CONTROL/LIST-RUNS",
        "/v1/fleet/register-node",
        "/v1/fleet/",
        "/openapi.json",
        "/docs",
        "/health",
        "/",
    ],
)
def test_no_spelling_of_a_path_reaches_another_api(server: Server, path: str) -> None:
    intruder = Intruder(server.processes, server.public, f"path-{time.monotonic_ns()}")
    body = ListRunsRequest().SerializeToString()
    assert intruder.ask(path, body) == 404
    assert intruder.ask(path, b"", "GET") == 404
    assert intruder.ask(path, body, **{"X-Forwarded-Prefix": "/v1/control", "X-Original-URL": path}) == 404


def test_a_request_hidden_in_anothers_body_is_not_answered(server: Server) -> None:
    hidden = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    for framing in (
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (len(hidden) + 5),
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden),
    ):
        with Intruder(server.processes, server.public, f"smuggler-{time.monotonic_ns()}").connect() as line:
            head = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"
            line.sendall(head + framing + hidden)
            line.settimeout(3.0)
            answer = b""
            with contextlib.suppress(OSError):
                while part := line.recv(65536):
                    answer += part
        assert b" 200 " not in answer
        assert server.run.encode() not in answer


def test_other_methods_and_bodies_above_eight_megabytes_are_refused(server: Server) -> None:
    intruder = Intruder(server.processes, server.public, "giant")
    assert intruder.ask("/v1/fleet/pull-messages", b"", "GET") == 403
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
    with intruder.connect() as line:
        line.sendall(head)
        assert b" 413 " in line.recv(65536)


def test_half_sent_requests_are_cut_off_within_fifteen_seconds(server: Server) -> None:
    intruder = Intruder(server.processes, server.public, "slow")
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n"
    with intruder.connect() as headless, intruder.connect() as bodiless:
        headless.sendall(head)
        bodiless.sendall(head + b"Content-Length: 1000\r\n\r\nhalf")
        deadline = time.monotonic() + 15.0
        for line in (headless, bodiless):
            line.settimeout(max(deadline - time.monotonic(), 0.1))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while line.recv(65536):
                    pass


def test_two_thousand_half_open_connections_leave_others_an_answer_within_a_second(server: Server) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 2**16 and hard > 0 else 2**16, hard))
    intruder = Intruder(server.processes, server.public, "crowd")
    with contextlib.ExitStack() as crowd:
        for _ in range(2000):
            line = crowd.enter_context(socket.socket())
            line.bind(("127.0.0.2", 0))
            line.connect(("127.0.0.1", server.public))
            line.sendall(b"\x16\x03")  # the first bytes of a TLS greeting
        seconds = []
        for _ in range(100):
            start = time.monotonic()
            assert intruder.ask("/v1/fleet/pull-messages", b"") == 401
            seconds.append(time.monotonic() - start)
    assert sorted(seconds)[98] < 1.0


def test_at_the_superlinks_own_port_the_same_attacks_get_in(server: Server) -> None:
    intruder = Intruder(server.processes, server.processes.port, "insider")
    assert intruder.ask("/v1/control/list-runs", ListRunsRequest().SerializeToString()) == 200
    for name, command in intruder.attacks(server.run, server.node).items():
        done = intruder.flwr(*command)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        if name == "run":
            server.processes.wait("loot", intruder.has_the_records, 90.0)
    assert server.status() != "running"
    assert len(server.runs()) == 2


def test_a_client_outlives_a_killed_proxy_and_a_killed_superlink(tmp_path: Path) -> None:
    with Processes(tmp_path, tls=True) as processes:
        processes.start_superlink()
        public = processes.start_proxy()
        processes.register_nodes(1)
        start_node(processes, public)
        processes.wait("the node", lambda: "SuperNode ID" in processes.log("supernode-0"), 60.0)
        for name in ("proxy", "superlink"):
            processes.kill(name)
            processes.pause(8.0)  # the client asks every three seconds
            processes.start_superlink() if name == "superlink" else processes.start_proxy(public)
            processes.wait_for_port(public)
        loot = tmp_path / "loot"
        processes.flwr("run", str(write_probe(tmp_path / "app", loot)), "here")
        processes.wait("an answer", lambda: loot.exists() and loot.read_bytes() == SECRET, 150.0)


def test_the_live_page_is_seen_from_elsewhere_with_a_token_and_its_metrics_are_not(tmp_path: Path) -> None:
    told = Told(tmp_path / "run", late=3600.0)
    told.update()
    with Processes(tmp_path, tls=True) as processes:
        processes.start_proxy()
        made = processes.run("sottovoce", "watch", "run", "--new-token", "carol", "--json")
        port = str(processes.watch_port)
        processes.start("watch", "sottovoce", "watch", "run", "--port", port, "--behind-proxy")
        processes.wait_for_port(processes.watch_port)
        intruder = Intruder(processes, processes.page_port, "intruder")
        visitor = {"Authorization": f"Bearer {json.loads(made)['token']}"}
        for path in ("/", "/events"):
            assert intruder.ask(path, b"", "GET") == 401
            assert intruder.ask(path, b"", "GET", Authorization="Bearer guess") == 401
            assert intruder.ask(path, b"", "GET", Host="localhost") == 401
            assert intruder.ask(path, b"", "POST", **visitor) == 403
        for path in ("/metrics", "/health", "//metrics", "/events/../metrics"):
            assert intruder.ask(path, b"", "GET", **visitor) in (400, 404)
        assert intruder.ask("/", b"", "GET", **visitor) == 200
        trusted = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        address = ("127.0.0.1", processes.page_port)
        with contextlib.closing(http.client.HTTPSConnection(*address, context=trusted, timeout=60)) as link:
            link.request("GET", "/events", headers=visitor)
            stream = link.getresponse()
            assert b"has not enrolled" in stream.readline()  # at once: nginx keeps no event back
            assert stream.readline() == b"\n"
            told.world.enrol_all()
            told.update()
            while b"has not enrolled" in (line := stream.readline()) or b"state" not in line:
                pass
            assert b"contexts" in line
