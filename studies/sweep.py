"""Sweeps: many runs of one shape trained in lockstep, so that a grid of seeds and budgets fills a GPU.

Each run keeps its own session: ledger, noise, schedule, server and run directory. Only the clipped means are
computed together, one batch for all clients of all runs in a round, so a run in a batch gives the result it
gives alone, up to the rounding of a batched matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce import data
from sottovoce.data import Dataset, FederatedDataset
from sottovoce.errors import SottovoceError
from sottovoce.features.kept import described
from sottovoce.gradients import clipped_means
from sottovoce.plan import Plan
from sottovoce.run.directory import RunDirectory
from sottovoce.run.rounds import Round
from sottovoce.run.session import Session
from studies.law import LawSession, session_of

SHAPE = (
    "dataset",
    "model",
    "method",
    "basis",
    "coefficients",
    "gradient_records",
    "clip",
    "rounds",
    "clients_per_round",
    "features",
    "feature_size",
    "mirror",
    "shift",
)
"""Plan keys in which runs of a batch must agree."""

# A batch writes many checkpoints at once, and its runs are short: what a crash costs is a few minutes.
CHECKPOINT_SECONDS = 180.0
KEPT = 2
"""Datasets that a process keeps on its device between batches."""


@dataclass(frozen=True)
class Job:
    """A run to be made: its plan and its directory."""

    plan: Plan
    out: Path


def shape(plan: Plan) -> tuple[Any, ...]:
    """Runs with equal shapes can be trained in one batch."""
    return tuple(getattr(plan, key) for key in SHAPE)


def run_batch(
    jobs: Sequence[Job],
    device: str = "cpu",
    on_run: Callable[[Job, dict[str, Any]], None] = lambda job, result: None,
    on_round: Callable[[int], None] = lambda number: None,
    dataset: Dataset | None = None,
    law: bool = False,
) -> None:
    """Trains all jobs, which must share one `shape`; interrupted ones are resumed, finished ones left alone.

    `on_run` is called with every job's result, `on_round` with the number of each round that all have made;
    `dataset` replaces what the plans name; with `law` releases are drawn by their law where they have one.
    """
    if len({shape(job.plan) for job in jobs}) > 1:
        raise SottovoceError("runs of one batch must agree in " + ", ".join(SHAPE))
    open_jobs = []
    for job in jobs:
        directory = RunDirectory(job.out)
        if directory.result_file.exists():
            on_run(job, directory.result())
        else:
            open_jobs.append(job)
    if not open_jobs:
        return
    plan = jobs[0].plan
    records = _on_device(dataset if dataset is not None else data.load(plan.dataset), plan, device)
    federations: dict[tuple[Any, ...], FederatedDataset] = {}
    with ExitStack() as stack:
        sessions = []
        for job in open_jobs:
            session = _open(job, records, federations, device, law)
            stack.enter_context(closing(session))
            sessions.append(session)
        if len({session.simulation.blueprint.plan.gradient_records for session in sessions}) > 1:
            raise SottovoceError("runs of one batch need clients of one size: set gradient_records")
        _train(sessions, on_round)
        for job, session in zip(open_jobs, sessions, strict=True):
            on_run(job, session.finish())
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # other processes share the GPU


_last: list[tuple[Dataset, tuple[Any, ...], Dataset]] = []


def _on_device(records: Dataset, plan: Plan, device: str) -> Dataset:
    """Records as the plan's models see them, on the device; those of the last batches are kept."""
    wanted = (plan.features, plan.feature_size, plan.mirror, plan.shift, device)
    for source, how, found in _last:
        if source is records and how == wanted:
            return found
    found = described(records, plan, device=device).to(device)
    _last[:] = [*_last[1 - KEPT :], (records, wanted, found)]
    return found


def _train(sessions: Sequence[Session], on_round: Callable[[int], None]) -> None:
    """Rounds in lockstep; a run that was resumed waits for those behind it."""
    while True:
        number = min(session.simulation.server.round for session in sessions)
        due = [session for session in sessions if session.simulation.server.round == number]
        if due[0].simulation.done:
            return
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
        thetas.append(blueprint.theta(opened.coefficients))
        for client in opened.clients:
            records = client.training_records(opened.number)
            if records.unit is not None:
                raise SottovoceError("units of several records are not trained in batches: train runs singly")
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


def _open(
    job: Job,
    records: Dataset,
    federations: dict[tuple[Any, ...], FederatedDataset],
    device: str,
    law: bool,
) -> Session:
    plan = job.plan
    divided = (
        plan.partition,
        plan.alpha,
        plan.participants,
        plan.future_clients,
        plan.records_per_client,
        plan.context_records,
        plan.seed,
        plan.shift,
    )
    if divided not in federations:
        federations[divided] = data.divide(records, plan)
    return (session_of(plan) if law else Session).open(
        plan,
        job.out,
        records=records,
        federation=federations[divided],
        resume=RunDirectory(job.out).plan_file.exists(),
        device=device,
        checkpoint_seconds=CHECKPOINT_SECONDS,
    )
