"""A round of our simulator, of pfl-research and of Flower's, as JSON: `python -m benchmarks.round`.

Every contender is a process of its own on the same cores, and they take turns: one round each, again and
again, with the others waiting. Start-up and the first rounds are left out; figures are medians of wall time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import Any

import torch

from benchmarks.environment import peer_python, variables
from sottovoce.engines import bench

WARM_UP = 3
OURS = ("plain", "direct", "polar", "global")
PEERS = {"pfl": "with_pfl", "flower": "with_flower"}


def run(turns: int = 15) -> dict[str, Any]:
    """The figures of `sottovoce bench round`, and `milliseconds` a round by cores and contender."""
    torch.set_num_threads(1)
    commands = contenders()
    sides = {}
    for cores in sorted({1, min(2, os.cpu_count() or 1)}):
        sides[f"{cores} core" if cores == 1 else f"{cores} cores"] = {
            name: 1e3 * seconds for name, seconds in medians(commands, cores, turns).items()
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


def medians(commands: dict[str, list[str]], cores: int, turns: int) -> dict[str, float]:
    """Seconds a round; a contender that fails is left out, and a line says so."""
    with ExitStack() as stack:
        # A last round is left to be made when all have been measured: no contender stops before.
        started = {
            name: stack.enter_context(Contender(command, WARM_UP + turns + 1, cores))
            for name, command in commands.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in started}
        for _ in range(WARM_UP + turns):
            for name, contender in started.items():
                if (spent := contender.turn()) is not None:
                    seconds[name].append(spent)
    finished = {name: spent for name, spent in seconds.items() if len(spent) == WARM_UP + turns}
    for name in seconds.keys() - finished.keys():
        print(f"{name} stopped after {len(seconds[name])} rounds: left out", file=sys.stderr)
    return {name: statistics.median(spent[WARM_UP:]) for name, spent in finished.items()}


class Contender:
    """A process that makes a round for each line that it is sent."""

    def __init__(self, command: list[str], rounds: int, cores: int) -> None:
        allowed = sorted(os.sched_getaffinity(0))[:cores]
        self._process = subprocess.Popen(
            [*command, str(rounds), str(cores)],
            env=variables(cores),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )

    def __enter__(self) -> Contender:
        return self

    def turn(self) -> float | None:
        """Seconds of one round; None if the process is gone."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = process.stdout.readline()
        return float(answer) if answer else None

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
