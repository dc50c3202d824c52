"""Training a federation from Python: resolve a plan, run it in a directory, resume it, evaluate it.

The command line calls these functions and adds progress bars; they can be used alone:

    plan = Plan.load(overrides={"dataset": "mnist-small", "epsilon": 8})
    result = train(plan, "runs/first")
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from sottovoce import data
from sottovoce.blueprint import Blueprint, draw, participant_name, seeded_master
from sottovoce.data import Dataset, Federation
from sottovoce.data.federation import training_size
from sottovoce.engines.simulator import Simulation
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan, PlanError
from sottovoce.privacy import schedule
from sottovoce.privacy.ledger import Ledger, Overspent
from sottovoce.results import accuracies, assemble
from sottovoce.run import RunDirectory, RunError, load_tensors, save_tensors, write_atomically
from sottovoce.server import Server

OnRound = Callable[[dict[str, Any]], None]


class Interrupted(SottovoceError):
    """Ctrl-C during a run; everything up to the last complete round is saved."""


def deal(plan: Plan, dataset: Dataset) -> Federation:
    """The dataset's records in the hands of the plan's clients."""
    return data.federation(
        dataset,
        partition=plan.partition,
        participants=plan.participants,
        future_clients=plan.future_clients,
        records_per_client=plan.records_per_client,
        alpha=plan.alpha,
        context_records=plan.context_records,
        seed=plan.seed,
    )


def resolve(plan: Plan, smallest_client: int) -> Plan:
    """The plan with `gradient_records` settled; `smallest_client` counts the smallest participant's records."""
    available = training_size(smallest_client)
    wanted = plan.gradient_records or available
    if wanted > available:
        raise PlanError(
            f"gradient_records={wanted}, but the smallest participant has {available} training records: "
            f"set gradient_records to at most {available}, or 0 for all"
        )
    return plan.replace(gradient_records=wanted)


def train(
    plan: Plan,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    resume: bool = False,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
    device: str = "cpu",
    checkpoint_every: int = 25,
    on_round: OnRound = lambda line: None,
) -> dict[str, Any]:
    """Trains `plan` in the run directory `out` and returns its result (the content of result.json).

    `ledger` lets budgets add up over several runs on the same records; `dataset` and `module` replace what
    the plan names; the rest changes speed or display only. `resume` goes on from the last checkpoint, with
    the same releases as if nothing had happened.
    """
    records = dataset if dataset is not None else data.load(plan.dataset)
    federation = deal(plan, records)
    plan = resolve(plan, min(federation.participants.sizes))
    directory = RunDirectory(out)
    blueprint = draw(plan, federation.shape, federation.classes, module).to(device)
    if resume:
        directory.check_same_plan(plan)
    else:
        directory.create(plan)
    with ExitStack() as stack:
        book = None
        if plan.private:
            path = ledger if ledger is not None else directory.ledger_file
            book = stack.enter_context(Ledger.open(path, scope=scope(plan, records)))
        simulation = _simulation(directory, blueprint, federation, book, device)
        run = _run_name(directory, plan)
        if resume and directory.checkpoint_file.exists():
            state, _ = load_tensors(directory.checkpoint_file)
            simulation.load_state(state)
            directory.truncate_rounds(simulation.server.round)
        elif resume and directory.model_file.exists():
            return directory.result()
        elif book is not None:
            _check_budget(blueprint, book, run)
        _run_rounds(simulation, directory, book, run, checkpoint_every, on_round)
        simulation.server.finish()
        seen, future = simulation.evaluate()
        result = assemble(blueprint, directory.rounds(), seen, future, book)
    _save_model(directory, simulation)
    write_atomically(directory.result_file, (json.dumps(result, indent=1) + "\n").encode())
    directory.checkpoint_file.unlink(missing_ok=True)
    return result


def evaluate(out: str | Path, *, dataset: Dataset | None = None, device: str = "cpu") -> dict[str, Any]:
    """Evaluates a finished run again and returns its result with fresh accuracies."""
    directory = RunDirectory(out)
    plan = directory.plan()
    federation = deal(plan, dataset if dataset is not None else data.load(plan.dataset))
    blueprint = draw(plan, federation.shape, federation.classes).to(device)
    simulation = Simulation(blueprint, federation, Server(blueprint, device), None, run="", master=b"")
    state, _ = load_tensors(directory.model_file)
    simulation.load_state(state)
    seen, future = simulation.evaluate()
    return {**directory.result(), "accuracy": accuracies(seen, future)}


