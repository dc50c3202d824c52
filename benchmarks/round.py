"""A round of our simulator, of pfl-research and of Flower's, as JSON: `python -m benchmarks.round`.

Every contender is a process of its own on the same cores, and they take turns; figures are medians of wall
time, without start-up.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from benchmarks.contest import contest
from benchmarks.environment import peer_python
from studies.bench import round as bench

OURS = ("plain", "direct", "polar", "global")
PEERS = {"pfl": "with_pfl", "flower": "with_flower"}


def run(turns: int = 15) -> dict[str, Any]:
    """The figures of `sottovoce bench round`, and `milliseconds` a round by cores and contender."""
    torch.set_num_threads(1)
    commands = contenders()
    sides = {}
    for cores in sorted({1, min(2, os.cpu_count() or 1)}):
        sides[f"{cores} core" if cores == 1 else f"{cores} cores"] = {
            name: 1e3 * outcome.seconds for name, outcome in contest(commands, cores, turns).items()
        }
    return {**bench.measure(turns), "milliseconds": sides}


def contenders() -> dict[str, list[str]]:
    """The command of every contender that can be had, without rounds and cores."""
    commands = {name: [sys.executable, "-m", "benchmarks.peers.ours", name] for name in OURS}
    for peer, module in PEERS.items():
        python = peer_python(peer)
        if python is not None:
            commands[peer] = [str(python), "-m", f"benchmarks.peers.{module}"]
    return commands


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
