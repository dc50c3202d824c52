"""Training and evaluating a federation from Python; the command line adds only progress and tables.

Callbacks follow a run: they are told what its files have, as it goes on. A callback gets copies, so it cannot
change anything; whatever it raises is logged in one line and it is not called again, because a run that has
spent privacy must not end for a tracker that is out of reach.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from sottovoce.data.python import Clients, Held, given
from sottovoce.errors import SottovoceError, shown
from sottovoce.models.features.cache import Progress
from sottovoce.models.features.encoded import by_kind
from sottovoce.models.metrics import Own, check_own
from sottovoce.models.tensors import load_tensors
from sottovoce.plan import Plan
from sottovoce.report.result import Result
from sottovoce.run.directory import RunDirectory
from sottovoce.run.prepare import prepare
from sottovoce.run.session import Session
from sottovoce.run.simulation import Simulation
from sottovoce.run.summary import accuracies, measured
from sottovoce.training.server import Server

log = logging.getLogger(__name__)
MOMENTS = ("on_plan", "on_round", "on_result")
OnRound = Callable[[dict[str, Any]], None]


class Callback(Protocol):
    """Whatever follows a run; a class may have any of these methods."""

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        """Called when the run begins or goes on, with what plan.toml has."""

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Called after each round, with its line of rounds.jsonl."""

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Called at the end, with what result.json has."""


class Callbacks:
    """Several callbacks as one."""

    def __init__(self, callbacks: Iterable[object] = ()) -> None:
        self._following = list(callbacks)
        for one in self._following:
            if not any(callable(getattr(one, moment, None)) for moment in MOMENTS):
                raise SottovoceError(
                    f"{type(one).__name__} is no callback: give objects with on_plan, on_round or on_result"
                )

    def tell(self, moment: str, said: Mapping[str, Any]) -> None:
        """Calls `moment`, one of `MOMENTS`, of all that have it."""
        for one in list(self._following):
            method = getattr(one, moment, None)
            if method is None:
                continue
            try:
                method(copy.deepcopy(dict(said)))
            except Exception as error:
                name, reason = type(one).__name__, shown(f"{type(error).__name__}: {error}")
                log.warning("%s.%s failed and is not called again: %s", name, moment, reason)
                self._following.remove(one)


class Interrupted(SottovoceError):
    """Ctrl-C during a run, which can be resumed."""


def train(
    plan: Plan,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    resume: bool = False,
    dataset: Held = None,
    clients: Clients | None = None,
    records: str | Path | None = None,
    module: nn.Module | None = None,
    device: str = "cpu",
    cache: bool = True,
    masks: bool = False,
    metrics: Own | None = None,
    callbacks: Sequence[object] = (),
    on_round: OnRound = lambda line: None,
    on_features: Progress = lambda done, of: None,
) -> Result:
    """As `sottovoce.train` (`run`), without a report: returns the content of result.json.

    A resumed run makes the same releases as if nothing had happened; a finished one is left as it is. `masks`
    are put on shares and taken off their sums: the same result, by way of what a federation sends.
    """
    directory = RunDirectory(out)
    check_own(metrics)
    following = Callbacks(callbacks)
    # The plan is the word of whoever trains: the code that it names is their own.
    own = given(dataset, clients, records, by_kind(plan))
    prepared = prepare(
        plan, own, module=module, trusted=True, device=device, cache=cache, progress=on_features
    )
    if resume and directory.result_file.exists():
        directory.check_same_plan(prepared.plan)
        return Result(directory.result())
    with closing(Session.open(prepared, out, ledger=ledger, resume=resume, masks=masks)) as session:
        following.tell("on_plan", asdict(prepared.plan))
        try:
            while not session.simulation.done:
                line = session.simulation.step()
                session.record(line)
                following.tell("on_round", line)
                on_round(line)
            result = Result(session.finish(metrics))
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted in round {session.simulation.server.round + 1} of {plan.rounds}: "
                f"resume the training in {out}",
                "resume",
                "out",
            ) from None
    following.tell("on_result", result)
    return result


def evaluate(
    out: str | Path,
    *,
    dataset: Held = None,
    clients: Clients | None = None,
    records: str | Path | None = None,
    module: nn.Module | str | None = None,
    features: str | None = None,
    device: str = "cpu",
    metrics: Own | None = None,
) -> Result:
    """Evaluates a finished run again and returns its result with fresh accuracies.

    Records that were given from Python are given again, as `train` takes them. `module` is the run's own, if
    it was trained with one: from Python, or as 'package.module:function'; so is `features`, by name.
    `metrics` are functions of your own, as in `train`.
    """
    directory = RunDirectory(out)
    plan = directory.plan()
    check_own(metrics)
    result = directory.result()
    if "engine" in result:
        raise SottovoceError(f"{out} was trained by clients that keep their records: only they can evaluate")
    own = given(dataset, clients, records, by_kind(plan))
    prepared = prepare(plan, own, module=module, features=features, device=device)
    blueprint, federation = prepared.blueprint, prepared.federation
    state, _ = load_tensors(directory.model_file, {"reference": blueprint.reference_digest})
    simulation = Simulation(blueprint, federation, Server(blueprint, device), None, run="", master=b"")
    simulation.load_state(state)
    seen, future = simulation.evaluate()
    found = {"accuracy": accuracies(seen, future), "metrics": measured(seen, future, metrics)}
    return Result({**result, **found})
