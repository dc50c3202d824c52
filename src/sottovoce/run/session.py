"""A session: one simulated run with its directory, its ledger and its checkpoints, from opening to result.

The order of writing makes it safe to kill at any moment: releases are charged before they leave, rounds are
logged after they are applied, and messages are forgotten only when a checkpoint has made them superfluous.

Before the first charge a dry run tries on every client's records what could fail: one forward, one loss, one
clipped gradient and one context of each client. Nothing of it leaves or is charged, and what fails names the
client, for whoever holds the records.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from sottovoce import data
from sottovoce.data import ClientRecords, FederatedDataset, Records
from sottovoce.data.section import DataError
from sottovoce.data.tables import schema
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import FileError
from sottovoce.models.metrics import Own
from sottovoce.models.parameters import logits
from sottovoce.models.tensors import load_tensors, save_tensors
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.plan.schedule import call_counts
from sottovoce.privacy.ledger import Ledger, Overspent
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import spending
from sottovoce.release.places.server import DrawnRounds, Updates
from sottovoce.release.secrets import seeded_master
from sottovoce.report.result import RunResult, write_result
from sottovoce.report.status import Status, epsilon_of
from sottovoce.run.directory import RunDirectory, RunError
from sottovoce.run.finished import GeneratorFile
from sottovoce.run.prepare import Prepared
from sottovoce.run.simulation import Simulation
from sottovoce.run.summary import assemble, site_rows
from sottovoce.training.accounts import count_clients, folder_ledger
from sottovoce.training.server import Server

CHECKPOINT_SECONDS = 20.0
TRIED = 32
"""Records, or units, whose gradient is tried."""


class Session:
    """An open run. Use `Session.open`, call `record` with every round's line, then `finish`."""

    simulated: ClassVar[type[Simulation]] = Simulation
    measures: ClassVar[bool] = True
    open_ledger: ClassVar[Callable[..., Ledger]] = Ledger.open

    def __init__(
        self,
        directory: RunDirectory,
        simulation: Simulation,
        ledger: Ledger | None,
        identity: Mapping[str, str],
        checkpoint_seconds: float,
        updates: Updates | None,
    ) -> None:
        self._held = ExitStack()
        self.directory = directory
        self.simulation = simulation
        self._ledger = ledger
        self._identity, self._run = identity, identity["run"]
        self._updates = updates
        self._checkpoint_seconds = checkpoint_seconds
        self._saved = time.monotonic()

    @classmethod
    def open(
        cls,
        prepared: Prepared,
        out: str | Path,
        *,
        ledger: str | Path | None = None,
        resume: bool = False,
        masks: bool = False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        opened: Callable[[Blueprint, str], Server] = Server,
        named: str = "",
    ) -> Self:
        """Starts a run in the directory `out`, or continues from its last checkpoint, masks included.

        A study may bring a server of its own (`opened`), and what a seeded run is called in its streams.
        """
        plan, records = prepared.plan, prepared.dataset
        blueprint, federation = prepared.blueprint, prepared.federation
        directory = RunDirectory(out)
        given = None if ledger is None else Path(ledger)
        with ExitStack() as stack:
            if resume:
                directory.check_pinned()
                directory.check_same_plan(plan)
                stack.enter_context(directory.locked())
                run, path = directory.identity()
                _check_ledger(path, given, plan)
            else:
                dry_run(blueprint, federation, own=not records.public)
                directory.reserve()
                stack.enter_context(directory.locked())
                directory.reserve()  # another process may have been faster
                # A seeded simulation repeats, streams included; any other run has a name of its own.
                run = (named or plan.digest()) if plan.seeded else secrets.token_hex(8)
                given = given or folder_ledger(plan, records)
                path = given or directory.ledger_file
            book = None
            if plan.private:
                book = stack.enter_context(cls.open_ledger(path, scope=data.scope(plan, records)))
                if not plan.seeded:  # a seeded simulation makes the same bytes again
                    book.past.check(run)
                count_clients(book, plan, records)
                if not resume:
                    _check_budget(blueprint, book, federation.names)
            identity = {"run": run, "reference": blueprint.reference_digest}
            updates = None
            if plan.place.at_server and not plan.seeded:  # a seeded draw that is repeated is the same draw
                drawn = (DrawnRounds.reopen if resume else DrawnRounds.begin)(directory.drawn, run)
                updates = Updates(directory.updates_folder, identity, drawn)
            if not resume:
                directory.start(plan, run, given)
            master = seeded_master(plan) if plan.seeded else directory.master_secret()
            server = opened(blueprint, str(blueprint.model.reference.device))
            masked = None
            if masks or directory.helpers_folder.exists():
                if not plan.place.shared:
                    raise PlanError(f"masks are for noise=shared, not noise={plan.noise}: leave them out")
                from sottovoce.run.masks import Masks

                helpers = directory.helpers_folder
                masked = Masks(blueprint, run, federation.names, master, helpers, stack)
            simulation = cls.simulated(
                blueprint, federation, server, book, run=run, master=master, updates=updates, masks=masked
            )
            session = cls(directory, simulation, book, identity, checkpoint_seconds, updates)
            if resume:
                session._load()
            session._tell("running", "a process trains in it")
            session._held = stack.pop_all()
        return session

    def _load(self) -> None:
        """Continues from the checkpoint, or from the model of a run whose result was lost."""
        for path in (self.directory.checkpoint_file, self.directory.model_file):
            if path.exists():
                self.simulation.load_state(load_tensors(path, self._identity)[0])
                break
        if self._updates is not None:
            self._updates.check(after=self.simulation.server.round)
        self.directory.truncate_rounds(self.simulation.server.round)

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
        self.directory.sync_rounds()
        save_tensors(self.directory.checkpoint_file, simulation.state(), self._identity)
        self._saved = time.monotonic()
        if self._updates is not None:
            self._updates.forget(up_to=simulation.server.round)
        if self._ledger is not None:
            self._ledger.forget(self._run, before_round=simulation.server.round + 1)

    def finish(self, own: Own | None = None) -> RunResult:
        """Evaluates the final generator, by `own` metrics too; writes model.safetensors and result.json."""
        simulation, blueprint = self.simulation, self.simulation.blueprint
        simulation.finish()  # before the checkpoint, which forgets messages: what it releases can be resent
        self.checkpoint()
        lines = self.directory.rounds()
        if len(lines) != blueprint.plan.rounds:
            raise RunError(f"{self.directory.rounds_file} lacks rounds: restore it from a backup")
        seen, future = simulation.evaluate()
        federation, sent = simulation.federation, simulation.once_bytes
        clients = site_rows(blueprint, federation, self._ledger)
        result = assemble(blueprint, lines, seen, future, clients, sent, metrics=self.measures, own=own)
        if blueprint.plan.place.shared:
            result["masks"] = self.directory.helpers_folder.exists()
        file = GeneratorFile.of(
            blueprint, self._run, simulation.state(), federation.names, result["epsilon"]["per_client"]
        )
        file.write(self.directory.model_file)
        write_result(self.directory.path, result)
        self._tell("finished", "it has a result", epsilon=epsilon_of(result))
        self.directory.checkpoint_file.unlink(missing_ok=True)
        return result

    def _tell(self, state: str, why: str, **more: Any) -> None:
        """Says what the run is doing; what comes between its beginning and its end its other files say."""
        plan, ledger = self.simulation.blueprint.plan, None
        if self._ledger is not None:
            path = self._ledger.path
            ledger = path.name if path == self.directory.ledger_file else str(path.absolute())
        told = Status.of(plan, "run", state, why, run=self._run, ledger=ledger, since=time.time(), **more)
        with suppress(FileError):  # a run does not end because nobody can look at it
            told.write(self.directory.path)

    def close(self) -> None:
        """Closes the ledger, and lets another process have the directory."""
        self._held.close()


