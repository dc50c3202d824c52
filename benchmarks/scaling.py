"""Time and peak memory of a round against one quantity at a time: `python -m benchmarks.scaling` prints JSON.

Two clients of 333 CIFAR-10-sized records, the paper's LeNet, k = 16,384, `direct` and one thread, but for the
quantity that grows: coefficients k, parameters d (a wider LeNet), records of a client, or clients of the
federation (two of which release in a round, of ten small records each, so that 100,000 fit in memory). Each
point is a process of its own, and the points of a quantity take turns: the median of their rounds, and peak
resident memory above what Python and its libraries take. `plain` are two ordinary steps on the same records.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from studies.bench.round import made_up, open_session
from torch import nn
from torch.nn import functional as F

from benchmarks.contest import contest
from benchmarks.memory import kilobytes
from benchmarks.peers.turns import Turns
from sottovoce.models.architectures import lenet

TURNS = 7
SERIES = {  # by quantity: its values, and what is measured at each
    "coefficients": ((1_024, 4_096, 16_384, 65_536), ("structured", "unstructured")),
    "parameters": ((0.5, 1, 2, 4), ("structured", "unstructured", "plain")),  # widths of the LeNet
    "records": ((33, 100, 333, 1_000, 3_000), ("structured", "plain")),
    "clients": ((10, 100, 1_000, 10_000, 100_000), ("structured",)),
}
Row = dict[str, Any]


def run() -> dict[str, list[Row]]:
    """Rows by quantity: its value, the `series`, `round_ms` and `peak_mb`."""
    return {quantity: rows(quantity, *SERIES[quantity]) for quantity in SERIES}


def rows(quantity: str, values: Iterable[float], series: Iterable[str], turns: int = TURNS) -> list[Row]:
    """One row for every series and value, measured in turns."""
    program = [sys.executable, "-m", "benchmarks.scaling", quantity]
    commands = {f"{name} {value}": [*program, name, str(value)] for name in series for value in values}
    outcomes = contest(commands, 1, turns).values()
    return [{**json.loads(outcome.words), "round_ms": 1e3 * outcome.seconds} for outcome in outcomes]


@dataclass(frozen=True)
class Point:
    """A federation to measure: what differs from the benchmark's usual one."""

    records: int = 333
    participants: int = 2
    shape: tuple[int, ...] = (3, 32, 32)
    module: nn.Module = field(default_factory=lambda: lenet((3, 32, 32), 10))
    plan: dict[str, Any] = field(default_factory=dict)


def setting(quantity: str, value: float) -> Point:
    """The federation in which one quantity has this value."""
    if quantity == "coefficients":
        return Point(plan={"coefficients": int(value)})
    if quantity == "parameters":
        return Point(module=wide_lenet(value))
    if quantity == "records":
        return Point(records=int(value))
    shape = (1, 16, 16)
    few = {"context": "public", "coefficients": 4_096}  # contexts of 100,000 would take longer than a round
    return Point(records=8, participants=int(value), shape=shape, module=lenet(shape, 10), plan=few)


def wide_lenet(width: float) -> nn.Module:
    """The LeNet for 3×32×32 images with `width` times its channels and features.

    >>> sum(p.numel() for p in wide_lenet(1).parameters())
    121182
    """
    first, second, third, fourth = (round(width * size) for size in (16, 32, 120, 84))
    layers = [nn.Conv2d(3, first, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 5), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(25 * second, third), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(third, fourth), nn.ReLU(), nn.Linear(fourth, 10))


def compete(quantity: str, series: str, value: float, rounds: int) -> None:
    """One point's side of taking turns; its last words are the row without its time."""
    turns = Turns()
    torch.set_num_threads(1)
    torch.randn(64, 64) @ torch.randn(64, 64)  # what torch sets up at first use is not the round's
    before = kilobytes("VmRSS")
    chosen = setting(quantity, value)
    with _round(chosen, series, rounds) as work:
        for _ in range(rounds):
            turns.wait()
            work()
            turns.done()
    found = sum(p.numel() for p in chosen.module.parameters()) if quantity == "parameters" else int(value)
    peak = (kilobytes("VmHWM") - before) * 1024 / 1e6
    turns.say(json.dumps({quantity: found, "series": series, "peak_mb": peak}))


@contextmanager
def _round(chosen: Point, series: str, rounds: int) -> Iterator[Callable[[], object]]:
    if series == "plain":
        yield _plain(chosen)
        return
    held = math.ceil(chosen.records * 5 / 4)  # a fifth is held out
    plan = {"participants": chosen.participants, "records_per_client": held, "basis": series}
    plan |= {"context_records": min(333, chosen.records), "channel": "direct"} | chosen.plan
    records = made_up(held * chosen.participants, chosen.shape)
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(records, Path(folder, "run"), rounds, chosen.module, **plan)
        try:
            yield lambda: session.record(session.simulation.step())
        finally:
            session.close()


def _plain(chosen: Point) -> Callable[[], object]:
    module, count = chosen.module, chosen.records
    clients = [(torch.randn(count, *chosen.shape), torch.randint(10, (count,))) for _ in range(2)]

    def work() -> None:
        for x, y in clients:
            module.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(x), y))

    return work


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compete(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    else:
        print(json.dumps(run(), indent=2))
