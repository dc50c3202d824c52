"""`make soak`: 200 random kills across a 40-round federation of real processes, compared with the simulator.

Bursts of kill -9 hit client and server processes, SuperNodes, the SuperLink and the command that watches the
run, at random moments of a round, under TLS and node keys. At the end no release may be uncharged or charged
twice, no round lost, and the generator must be the simulator's bit for bit.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .processes import Processes
from .test_deployed import charged_once, equals_the_simulator, prepare, rounds

NODES = 3
# How often each kind is hit. Flower takes a minute to notice a dead ServerApp, half of one after a SuperLink.
WEIGHTS = {"client": 20, "node": 8, "server": 1, "superlink": 1, "federate": 1}


class Soak:
    """A federation under fire."""

    def __init__(self, folder: Path, processes: Processes, seed: int) -> None:
        self._folder = folder
        self._processes = processes
        self._random = random.Random(seed)
        self.kills: Counter[str] = Counter()

    def start(self) -> None:
        self._processes.start_superlink()
        if self._processes.tls:
            self._processes.register_nodes(NODES)
        for index in range(NODES):
            self._processes.start_supernode(index)
        self._watch()

    def burst(self, size: int) -> None:
        """So many kills at once, of what is running; whatever should run is started again."""
        for _ in range(size):
            kind = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            action: Callable[[], bool] = getattr(self, f"_kill_{kind}")
            if not action():
                kind = "node"
                self._kill_node()
            self.kills[kind] += 1

    def delay(self) -> float:
        """Seconds from the start of a round to its burst."""
        return self._random.uniform(0.0, 15.0)

    def _watch(self) -> None:
        app = str(self._folder / "app")
        self._processes.start("federate", "sottovoce", "federate", "--app", app, "--on", "here")

    def _kill_client(self) -> bool:
        return self._processes.kill_one("flwr-clientapp")

    def _kill_server(self) -> bool:
        return self._processes.kill_one("flwr-serverapp")

    def _kill_node(self) -> bool:
        index = self._random.randrange(NODES)
        self._processes.kill(f"supernode-{index}")
        self._processes.start_supernode(index)
        return True

    def _kill_superlink(self) -> bool:
        self._processes.kill("superlink")
        self._processes.start_superlink()
        return True

    def _kill_federate(self) -> bool:
        self._processes.kill("federate")
        self._watch()
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--insecure", action="store_true", help="without TLS and node keys")
    parser.add_argument("--minutes", type=float, default=120.0, help="give up after so long")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        agreement = prepare(folder, participants=NODES, clients_per_round=1, rounds=arguments.rounds)
        started = time.monotonic()
        with Processes(folder, tls=not arguments.insecure) as processes:
            soak = Soak(folder, processes, arguments.seed)
            soak.start()
            done, closed, limit = folder / "run" / "result.json", -1, 60 * arguments.minutes
            while not done.exists():
                if rounds(folder) > closed:
                    closed = rounds(folder)
                    processes.pause(soak.delay())
                    due = round(arguments.kills * (closed + 1) / arguments.rounds)
                    soak.burst(min(due, arguments.kills) - soak.kills.total())
                    line = {"rounds": closed, "kills": dict(soak.kills), "minutes": _minutes(started)}
                    print(json.dumps(line), flush=True)
                if time.monotonic() - started > limit:
                    raise SystemExit(f"not finished after {arguments.minutes} minutes: {dict(soak.kills)}")
                processes.pause(0.5)
        equals_the_simulator(folder, agreement)
        charged_once(folder, agreement)
        result = {"kills": dict(soak.kills), "total": soak.kills.total(), "rounds": arguments.rounds}
        print(json.dumps({**result, "equal": True, "minutes": _minutes(started)}), flush=True)


def _minutes(started: float) -> float:
    return round((time.monotonic() - started) / 60, 1)


if __name__ == "__main__":
    main()
