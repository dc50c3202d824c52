"""What a worker does with a batch of runs, wherever it is: the one way from cells to results.

A worker says how far it is: `Progress`, `Finished` with every run, and at the end `Ended`, with a problem in
one line if the batch failed. A finished run has left its summary before it is reported, and what was
checkpointed when a worker is ended at some moment is there when the batch is handed out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import train
from studies.grid import CellRun
from studies.summary import write_summary
from studies.sweep import Job, run_batch

Batch = Sequence[CellRun]


@dataclass(frozen=True)
class Setting:
    """How a batch is worked on: the device, the threads; with `law` (`CellRun.law`) noise is drawn there."""

    device: str
    threads: int
    law: bool = False


@dataclass(frozen=True)
class Progress:
    """So many more rounds of runs are done."""

    rounds: int


@dataclass(frozen=True)
class Finished:
    """A run is finished and summarized."""

    run: CellRun


@dataclass(frozen=True)
class Ended:
    """The batch is done; `problem` says why, if it failed, and `again` whether it may go better next time."""

    problem: str | None = None
    again: bool = False


Said = Progress | Finished | Ended


class Executor(Protocol):
    """Workers somewhere that take batches: processes here, or those of a cluster."""

    def room(self) -> bool:
        """Whether a worker is free, or may be started, for one more batch."""

    def start(self, batch: Batch) -> None:
        """Hands a batch to a worker."""

    def wait(self, seconds: float | None) -> list[tuple[Batch, Said]]:
        """What workers have said since, with their batches; nothing if it takes longer than `seconds`."""

    def close(self) -> None:
        """Ends all workers at once; their runs can be resumed from their checkpoints."""


def work(
    root: Path,
    batch: Batch,
    setting: Setting,
    load: Callable[[str], Dataset],
    say: Callable[[Said], None],
) -> None:
    """Trains a batch in directories under `root`, resuming those that are there; `load` opens datasets."""
    torch.set_num_threads(setting.threads)
    try:
        _train(root, batch, setting, load, say)
    except SottovoceError as error:
        say(Ended(str(error)))
    except Exception as error:  # one broken batch must not take the rest of the grid with it
        say(Ended(f"{type(error).__name__}: {error}", again=True))
    else:
        say(Ended())


def _train(
    root: Path,
    batch: Batch,
    setting: Setting,
    load: Callable[[str], Dataset],
    say: Callable[[Said], None],
) -> None:
    device = device_name(setting.device)
    runs = {run.name: run for run in batch}
    jobs = [_job(root, run, setting) for run in batch]
    dataset = load(jobs[0].plan.dataset)

    def finish(job: Job, result: Mapping[str, Any]) -> None:
        write_summary(root, runs[job.out.name], device, law=setting.law)
        say(Finished(runs[job.out.name]))

    if setting.device != "cpu" or len(batch) > 1 or setting.law or jobs[0].source is not None:
        run_batch(
            jobs,
            setting.device,
            finish,
            lambda number: say(Progress(len(batch))),
            dataset=dataset,
            law=setting.law,
        )
        return
    [job] = jobs
    result = train(
        job.plan,
        job.out,
        resume=RunDirectory(job.out).plan_file.exists(),
        dataset=dataset,
        on_round=lambda line: say(Progress(1)),
    )
    finish(job, result)


def _job(root: Path, run: CellRun, setting: Setting) -> Job:
    source = None if run.source is None else root / run.source.name
    return Job(run.law() if setting.law else run.plan, root / run.name, source)


def device_name(device: str) -> str:
    """The device in words, for results.

    >>> device_name("cpu")
    'cpu'
    """
    return device if device == "cpu" else torch.cuda.get_device_name(torch.device(device))
