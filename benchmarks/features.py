"""Rounds of linear models on kept features: `python -m benchmarks.features` prints JSON.

`parts`: what a round of 40 clients with 800 records of 2,048 features and ten classes is made of, on one core
and on two, parts taking turns. `products` are the bare matrix products behind it, shared out among the same
cores and in the same precision: outputs in float32, the sum over records in float64, of inputs that lie ready
in both. `round` is a whole round of the simulator, `polar` messages and a ledger on disk included.

`clients`: milliseconds a client of a whole round, by how many clients release in it (of 160 records each).
`enrolled`: milliseconds of a round in which 40 clients release, by how many are enrolled (of eight records of
64 features, own parts included).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from studies.bench.interleaved import medians
from torch import Tensor

from benchmarks.contest import contest
from benchmarks.peers.turns import Turns
from sottovoce.data import Dataset, Facts
from sottovoce.gradients import clipped_mean
from sottovoce.machine.determinism import side_by_side
from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare
from sottovoce.run.session import Session
from sottovoce.run.simulation import Simulation

CLIENTS, RECORDS, FEATURES, CLASSES = 40, 800, 2_048, 10
SERIES = {"clients": (40, 100, 300, 1_000), "enrolled": (100, 1_000, 10_000, 100_000)}
TURNS = 15


def run(turns: int = TURNS) -> dict[str, Any]:
    """The figures of all three."""
    series = {name: rows(name, values) for name, values in SERIES.items()}
    return {"parts": parts(turns), **series}


def parts(turns: int = TURNS, clients: int = CLIENTS, records: int = RECORDS) -> dict[str, dict[str, float]]:
    """Milliseconds of each part by cores, and what the clipped means are of the bare products."""
    found = {}
    threads = torch.get_num_threads()
    with _session(clients, records, rounds=3 * (turns + 1), channel="polar") as session:
        contenders = _contenders(session.simulation)
        contenders["round"] = lambda: session.record(session.simulation.step())
        try:
            for cores in (1, 2):
                torch.set_num_threads(cores)
                seconds = medians(contenders, turns, time.perf_counter)
                ratio = seconds["gradients"] / seconds["products"]
                figures = {f"{name}_ms": 1e3 * spent for name, spent in seconds.items()}
                found[f"{cores} cores"] = {**figures, "gradients_over_products": ratio}
        finally:
            torch.set_num_threads(threads)
    return found


def _contenders(simulation: Simulation) -> dict[str, Callable[[], object]]:
    blueprint = simulation.blueprint
    clients = [simulation.federation.participants[i].train for i in range(blueprint.plan.participants)]
    theta = blueprint.model.reference
    weight = theta[: FEATURES * CLASSES].view(CLASSES, FEATURES)
    deltas = torch.randn(len(clients[0]), CLASSES, dtype=torch.float64)
    doubles = [records.x.double() for records in clients]
    release = blueprint.releases_of(0)["gradient"]
    sent = iter(range(10**9))

    def products(i: int) -> tuple[Tensor, Tensor]:
        return clients[i].x @ weight.T, deltas.T @ doubles[i]

    def gradients(i: int) -> Tensor:
        options = {"clip": blueprint.plan.clip, "denominator": len(clients[i])}
        return clipped_mean(blueprint.module, theta, blueprint.basis, clients[i].x, clients[i].y, **options)

    def messages(number: int) -> None:
        stream, secret = ("benchmark", f"client-{number}", "gradient", 1), bytes(32)
        release.decode(release.encode(signal, secret=secret, stream=stream), secret=secret, stream=stream)

    everybody, signal = range(len(clients)), gradients(0).numpy()
    return {
        "products": lambda: side_by_side(products, everybody),
        "gradients": lambda: side_by_side(gradients, everybody),
        "messages": lambda: side_by_side(messages, [next(sent) for _ in everybody]),
    }


def rows(quantity: str, values: Sequence[int], turns: int = 5) -> list[dict[str, float]]:
    """Time of a round by one quantity; every point is a process of its own, and they take turns."""
    commands = {
        str(value): [sys.executable, "-m", "benchmarks.features", quantity, str(value)] for value in values
    }
    found = []
    for value, outcome in contest(commands, 2, turns).items():
        milliseconds = 1e3 * outcome.seconds
        each = {"ms_per_client": milliseconds / int(value)} if quantity == "clients" else {}
        found.append({quantity: int(value), "round_ms": milliseconds, **each, **json.loads(outcome.words)})
    return found


def compete(quantity: str, value: int, rounds: int, cores: int) -> None:
    """One point's side of taking turns; its last words are what it charged."""
    turns = Turns()
    torch.set_num_threads(cores)
    sizes = (value, 160, FEATURES, value) if quantity == "clients" else (value, 8, 64, CLIENTS)
    with _session(sizes[0], sizes[1], rounds, features=sizes[2], releasing=sizes[3]) as session:
        for _ in range(rounds):
            turns.wait()
            session.record(session.simulation.step())
            turns.done()
        own = sum(name.startswith("own.") for name in session.simulation.server.generator.state_dict())
    turns.say(json.dumps({"own_parts": own}))


@contextmanager
def _session(
    clients: int, records: int, rounds: int, features: int = FEATURES, releasing: int = 0, **changes: Any
) -> Iterator[Session]:
    held = records * 5 // 4  # a fifth is held out
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * held, features, generator=generator)
    x = torch.nn.functional.normalize(x, dim=1).half()  # as features are kept
    y = torch.randint(CLASSES, (len(x),), generator=generator)
    dataset = Dataset("cifar10", x, y, Facts((features,), CLASSES), public=True)
    given = {"preset": "best", "dataset": "cifar10", "features": "none", "feature_size": 0, "mirror": False}
    given |= {"prior": "none", "context": "public", "context_share": 0.0, "individual": 0.1}
    given |= {"coefficients": 0, "partition": "iid", "participants": clients, "records_per_client": held}
    given |= {"future_clients": 0, "clients_per_round": releasing or clients, "evaluate_every": 0}
    plan = Plan.load(overrides={**given, "rounds": rounds, "seeded": False, **changes})
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(plan, dataset)
        with closing(Session.open(prepared, Path(folder, "run"), checkpoint_seconds=float("inf"))) as session:
            yield session


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compete(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        print(json.dumps(run(), indent=2))
