"""What a federation costs beyond Flower: `python -m benchmarks.federation` prints JSON lines.

Enrolment of 10,000 clients against a real store, the server's memory with all of them enrolled, and the time
that our code takes in one deployed round, each in a fresh process as Flower starts them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLAN = {
    "preset": "tuned",
    "dataset": "mnist-small",
    "participants": 16,
    "future_clients": 4,
    "records_per_client": 500,
    "context_records": 300,
    "coefficients": 16384,
    "clients_per_round": 2,
    "rounds": 40,
    "evaluate_every": 0,
}

BATCH = 100  # answers that arrive between two looks of the server


def memory() -> dict[str, int]:
    """Megabytes of this process: resident, and private (what would come back if it ended)."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) // 1000
    return {"resident_mb": fields["Rss"], "private_mb": fields["Private_Dirty"] + fields["Private_Clean"]}


def enrolment(count: int) -> dict[str, Any]:
    """Both ends of `count` enrolments, the server's in batches as answers arrive."""
    import flwr.serverapp  # noqa: F401  (what a ServerApp has loaded anyway)
    import torch

    from sottovoce.data import Facts
    from sottovoce.federation import Agreement
    from sottovoce.federation.sealing import agreed_secret, new_key, proof, public_key
    from sottovoce.federation.server import Coordinator
    from sottovoce.federation.store import Store
    from sottovoce.plan import Plan
    from sottovoce.release.secrets import participant_name

    torch.set_num_threads(1)
    before = memory()
    plan = Plan.load(
        overrides={**PLAN, "participants": count, "gradient_records": 400, "rounds": 500, "channel": "direct"}
    )
    agreement = Agreement(plan, Facts((1, 28, 28), 10, (0.1307,), (0.3081,)))
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "server.sqlite", agreement)
        coordinator = Coordinator(agreement, store)
        started = time.perf_counter()
        digest = agreement.digest()
        for _ in range(0, count, BATCH):
            with coordinator.store.transaction():
                for _ in range(BATCH):
                    offer, key = coordinator.roster.offer(), new_key()
                    name = participant_name(offer["proposal"])
                    secret = agreed_secret(key, offer["key"], run=offer["run"], name=name)
                    answer = {
                        "participant": offer["proposal"],
                        "key": public_key(key),
                        "agreement": digest,
                        "proof": proof(secret, offer["nonce"]),
                    }
                    coordinator.roster.enrol(answer, name)
        seconds = time.perf_counter() - started
        assert len(coordinator.roster.enrolled) == count
        coordinator.missing()
        store.apply(coordinator.server.state(), None)
        after = memory()
        store.close()
    return {
        "what": "enrolment",
        "clients": count,
        "seconds": round(seconds, 1),
        "before": before,
        "server": after,
    }


def release(folder: str) -> dict[str, Any]:
    """Our share of one client process, from the first import of ours to the answer, less the gradient."""
    import flwr.clientapp  # noqa: F401
    import torch

    torch.set_num_threads(1)
    started, began_cpu = time.perf_counter(), time.process_time()
    import sottovoce.federation.flower.client_app
    import sottovoce.training.client
    from sottovoce.federation import Agreement
    from sottovoce.federation.node import Node

    imported = time.perf_counter()
    clients = Path(folder)
    agreement = Agreement.load(clients / "agreement.toml")
    request = json.loads((clients / "request.json").read_text())
    request["coefficients"] = bytes.fromhex(request["coefficients"])
    index = request.pop("participant")
    member = Node(clients / f"client-{index}", clients / f"client-{index}.npz", agreement, wish=index)
    gradient, gradient_cpu, honest = [0.0], [0.0], sottovoce.client.clipped_mean

    def timed(*arguments: Any, **options: Any) -> Any:
        began, began_cpu = time.perf_counter(), time.process_time()
        result = honest(*arguments, **options)
        gradient[0], gradient_cpu[0] = time.perf_counter() - began, time.process_time() - began_cpu
        return result

    sottovoce.client.clipped_mean = timed
    member.release(request)
    seconds = time.perf_counter() - imported - gradient[0]
    return {
        "import_s": round(imported - started, 3),
        "gradient_s": round(gradient[0], 3),
        "release_s": round(seconds, 3),
        "client_cpu_s": round(time.process_time() - began_cpu - gradient_cpu[0], 3),
    }


def round_trip(channel: str) -> dict[str, Any]:
    """One round: two client processes, then the server's part, for k = 16,384, less the gradient."""
    import torch

    from sottovoce.federation import agree, write_client_files
    from sottovoce.federation.node import Node
    from sottovoce.federation.server import Coordinator
    from sottovoce.federation.store import Store
    from sottovoce.plan import Plan

    torch.set_num_threads(1)
    agreement = agree(Plan.load(overrides={**PLAN, "channel": channel}))
    with tempfile.TemporaryDirectory() as folder:
        clients = Path(folder)
        write_client_files(agreement, clients)
        store = Store.open(clients / "server.sqlite", agreement)
        coordinator = Coordinator(agreement, store)
        members = {
            index: Node(clients / f"client-{index}", clients / f"client-{index}.npz", agreement, wish=index)
            for index in range(agreement.plan.participants)
        }
        for index, member in members.items():
            coordinator.roster.enrol(member.enrol(coordinator.roster.offer()), str(index))
        for _ in ("contexts", "a first round, which warms the server up"):
            for index, kind in coordinator.missing().items():
                coordinator.accept(index, members[index].release(coordinator.request(index, kind)))
            coordinator.advance()
        measured, server = [], 0.0
        for index in coordinator.missing():
            started = time.perf_counter()
            request = coordinator.request(index, "gradient")
            server += time.perf_counter() - started
            text = {**request, "coefficients": request["coefficients"].hex(), "participant": index}
            (clients / "request.json").write_text(json.dumps(text))
            measured.append(_fresh("release", folder))
            answer = members[index].release(request)
            started = time.perf_counter()
            coordinator.accept(index, answer)
            server += time.perf_counter() - started
        started = time.perf_counter()
        coordinator.advance()
        server += time.perf_counter() - started
        store.close()
    slowest = max(measured, key=lambda part: part["import_s"] + part["release_s"])
    total = slowest["import_s"] + slowest["release_s"] + server
    return {
        "what": "round",
        "channel": channel,
        **slowest,
        "server_s": round(server, 3),
        "ours_s": round(total, 3),
    }


def _fresh(what: str, argument: str) -> dict[str, Any]:
    """A measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.federation", what, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["enrolment", "release", "round"])
    parser.add_argument("argument", nargs="?", default="")
    arguments = parser.parse_args()
    if arguments.what == "enrolment":
        print(json.dumps(enrolment(int(arguments.argument))))
    elif arguments.what == "release":
        print(json.dumps(release(arguments.argument)))
    elif arguments.what == "round":
        print(json.dumps(round_trip(arguments.argument)))
    else:
        print(json.dumps(_fresh("enrolment", "10000")), flush=True)
        for channel in ("direct", "lrsuq", "polar"):
            print(json.dumps(_fresh("round", channel)), flush=True)


if __name__ == "__main__":
    main()
