"""Execution: carries out a grid by parallel workers, reuses what is finished, and survives interruption.

Workers are processes here (`pool`) or those of a Ray cluster (`cluster`). On the CPU each trains one run at a
time and the cores are divided among them; on a GPU each trains a batch of runs of one shape in lockstep. What
was finished or checkpointed when a worker is lost, or the grid interrupted, is there when it goes on.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.run.directory import RunDirectory
from studies.grid import CellRun, batches_of
from studies.pool import Pool
from studies.summary import finished
from studies.work import Batch, Ended, Executor, Finished, Progress

GPU_BATCH = 5

TRIES = 3
"""How often a batch is handed out whose worker is lost or breaks; what is impossible is not tried again."""


@dataclass(frozen=True)
class Resources:
    """What a grid may use; it changes speed only.

    `jobs` 0 is one worker per core, `batch` the most runs that a worker trains in lockstep (0: one on the
    CPU, 5 on a GPU), `minutes` the time after which work is broken off, `cluster` the address of a Ray
    cluster (auto: the one this machine belongs to) whose machines do the work, empty for this machine alone.
    """

    device: str = "cpu"
    jobs: int = 0
    batch: int = 0
    minutes: float | None = None
    law: bool = False
    cluster: str = ""


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
    todo = [run for run in runs if run.digest not in known and not finished(root, run)]
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
    most = resources.batch or (1 if resources.device == "cpu" else GPU_BATCH)
    batches: list[Batch] = [*batches_of(runs, most)]
    deadline = None if resources.minutes is None else started + 60 * resources.minutes
    unfinished = {run.name for run in runs}
    busy, problems = 0, []
    tries: Counter[str] = Counter()
    executor = _executor(root, resources, len(batches))
    try:
        while batches or busy:
            for batch in _ready(batches, unfinished):
                if not executor.room():
                    break
                executor.start(batch)
                batches.remove(batch)
                busy += 1
            if not busy:
                problems.append(f"{sum(map(len, batches))} replays wait for runs that failed")
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            for batch, said in executor.wait(left):
                if isinstance(said, Progress):
                    on_rounds(said.rounds)
                elif isinstance(said, Finished):
                    unfinished.discard(said.run.name)
                    on_run(said.run)
                elif isinstance(said, Ended):
                    busy -= 1
                    if said.problem is None:
                        continue
                    rest = [run for run in batch if run.name in unfinished]
                    tries.update(run.name for run in rest)
                    if said.again and rest and max(tries[run.name] for run in rest) < TRIES:
                        batches.insert(0, rest)
                    else:
                        problems.append(f"{batch[0].name}: {said.problem}")
        return Outcome(len(runs) - len(unfinished), problems, out_of_time=bool(busy))
    finally:
        executor.close()


def _executor(root: Path, resources: Resources, batches: int) -> Executor:
    """The workers that a grid may use, no more than it has batches."""
    if not resources.cluster:
        return Pool(root, resources.device, resources.jobs, law=resources.law, batches=batches)
    from studies.cluster import Cluster

    return Cluster(root, resources.cluster, resources.device, resources.jobs, law=resources.law)


def _ready(batches: Sequence[Batch], unfinished: set[str]) -> list[Batch]:
    """Batches that may start: the sources of their replays are finished."""
    return [b for b in batches if not any(run.source and run.source.name in unfinished for run in b)]
