"""Sweeps: many runs of one shape trained in lockstep, so that a grid of seeds and budgets fills a GPU.

Each run keeps its own session: ledger, noise, schedule, server and run directory. Only the clipped means are
computed together, one batch for all clients of all runs in a round, so a run in a batch gives the result it
gives alone, up to the rounding of a batched matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_means
from sottovoce.plan import Plan
from sottovoce.release.once.centre import measured_from
from sottovoce.run.directory import RunDirectory
from sottovoce.run.prepare import Shared, prepare
from sottovoce.run.session import Session
from sottovoce.run.simulation import Round
from studies import replay
from studies.law import LawSession, session_of

# A batch writes many checkpoints at once, and its runs are short: what a crash costs is a few minutes.
CHECKPOINT_SECONDS = 180.0
_shared = Shared(resident=True)
"""What a process keeps on its device between batches."""


SHAPE = ("records", "features", "module")


@dataclass(frozen=True)
class Job:
    """A run to be made: its plan, its directory, and for a replay the run whose gains it repeats."""

    plan: Plan
    out: Path
    source: Path | None = None


def shape(plan: Plan) -> tuple[Any, ...]:
    """Runs with equal shapes can be trained in one batch: a round computes the same of the same records."""
    return tuple(plan.shaping(*SHAPE).values())


def run_batch(
    jobs: Sequence[Job],
    device: str = "cpu",
    on_run: Callable[[Job, Mapping[str, Any]], None] = lambda job, result: None,
    on_round: Callable[[int], None] = lambda number: None,
    dataset: Dataset | None = None,
    law: bool = False,
) -> None:
    """Trains all jobs, which must share one `shape`; interrupted ones are resumed, finished ones left alone.

    `on_run` is called with every job's result, `on_round` with the number of each round that all have made;
    `dataset` replaces what the plans name; with `law` releases are drawn by their law where they have one.
    """
    if len({shape(job.plan) for job in jobs}) > 1:
        raise SottovoceError("runs of one batch must agree in " + ", ".join(jobs[0].plan.shaping(*SHAPE)))
    open_jobs = []
    for job in jobs:
        directory = RunDirectory(job.out)
        if directory.result_file.exists():
            on_run(job, directory.result())
        else:
            open_jobs.append(job)
    if not open_jobs:
        return
    ready = [prepare(job.plan, dataset, trusted=True, device=device, shared=_shared) for job in open_jobs]
    sizes = {prepared.plan.gradient_records for prepared in ready}
    if len(sizes) > 1 or 0 in sizes:
        raise SottovoceError("runs of one batch need clients of one size: set gradient_records")
    if len({prepared.plan.clip for prepared in ready}) > 1:
        raise SottovoceError("runs of one batch need one clip bound: set clip")
    with ExitStack() as stack:
        sessions = []
        for job, prepared in zip(open_jobs, ready, strict=True):
            session = (session_of(job.plan) if law else Session).open(
                prepared,
                job.out,
                resume=RunDirectory(job.out).plan_file.exists(),
                checkpoint_seconds=CHECKPOINT_SECONDS,
                **_replaying(job),
            )
            sessions.append(stack.enter_context(closing(session)))
        _train(sessions, on_round)
        results = [session.finish() for session in sessions]
    for job, result in zip(open_jobs, results, strict=True):  # when their ledgers are closed
        on_run(job, result)
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # other processes share the GPU


def _replaying(job: Job) -> dict[str, Any]:
    """How the session of a replay is opened; its streams are not those of the direct run with its plan."""
    if job.source is None:
        return {}
    gains = replay.recorded_gains(RunDirectory(job.source).rounds_file, job.plan.rounds)
    named = replay.digest(job.plan, job.source.name)
    return {"opened": partial(replay.ReplayServer, gains=gains), "named": named}


def _train(sessions: Sequence[Session], on_round: Callable[[int], None]) -> None:
    """Rounds in lockstep; a run that was resumed waits for those behind it."""
    while left := [session for session in sessions if not session.simulation.done]:
        number = min(session.simulation.server.round for session in left)
        due = [session for session in left if session.simulation.server.round == number]
        rounds = [session.simulation.open_round() for session in due]
        start = 0
        means = _clipped(due, rounds)
        for session, opened in zip(due, rounds, strict=True):
            stop = start + len(opened.clients)
            mine = means[start:stop]
            if not isinstance(session, LawSession):
                mine = mine.cpu()  # at once, before each client asks for its own
            session.record(session.simulation.close_round(opened, mine))
            start = stop
        on_round(number + 1)


def _clipped(sessions: Sequence[Session], rounds: Sequence[Round]) -> Tensor:
    """The clipped means (clients of all runs, k) of a round."""
    thetas, bases, xs, ys = [], [], [], []
    for session, opened in zip(sessions, rounds, strict=True):
        blueprint = session.simulation.blueprint
        sent, size = torch.stack([blueprint.cut(one) for one in opened.coefficients]), blueprint.coefficients
        thetas.append(blueprint.theta(sent[:, :size]))
        for client in opened.clients:
            records = client.training_records(opened.number)
            if records.unit is not None:
                raise SottovoceError("units of several records are not trained in batches: train runs singly")
            if blueprint.inputs is not None:
                records = measured_from(records, sent[0, size:], blueprint.recipe.longest)
            bases.append(blueprint.basis)
            xs.append(records.x)
            ys.append(records.y)
    blueprint = sessions[0].simulation.blueprint
    return clipped_means(
        blueprint.module,
        torch.cat(thetas),
        bases,
        torch.stack(xs),
        torch.stack(ys),
        clip=blueprint.plan.clip,
        denominator=blueprint.plan.gradient_records,
        loss=blueprint.model.losses,
    )
