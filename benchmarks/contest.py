"""Processes that take turns: a round each, again and again, with the others waiting.

What else the machine does then hits all of them alike. Start-up and the first rounds are left out.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from threading import Timer

from benchmarks.environment import variables

WARM_UP = 3
LIMIT_SECONDS = 120.0  # of a round, the first with start-up


@dataclass(frozen=True)
class Timing:
    """Median wall seconds of a round, and what the contender said when all was over."""

    seconds: float
    words: str


def contest(commands: Mapping[str, Sequence[str]], cores: int, turns: int) -> dict[str, Timing]:
    """The outcome of every contender, which is given rounds and cores as its last two arguments.

    One that stops early is left out, and a line says so.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    with ExitStack() as stack:
        # A last round is left to be made when all have been measured: no contender stops before.
        started = {
            name: stack.enter_context(Contender(command, WARM_UP + turns + 1, cores))
            for name, command in commands.items()
        }
        for _ in range(WARM_UP + turns):
            for name, contender in started.items():
                if (spent := contender.turn()) is not None:
                    seconds[name].append(spent)
    outcomes = {}
    for name, times in seconds.items():
        if len(times) == WARM_UP + turns:
            outcomes[name] = Timing(statistics.median(times[WARM_UP:]), started[name].words)
        else:
            print(f"{name} stopped after {len(times)} rounds: left out", file=sys.stderr)
    return outcomes


class Contender:
    """A process that makes a round for each line that it is sent."""

    words = ""

    def __init__(self, command: Sequence[str], rounds: int, cores: int) -> None:
        allowed = sorted(os.sched_getaffinity(0))[:cores]
        self._process = subprocess.Popen(
            [*command, str(rounds), str(cores)],
            env=variables(cores),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
            start_new_session=True,
        )

    def __enter__(self) -> Contender:
        return self

    def turn(self) -> float | None:
        """Seconds of one round; None if the process is gone, or was ended because it took too long."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        limit = Timer(LIMIT_SECONDS, self._end)
        limit.start()
        answer = process.stdout.readline()
        limit.cancel()
        return float(answer) if answer else None

    def _end(self) -> None:
        """Ends the process with all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __exit__(self, *error: object) -> None:
        process = self._process
        with suppress(BrokenPipeError):
            try:
                words, _ = process.communicate(timeout=60)  # closes its stdin first
            except subprocess.TimeoutExpired:
                self._end()
                words, _ = process.communicate()
            # The round that was left over answers first.
            self.words = words.partition("\n")[2].strip()
        self._end()
