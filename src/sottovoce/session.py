"""A session: one simulated run with its directory, its ledger and its checkpoints, from opening to result.

The order of writing makes it safe to kill at any moment: releases are charged before they leave, rounds are
logged after they are applied, and messages are forgotten only when a checkpoint has made them superfluous.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from sottovoce import data
from sottovoce.blueprint import Blueprint, draw, participant_name, seeded_master
from sottovoce.data import Dataset, Federation, training_size
from sottovoce.engines.simulator import Simulation
from sottovoce.plan import Plan, PlanError
from sottovoce.privacy import schedule
from sottovoce.privacy.ledger import Ledger, Overspent
from sottovoce.results import assemble
from sottovoce.run import RunDirectory, load_tensors, save_tensors, write_atomically
from sottovoce.server import Server

CHECKPOINT_SECONDS = 20.0


class Session:
    """An open run. Use `Session.open`, call `record` with every round's line, then `finish`."""

    def __init__(
        self,
        directory: RunDirectory,
        simulation: Simulation,
        ledger: Ledger | None,
        run: str,
        records: Dataset,
        checkpoint_seconds: float,
    ) -> None:
        self.directory = directory
        self.simulation = simulation
        self._ledger = ledger
        self._run = run
        self._records = records
        self._checkpoint_seconds = checkpoint_seconds
        self._saved = time.monotonic()

    @classmethod
    def open(
        cls,
        plan: Plan,
        out: str | Path,
        *,
        records: Dataset,
        federation: Federation,
        ledger: str | Path | None = None,
        resume: bool = False,
        module: nn.Module | None = None,
        device: str = "cpu",
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> Session:
        """Starts a run in the directory `out`, or goes on from its last checkpoint."""
        plan = resolve(plan, min(federation.participants.sizes))
        blueprint = draw(plan, federation.shape, federation.classes, module).to(device)
        gains = recorded_gains(plan.replay_gains, plan.rounds) if plan.method == "replay" else None
        directory = RunDirectory(out)
        if resume:
            directory.check_same_plan(plan)
        else:
            directory.reserve()
        with ExitStack() as stack:
            book = None
            if plan.private:
                book = Ledger.open(ledger or directory.ledger_file, scope=scope(plan, records))
                stack.callback(book.close)
                if not resume:
                    _check_budget(blueprint, book)
            if not resume:
                directory.start(plan)
            run = _run_name(directory, plan)
            master = seeded_master(plan) if plan.seeded else directory.master_secret()
            server = Server(blueprint, device, gains)
            simulation = Simulation(blueprint, federation, server, book, run=run, master=master)
            if directory.checkpoint_file.exists():
                simulation.load_state(load_tensors(directory.checkpoint_file)[0])
            directory.truncate_rounds(server.round)
            stack.pop_all()
        return cls(directory, simulation, book, run, records, checkpoint_seconds)

    def record(self, line: dict[str, Any]) -> None:
        """Writes down a round that was applied; evaluates and checkpoints when they are due."""
        plan, number = self.simulation.blueprint.plan, self.simulation.server.round
        if plan.evaluate_every and number % plan.evaluate_every == 0:
            self.simulation.evaluate_into(line)
        self.directory.append_round(line)
        if time.monotonic() - self._saved >= self._checkpoint_seconds:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Makes all rounds so far durable, then forgets their messages."""
        simulation = self.simulation
        save_tensors(self.directory.checkpoint_file, simulation.state(), {})
        self._saved = time.monotonic()
        if self._ledger is not None:
            self._ledger.forget(self._run, before_round=simulation.server.round + 1)

    def finish(self) -> dict[str, Any]:
        """Evaluates the final generator and writes model.safetensors and result.json."""
        self.checkpoint()
        simulation, blueprint = self.simulation, self.simulation.blueprint
        simulation.server.finish()
        seen, future = simulation.evaluate()
        result = assemble(blueprint, self.directory.rounds(), seen, future, self._ledger)
        metadata = {
            "run": self._run,
            "plan": json.dumps(dataclasses.asdict(blueprint.plan)),
            "shape": json.dumps(blueprint.shape),
            "classes": str(blueprint.classes),
            "mean": json.dumps(self._records.mean),
            "std": json.dumps(self._records.std),
        }
        save_tensors(self.directory.model_file, simulation.final_state(), metadata)
        write_atomically(self.directory.result_file, (json.dumps(result, indent=1) + "\n").encode())
        self.directory.checkpoint_file.unlink(missing_ok=True)
        return result

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


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
    """The plan with `gradient_records` settled, for a smallest participant of so many records."""
    available = training_size(smallest_client)
    wanted = plan.gradient_records or available
    if wanted > available:
        raise PlanError(
            f"gradient_records={wanted}, but the smallest participant has {available} training records: "
            f"set gradient_records to at most {available}, or 0 for all"
        )
    return plan.replace(gradient_records=wanted)


def scope(plan: Plan, records: Dataset) -> str:
    """A fingerprint of which records each client holds: budgets add up only where it is equal."""
    dealt = (plan.partition, plan.alpha, plan.participants, plan.future_clients, plan.records_per_client)
    return hashlib.sha256(repr((records.digest, *dealt, plan.seed)).encode()).hexdigest()[:32]


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


def _run_name(directory: RunDirectory, plan: Plan) -> str:
    """The run's name in streams: the plan's digest for a seeded simulation, else drawn once."""
    if plan.seeded:
        return plan.digest()
    if not directory.name_file.exists():
        write_atomically(directory.name_file, secrets.token_hex(8).encode())
    return directory.name_file.read_text()


def _check_budget(blueprint: Blueprint, book: Ledger) -> None:
    """Refuses a run that could not be finished, before its first release."""
    plan = blueprint.plan
    per_gradient = (blueprint.gradient_sensitivity / blueprint.sigma) ** 2
    per_context = (
        (blueprint.context_sensitivity / blueprint.sigma_context) ** 2 if plan.releases_context else 0.0
    )
    for participant, count in enumerate(schedule.counts(blueprint.schedule, plan.participants)):
        name = participant_name(participant)
        total = book.spent(name) + int(count) * per_gradient + per_context
        if not blueprint.budget.covers(total):
            raise Overspent(
                f"{name} has spent ε={book.epsilon(name, plan.delta, plan.accounting):.3f} in {book.path}; "
                f"this run would take it past ε={blueprint.budget.epsilon:g}: lower epsilon, or raise budget"
            )
