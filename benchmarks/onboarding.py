"""Load on the onboarding service: models a second, waiting times, memory, and what happens at twice capacity.

`python -m benchmarks.onboarding` trains a small run with the paper's subspace (k = 16,384), serves it from a
process of its own pinned to one core, and drives it from the other with a different context for each model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.memory import kilobytes
from sottovoce.channel import Channel
from sottovoce.federation.onboarding import BUCKET, NAME, VERSION, Specification
from sottovoce.federation.sealing import agreed_secret, new_key, pad, public_key
from sottovoce.plan import Plan
from sottovoce.run.training import train

PLAN = {
    "preset": "tuned",
    "dataset": "mnist-small",
    "participants": 16,
    "future_clients": 4,
    "records_per_client": 500,
    "context": "labels",
    "context_records": 300,
    "coefficients": 16384,
    "clients_per_round": 8,
    "rounds": 2,
    "evaluate_every": 0,
}


@dataclass
class Phase:
    """Statuses and seconds of the requests of one phase."""

    statuses: Counter[int]
    seconds: list[float]
    elapsed: float

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share)) if self.seconds else float("nan")


class Load:
    """Requests over plain sockets: an HTTP library in Python would cost more than the service."""

    def __init__(self, port: int, specification: Specification, channel: Channel) -> None:
        self._port = port
        self._specification = specification
        self._channel = channel
        self._rng = np.random.default_rng(1)

    def request(self) -> bytes:
        """A new client's request, with a key and a context of its own."""
        key, run = new_key(), self._specification.run
        secret = agreed_secret(key, self._specification.key, run=run, name=NAME)
        vector = self._rng.dirichlet(np.ones(self._channel.size))
        message = self._channel.encode(vector, secret=secret, stream=(run, NAME, "context", 0))
        body = public_key(key) + pad(message, BUCKET)
        head = (
            f"POST /v1/onboard HTTP/1.1\r\nHost: localhost\r\nSottovoce-Version: {VERSION}\r\n"
            f"Sottovoce-Specification: {self._specification.digest()}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def closed(self, requests: list[bytes], connections: int) -> Phase:
        """Each of so many connections asks again as soon as it is answered."""
        waiting, outcome, started = iter(requests), Phase(Counter(), [], 0.0), time.perf_counter()

        async def visit() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            for request in waiting:
                if not await _ask(reader, writer, request, outcome):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.close()

        await asyncio.gather(*(visit() for _ in range(connections)))
        outcome.elapsed = time.perf_counter() - started
        return outcome

    async def open(self, requests: list[bytes], per_second: float) -> Phase:
        """Requests at fixed times, each on a free connection or a new one, answered or not."""
        outcome, idle = Phase(Counter(), [], 0.0), []
        started = time.perf_counter()

        async def visit(request: bytes, due: float) -> None:
            connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", self._port)
            try:
                if await _ask(*connection, request, outcome, due):
                    idle.append(connection)
            except (OSError, asyncio.IncompleteReadError):
                outcome.statuses[0] += 1

        tasks = []
        for number, request in enumerate(requests):
            due = started + number / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(visit(request, due)))
        await asyncio.gather(*tasks)
        outcome.elapsed = time.perf_counter() - started
        for _, writer in idle:
            writer.close()
        return outcome


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    outcome: Phase,
    due: float | None = None,
) -> bool:
    """Asks once; returns whether the connection is kept."""
    began = time.perf_counter() if due is None else due
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    status = int(head.split()[1])
    outcome.statuses[status] += 1
    if status == 200:
        outcome.seconds.append(time.perf_counter() - began)
    return b"connection: close" not in head


def _memory(process: int) -> float:
    """Resident megabytes."""
    return kilobytes("VmRSS", process) * 1024 / 1e6


def _processor_seconds(process: int) -> float:
    """What the service has used of its core, in user and system time."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _show(name: str, outcome: Phase, used: float, memory: float) -> dict[str, object]:
    line = {
        "phase": name,
        "models_per_second": round(outcome.statuses[200] / outcome.elapsed, 1),
        "models_per_cpu_second": round(outcome.statuses[200] / used, 1),
        "p50_ms": round(1000 * outcome.quantile(0.5), 1),
        "p99_ms": round(1000 * outcome.quantile(0.99), 1),
        "statuses": dict(outcome.statuses),
        "memory_mb": round(memory),
    }
    print(json.dumps(line), flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each phase")
    parser.add_argument("--channel", default="direct")
    parser.add_argument("--port", type=int, default=8797)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(Plan.load(overrides={**PLAN, "channel": arguments.channel}), run)
        program = str(Path(sys.executable).with_name("sottovoce"))
        command = [program, "serve", str(run), "--open", "--port", str(arguments.port)]
        core = {} if os.cpu_count() == 1 else {"preexec_fn": lambda: os.sched_setaffinity(0, {0})}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment, **core) as service:  # type: ignore[call-overload]
            try:
                _measure(arguments.port, service.pid, arguments.seconds)
            finally:
                service.kill()


def _measure(port: int, process: int, seconds: float) -> None:
    url = f"http://127.0.0.1:{port}/v1/specification"
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                fields = json.loads(answer.read())
            break
        except OSError:
            time.sleep(0.2)
    specification = Specification.parse(fields)
    blueprint = specification.agreement.blueprint()
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    load = Load(port, specification, blueprint.releases["context"].channel)

    def requests(count: float) -> list[bytes]:
        return [load.request() for _ in range(int(count))]

    def phase(name: str, load: Coroutine[None, None, Phase]) -> Phase:
        before = _processor_seconds(process)
        outcome = asyncio.run(load)
        _show(name, outcome, _processor_seconds(process) - before, _memory(process))
        return outcome

    asyncio.run(load.closed(requests(100), 10))
    outcome = phase("closed, 50 connections", load.closed(requests(1000 * seconds), 50))
    capacity = outcome.statuses[200] / outcome.elapsed
    phase("open, 100 a second", load.open(requests(100 * seconds), 100))
    phase(f"open, {2 * capacity:.0f} a second", load.open(requests(2 * capacity * seconds), 2 * capacity))
    phase("open, 100 a second again", load.open(requests(100 * seconds), 100))


if __name__ == "__main__":
    main()
