"""Execution: carries out a grid in parallel processes, reuses what is finished, and survives interruption.

On the CPU every process trains one run at a time and the cores are divided among the processes; on a GPU
every process trains a batch of runs of one shape in lockstep. What was finished or checkpointed when a grid
is interrupted is there when it is started again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from sottovoce.experiments.grid import CellRun, batches_of
from sottovoce.experiments.pool import Finished, Idle, Progress, Setting, Worker
from sottovoce.experiments.summary import finished
from sottovoce.simulation.directory import RunDirectory

GPU_BATCH = 25


@dataclass(frozen=True)
class Resources:
    """What a grid may use; it changes speed only.

    `jobs` 0 is one process per core, `batch` the most runs that a process trains in lockstep (0: one on the
    CPU, 25 on a GPU), `minutes` the time after which work is broken off.
    """

    device: str = "cpu"
    jobs: int = 0
    batch: int = 0
    minutes: float | None = None
    law: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a grid ended: runs finished now, problems in one line each, and whether the time ran out."""

    finished: int
    problems: list[str]
    out_of_time: bool


def pending(root: Path, runs: Sequence[CellRun], known: frozenset[str] = frozenset()) -> list[CellRun]:
    """Runs still to be made: not finished here and not `known` (by digest) from elsewhere.

    A replay needs its source's directory, so a known source that does not lie here is made again.
    """
    todo = [run for run in runs if run.plan.digest() not in known and not finished(root, run)]
    sources = {run.source.name for run in todo if run.source is not None and not finished(root, run.source)}
    wanted = {run.name for run in todo} | sources
    return [run for run in runs if run.name in wanted]


def run_grid(
    root: Path,
    runs: Sequence[CellRun],
    resources: Resources,
    *,
    resume: bool = False,
    on_rounds: Callable[[int], None] = lambda rounds: None,
    on_run: Callable[[CellRun], None] = lambda run: None,
) -> Outcome:
    """Makes `runs` in `root`. With `resume` unfinished ones continue from their checkpoints, else restart.

    `on_rounds` is called with every number of rounds done, `on_run` with every finished run. Ends early, with
    nothing lost but the work since the last checkpoints, on Ctrl-C or when the minutes are over.
    """
    started = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    if not resume:
        for run in runs:
            if not RunDirectory(root / run.name).result_file.exists():
                shutil.rmtree(root / run.name, ignore_errors=True)
    cores = os.cpu_count() or 1
    batches = batches_of(runs, resources.batch or (1 if resources.device == "cpu" else GPU_BATCH))
    jobs = max(1, min(resources.jobs or cores, len(batches)))
    setting = Setting(root.resolve(), resources.device, max(1, cores // jobs), resources.law)
    deadline = None if resources.minutes is None else started + 60 * resources.minutes
    open_sources = {run.name for run in runs}
    idle: list[Worker] = []
    busy: list[Worker] = []
    done, problems = 0, []
    try:
        while batches or busy:
            for batch in _ready(batches, open_sources):
                if not idle and len(busy) == jobs:
                    break
                worker = idle.pop() if idle else Worker(setting)
                worker.send(batch)
                batches.remove(batch)
                busy.append(worker)
            if not busy:
                problems.append(f"{sum(map(len, batches))} replays wait for runs that failed")
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return Outcome(done, problems, out_of_time=True)
            ready = wait([worker.connection for worker in busy], left)
            for worker in [worker for worker in busy if worker.connection in ready]:
                said = worker.receive()
                if isinstance(said, Progress):
                    on_rounds(said.rounds)
                elif isinstance(said, Finished):
                    done += 1
                    open_sources.discard(said.run.name)
                    on_run(said.run)
                elif isinstance(said, Idle):
                    if said.problem is not None:
                        problems.append(f"{worker.batch[0].name}: {said.problem}")
                    busy.remove(worker)
                    if worker.alive:
                        idle.append(worker)
        return Outcome(done, problems, out_of_time=False)
    finally:
        for worker in [*idle, *busy]:
            worker.end()


def _ready(batches: Sequence[list[CellRun]], unfinished: set[str]) -> list[list[CellRun]]:
    """Batches that may start: the sources of their replays are finished."""
    return [b for b in batches if not any(run.source and run.source.name in unfinished for run in b)]
