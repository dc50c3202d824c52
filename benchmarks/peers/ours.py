"""Our simulator, or two ordinary training steps: `python -m benchmarks.peers.ours NAME ROUNDS CORES`.

A round of ours clips each record's gradient, adds the noise of the budget, charges two clients in a ledger
on disk, encodes, decodes, and moves a generator; `global` moves one shared model of full size instead.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from studies.bench.round import SETTINGS, made_up, open_session
from torch.nn import functional as F

from benchmarks.peers.records import CLIENTS_PER_ROUND, clients
from benchmarks.peers.turns import Turns
from sottovoce.models.architectures import lenet

VARIANTS: dict[str, dict[str, Any]] = {
    "direct": {"channel": "direct"},
    "polar": {"channel": "polar"},
    "global": {"channel": "direct", "method": "global", "context": "public"},
}


def main(name: str, rounds: int, cores: int) -> None:
    turns = Turns()
    torch.set_num_threads(cores)
    if name == "plain":
        _take(turns, rounds, _plain())
        return
    records = made_up(SETTINGS["participants"] * SETTINGS["records_per_client"])
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(records, Path(folder, "run"), rounds, **VARIANTS[name])
        with closing(session):
            _take(turns, rounds, lambda: session.record(session.simulation.step()))


def _take(turns: Turns, rounds: int, work: Callable[[], None]) -> None:
    for _ in range(rounds):
        turns.wait()
        work()
        turns.done()


def _plain() -> Callable[[], None]:
    module = lenet((3, 32, 32), 10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    waiting = cycle(clients())

    def work() -> None:
        for _ in range(CLIENTS_PER_ROUND):
            x, y = next(waiting)
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(x), y))
            optimizer.step()

    return work


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