def _check_ledger(path: Path, given: Path | None, plan: Plan) -> None:
    """A run continues with the ledger it was started with: a new one would forget what was spent."""
    if given is not None and given.absolute() != path.absolute():
        raise RunError(f"the run was started with the ledger {path}: name none, or that one", "ledger")
    if plan.private and not path.exists():
        raise RunError(
            f"the run's ledger {path} is missing: restore it, a new one would forget what was spent"
        )


def _check_budget(blueprint: Blueprint, book: Ledger, names: Sequence[str]) -> None:
    """Refuses a run that could not be finished, before its first release.

    What the plan allows counts, and what the ledger's owner does.
    """
    plan, held = blueprint.plan, book.budget
    for participant, count in enumerate(call_counts(blueprint.schedule, plan.participants)):
        name = names[participant]
        total = book.spent(name) + spending(
            blueprint.releases_of(participant), blueprint.participant_counts(int(count))
        )
        if not blueprint.budget.covers(total):
            raise Overspent(
                f"{name} has spent ε={book.epsilon(name, plan.delta, plan.accounting):.3f} in {book.path}; "
                f"this run would take it past ε={blueprint.budget.epsilon:g}: lower epsilon, or raise budget"
            )
        if held is not None and not held.covers(total):
            raise Overspent(
                f"{name} may spend ε={held.epsilon:g} at δ={held.delta:g} in all, says {book.path}, and this "
                f"run would take it to {held.price(total):.3f}: lower epsilon, or 'sottovoce ledger raise'"
            )