def scope(plan: Plan, records: Dataset) -> str:
    """A fingerprint of which records each client holds: budgets add up only where it is equal."""
    digest = hashlib.blake2b(records.x.numpy().tobytes(), digest_size=16)
    digest.update(records.y.numpy().tobytes())
    dealt = (plan.partition, plan.alpha, plan.participants, plan.future_clients, plan.records_per_client)
    digest.update(repr((*dealt, plan.seed)).encode())
    return digest.hexdigest()


def recorded_gains(path: str, rounds: int) -> list[float]:
    """‖h_t‖² of every round of another run, for `method=replay`."""
    try:
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        gains = [float(line["gain"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"replay_gains={path} is not the rounds.jsonl of a run: {error}") from None
    if len(gains) < rounds:
        raise PlanError(f"replay_gains={path} holds {len(gains)} rounds, fewer than rounds={rounds}")
    return gains


def _simulation(
    directory: RunDirectory, blueprint: Blueprint, federation: Federation, book: Ledger | None, device: str
) -> Simulation:
    plan = blueprint.plan
    gains = recorded_gains(plan.replay_gains, plan.rounds) if plan.method == "replay" else None
    return Simulation(
        blueprint,
        federation,
        Server(blueprint, device, gains),
        book,
        run=_run_name(directory, plan),
        master=seeded_master(plan) if plan.seeded else directory.master_secret(),
    )


def _run_name(directory: RunDirectory, plan: Plan) -> str:
    """The run's name in streams: the plan's digest for a seeded simulation, else drawn once."""
    if plan.seeded:
        return plan.digest()
    if not directory.name_file.exists():
        write_atomically(directory.name_file, secrets.token_hex(8).encode())
    return directory.name_file.read_text()


def _run_rounds(
    simulation: Simulation,
    directory: RunDirectory,
    book: Ledger | None,
    run: str,
    checkpoint_every: int,
    on_round: OnRound,
) -> None:
    plan, server = simulation.blueprint.plan, simulation.server

    def checkpoint() -> None:
        save_tensors(directory.checkpoint_file, simulation.state(), {"plan": plan.digest()})
        if book is not None:
            book.forget(run, before_round=server.round + 1)

    try:
        while not simulation.done:
            line = simulation.step()
            if plan.evaluate_every and server.round % plan.evaluate_every == 0:
                simulation.evaluate_into(line)
            directory.append_round(line)
            on_round(line)
            if server.round % checkpoint_every == 0:
                checkpoint()
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted in round {server.round + 1} of {plan.rounds}: go on with "
            f"'sottovoce train --resume --out {directory.path}'"
        ) from None
    checkpoint()


def _check_budget(blueprint: Blueprint, book: Ledger, run: str) -> None:
    """Refuses a run that could not be finished, before its first release."""
    plan = blueprint.plan
    counts: Sequence[int] = schedule.counts(blueprint.schedule, plan.participants).tolist()
    per_gradient = (blueprint.gradient_sensitivity / blueprint.sigma) ** 2
    per_context = (blueprint.context_sensitivity / blueprint.sigma_context) ** 2 if plan.releases_context else 0.0
    for participant, count in enumerate(counts):
        name = participant_name(participant)
        total = book.spent(name) + count * per_gradient + per_context
        if total > blueprint.budget.mu_squared * (1 + 1e-9):
            spent = book.epsilon(name, plan.delta, plan.accounting)
            raise Overspent(
                f"{name} has spent ε={spent:.3f} in {book.path} and this run would take it past "
                f"ε={blueprint.budget.epsilon:g}: lower epsilon, or raise budget"
            )


def _save_model(directory: RunDirectory, simulation: Simulation) -> None:
    blueprint = simulation.blueprint
    state = {
        name: value
        for name, value in simulation.state().items()
        if not name.startswith(("momentum.", "average."))
    }
    metadata = {
        "plan": blueprint.plan.to_toml(),
        "shape": json.dumps(blueprint.shape),
        "classes": str(blueprint.classes),
    }
    save_tensors(directory.model_file, state, metadata)


__all__ = ["Interrupted", "RunError", "deal", "evaluate", "recorded_gains", "resolve", "scope", "train"]
