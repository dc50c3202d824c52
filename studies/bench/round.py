"""What a round costs: our simulator beside the bare gradient work it carries, and polar beside direct.

All contenders make the same round in turn: two clients, 333 CIFAR-10-sized records each, LeNet, k = 16,384;
figures are ratios of medians.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sottovoce.data import Dataset, Facts
from sottovoce.gradients import clipped_mean
from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare
from sottovoce.run.session import Session
from studies.bench.interleaved import medians

RECORDS = 333
SETTINGS: dict[str, Any] = {
    "preset": "tuned",
    "dataset": "cifar10",
    "partition": "iid",
    "participants": 8,
    "future_clients": 0,
    "records_per_client": 417,  # of which 333 are for training
    "context_records": RECORDS,
    "clients_per_round": 2,
    "context": "moments",
    "context_round": 0,
    "evaluate_every": 0,
    "epsilon": 16.0,
}


def measure(rounds: int = 15, channels: tuple[str, ...] = ("direct", "polar")) -> dict[str, float]:
    """`round_over_gradients` and, with both channels, `polar_over_direct`; milliseconds beside them."""
    records = made_up(SETTINGS["participants"] * SETTINGS["records_per_client"])
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            name: open_session(records, Path(folder, name), rounds + 2, channel=name) for name in channels
        }
        try:
            contenders = {name: _round(session) for name, session in sessions.items()}
            contenders["gradients"] = _gradients(sessions["direct"])
            times = medians(contenders, rounds, time.perf_counter)
        finally:
            for session in sessions.values():
                session.close()
    ratios = {"round_over_gradients": times["direct"] / times["gradients"]}
    if "polar" in times:
        ratios["polar_over_direct"] = times["polar"] / times["direct"]
    return {**ratios, **{f"{name}_ms": 1e3 * seconds for name, seconds in times.items()}}


def made_up(count: int, shape: tuple[int, ...] = (3, 32, 32)) -> Dataset:
    """Records of noise: cost does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    y = torch.randint(10, (count,), generator=generator)
    return Dataset(SETTINGS["dataset"], x, y, Facts(shape, 10), public=True)


def open_session(
    records: Dataset, out: Path, rounds: int, module: nn.Module | None = None, **changes: Any
) -> Session:
    """A run of the benchmark's plan with `changes`, which never pauses for a checkpoint."""
    plan = Plan.load(overrides={**SETTINGS, "rounds": rounds, **changes})
    prepared = prepare(plan, records, module=module, trusted=True)
    return Session.open(prepared, out, checkpoint_seconds=float("inf"))


def _round(session: Session) -> Callable[[], object]:
    return lambda: session.record(session.simulation.step())


def _gradients(session: Session) -> Callable[[], object]:
    """The clipped means of a round and nothing else."""
    simulation = session.simulation
    blueprint, plan = simulation.blueprint, simulation.blueprint.plan
    clients = [simulation.federation.participants[i].train for i in range(plan.clients_per_round)]

    def work() -> None:
        for records in clients:
            clipped_mean(
                blueprint.module,
                blueprint.model.reference,
                blueprint.basis,
                records.x,
                records.y,
                clip=plan.clip,
                denominator=plan.gradient_records,
            )

    return work