def dry_run(blueprint: Blueprint, federation: FederatedDataset, *, own: bool) -> None:
    """Refuses a run that some client could not make; `own` records are all tried, public ones once a role."""
    roles = ((federation.names, federation.participants), (federation.future_names, federation.future))
    for role, (names, clients) in enumerate(roles):
        for i, name in enumerate(names if own else names[:1]):
            dry_client(name, clients[i], blueprint, i if role == 0 else None, own=own)


def dry_client(
    name: str, records: ClientRecords, blueprint: Blueprint, participant: int | None, *, own: bool = True
) -> None:
    """The same for one client, a participant or a future one (None)."""
    if own:
        for part in (records.train, records.context, records.held_out):
            _check_usable(name, part, blueprint)
    try:
        _try(records, blueprint, participant)
    except SottovoceError as error:
        raise SottovoceError(f"{name}: {error}") from None
    except Exception as error:  # whatever a stranger's forward raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        model = type(blueprint.module).__name__
        raise SottovoceError(f"{name}: {model} fails on its records: {reason}") from None


def _try(records: ClientRecords, blueprint: Blueprint, participant: int | None) -> None:
    releases = blueprint.releases_of(participant)
    zero = torch.zeros(blueprint.coefficients, device=blueprint.model.reference.device)
    plan = blueprint.plan
    if participant is not None:
        few = records.train.of_units(torch.arange(min(TRIED, records.train.units)))
        with torch.no_grad():
            outputs = logits(blueprint.module, blueprint.theta(zero), few[few.usable].x.to(zero.device))
        if not bool(outputs.isfinite().all()):
            raise SottovoceError(
                f"{type(blueprint.module).__name__} gives outputs that are not finite: check its "
                "normalization and its bounds"
            )
        _check_finite(releases["gradient"].statistic(few, zero))
        uses_model = plan.context_traits.uses_model
    else:
        uses_model = plan.context_traits.future_uses_model
    if plan.releases_context:
        _check_finite(releases["context"].statistic(records.context, zero if uses_model else None))


def _check_finite(statistic: torch.Tensor) -> None:
    if not bool(statistic.isfinite().all()):
        raise SottovoceError("its statistic is not finite, which no noise covers: report this as a bug")


def _check_usable(name: str, records: Records, blueprint: Blueprint) -> None:
    """Refuses a client too many of whose records could contribute nothing but their share of the noise."""
    agreed = schema.of(blueprint.facts.source or blueprint.facts)
    allowed = schema.UNUSABLE if agreed is None else agreed.unusable
    lost = int((~records.usable).sum())
    # A few of few records may be more than the share that the whole file may have.
    if lost <= 2 or lost <= 2 * allowed * len(records):
        return
    flat = records.x.flatten(1)
    missing = (~flat.isfinite()).float().mean(dim=0).cpu().numpy()
    worst, where = int(np.argmax(missing)), ""
    if missing[worst] > 0:
        table = agreed is not None and agreed.array is None and blueprint.facts.source is None
        inputs = agreed.inputs if agreed is not None and table else ()
        column = repr(inputs[worst]) if inputs else f"number {worst}"
        where = f", most of them in column {column}"
    raise DataError(
        f"{name} has {lost} of {len(records)} records that cannot be used{where}: correct them, for they add "
        "nothing and cost as much"
    )
