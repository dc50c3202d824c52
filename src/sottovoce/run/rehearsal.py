"""A rehearsal: what a site has today beside what joining gives it, before a run.

Six rows: a *constant*, every site *alone at home* without noise, *alone* with noise, one *shared* model, the
*published* model of a blend, and that model *finished* at home (`personal.finishing`). What joining is worth
is finished against alone at home, site by site, on held-out records; several splits of all records say how
sure that is. It is for records of which nothing is published: synthetic, public or retrospective ones. Each
run is charged to a ledger of its own; no model is written, and nothing enters the ledger of a folder. A
choice made by looking at the figures is not covered by any ε (docs/sharp-edges.md), and the result says so.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.data.python import Clients, Held, given
from sottovoce.data.tables.schema import protected_unit
from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import side_by_side
from sottovoce.machine.files import PRIVATE, write_atomically
from sottovoce.models.features.cache import Progress
from sottovoce.models.features.encoded import by_kind
from sottovoce.models.metrics import Curves, Evaluation, constant, known_targets
from sottovoce.models.tasks import Task, open_task
from sottovoce.personal.finishing import finished_outputs
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.places.server import DrawnRounds, Updates
from sottovoce.release.secrets import seeded_master
from sottovoce.report.result import Result
from sottovoce.run.directory import RunDirectory, check_apart, make_folder
from sottovoce.run.prepare import Prepared, Shared, prepare, with_given
from sottovoce.run.simulation import Simulation
from sottovoce.run.splits import ITSELF, Split, future_of, gain_of, row_of, scored
from sottovoce.run.summary import description, site_rows
from sottovoce.training.server import Server

RESULT = "compare.json"
WARNING = (
    "A rehearsal: its figures are made of held-out records without noise, so a choice made by looking at "
    "them is not covered by ε. Use records of which nothing is published."
)
ROWS: dict[str, dict[str, Any]] = {
    "alone": {"individual": 1.0, "generated": 0.0},
    "shared": {"individual": 0.0, "generated": 0.0},
    "blend": {},
}
"""What each row that is trained with noise changes in the plan."""
AT_HOME = ("constant", "home_alone", "finished")
"""Rows that a site makes by itself."""
REPEATS = 5
OnRound = Callable[[str, dict[str, Any]], None]


def compare(
    plan: Plan,
    out: str | Path | None = None,
    *,
    repeats: int = REPEATS,
    dataset: Held = None,
    clients: Clients | None = None,
    records: str | Path | None = None,
    module: nn.Module | None = None,
    cache: bool = True,
    on_round: OnRound = lambda row, line: None,
    on_features: Progress = lambda done, of: None,
) -> Result:
    """Rehearses a plan of method `blend` and returns what `compare.json` in the folder `out` then holds.

    `rows` has for each row `participants`, the mean of accuracy (for numbers the skill against each site's
    own mean, over all records) in percent; `log_loss` (half the squared error of a number scaled to −1…1);
    `per_client` and `log_loss_per_client`. Rows that are trained also have `future` and `future_per_client`
    (None without future clients) and `epsilon`, the most that a participant has spent; the constant has the
    first two, made of the participants' targets where future clients tell none. All are means over
    `repeats` splits. `gain` is about finished against alone at home. Without `out` nothing is kept. Records
    from Python are given as to `train`.
    """
    own = given(dataset, clients, records, by_kind(plan))
    plan = with_given(plan, own)
    ready = partial(prepare, module=module, trusted=True, cache=cache, progress=on_features, shared=Shared())
    with TemporaryDirectory() as passing:
        return _compare(plan, Path(passing if out is None else out), repeats, own, ready, on_round)


def _compare(
    plan: Plan,
    folder: Path,
    repeats: int,
    dataset: Dataset | None,
    ready: Callable[..., Prepared],
    on_round: OnRound,
) -> Result:
    if not plan.traits.individual:
        raise PlanError(f"compare is about method=blend, not {plan.method}: omit method, or use preset=best")
    if repeats < 1:
        raise SottovoceError(f"{repeats} splits tell nothing: repeat once at least, five times as a rule")
    if (folder / RESULT).exists():
        raise SottovoceError(f"{folder} already holds a comparison: choose another folder", "out")
    check_apart(folder)
    _check_no_run(folder)
    plan = plan.replace(evaluate_every=0)
    if not plan.place.shared:  # nothing travels, and the noise of all other channels is Gaussian
        plan = plan.replace(channel="direct")
    first = ready(plan, dataset)  # refuses what cannot be, before there is a folder
    again = plan  # in later splits the same sites join later as in the first
    if plan.partition == "client" and first.federation.future_names:
        again = plan.replace(future_names=",".join(first.federation.future_names))
    make_folder(folder)
    splits, spent, curves = list[Split](), dict[str, float | None](), Curves()
    later = list[Split]()
    for repeat in range(repeats):
        with TemporaryDirectory() as temporary:
            ledgers = folder if repeat == 0 else Path(temporary)
            trained: Split = {}
            newcomers: Split = {}
            for name, changes in ROWS.items():
                split = again.replace(seed=plan.seed + repeat) if repeat else plan
                if plan.place.shared and name == "alone":  # nobody is there to share the noise with
                    split = split.replace(noise="client")
                prepared = ready(split.replace(**changes), dataset)
                run = rehearse(prepared, ledgers / f"{name}.ledger.sqlite", partial(on_round, name))
                task = open_task(prepared.blueprint.facts)
                trained[name] = {client: scored(task, found) for client, found in run.seen.items()}
                newcomers[name] = {client: scored(task, found) for client, found in run.future.items()}
                spent.setdefault(name, run.spent)
            splits.append({**trained, **_at_home(prepared, run, curves)})
            later.append({**newcomers, **_untold(run, task)})
    rows = {name: row_of(name, splits, task) for name in ("constant", "home_alone", *ROWS, "finished")}
    for name in ("constant", *ROWS):
        rows[name] |= future_of(name, later, task)
    for name in ROWS:
        rows[name] |= {"epsilon": spent[name]}
    result = Result(
        {
            **run.told,
            "rehearsal": True,
            "warning": WARNING,
            "repeats": repeats,
            "rows": rows,
            "gain": gain_of(splits, task),
            "reliability": curves.told(),
        }
    )
    write_atomically(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode(), PRIVATE)
    return result


def _check_no_run(folder: Path) -> None:
    """Refuses the folder of a run, finished or not: its files are its own."""
    run = RunDirectory(folder)
    own = (run.plan_file, run.identity_file, run.rounds_file, run.result_file, run.ledger_file, run.lock_file)
    if any(file.exists() for file in own):
        raise SottovoceError(f"{folder} holds a run: choose another folder for the comparison", "out")


@dataclass(frozen=True)
class Rehearsed:
    """How one run went, and what it was."""

    seen: Mapping[str, Evaluation]
    future: Mapping[str, Evaluation]
    coefficients: Tensor
    shared: Tensor
    """What a client gets of whom nothing is known."""
    spent: float | None
    told: dict[str, Any]


def rehearse(prepared: Prepared, ledger: Path, on_round: Callable[[dict[str, Any]], None]) -> Rehearsed:
    """Runs a simulation that leaves nothing but its ledger."""
    plan, blueprint, federation = prepared.plan, prepared.blueprint, prepared.federation
    run = plan.digest() if plan.seeded else secrets.token_hex(8)
    master = seeded_master(plan) if plan.seeded else secrets.token_bytes(32)
    with ExitStack() as stack:
        book = None
        if plan.private:
            book = stack.enter_context(Ledger.open(ledger, scope=data.scope(plan, prepared.dataset)))
        updates = None
        if plan.place.at_server and not plan.seeded:  # kept for as long as it takes: it is not resumed
            folder = Path(stack.enter_context(TemporaryDirectory()))
            updates = Updates(folder / "updates", {"run": run}, DrawnRounds.begin(folder / "run", run))
        server = Server(blueprint)
        simulation = Simulation(blueprint, federation, server, book, run=run, master=master, updates=updates)
        while not simulation.done:
            on_round(simulation.step())
        simulation.finish()
        seen, future = simulation.evaluate()
        sites = site_rows(blueprint, federation, book)
    spent = [site["epsilon"] or 0.0 for site in sites if site["role"] == "participant"]
    target = plan.epsilon if plan.private else None
    told = {"rounds": plan.rounds, "epsilon": target, "delta": plan.delta, "clients": sites}
    about_records = {**description(blueprint), "unit": protected_unit(blueprint.facts)}
    coefficients = server.coefficients(list(range(plan.participants)))
    shared, worst = server.personalize(None), max(spent) if plan.private else None
    return Rehearsed(seen, future, coefficients, shared, worst, {**about_records, **told})


def _at_home(prepared: Prepared, run: Rehearsed, curves: Curves) -> Split:
    """Returns what each site makes by itself: of its own records alone, and of the published model."""
    blueprint, federation = prepared.blueprint, prepared.federation
    task = open_task(blueprint.facts)

    def finished(participant: int) -> dict[str, Tensor]:
        mine = federation.participants[participant]
        theta = blueprint.theta(run.coefficients[participant])
        held_out = mine.held_out[mine.held_out.usable]
        return finished_outputs(blueprint.module, theta, mine.train, held_out, task)

    outputs = side_by_side(finished, list(range(len(federation.names))))
    split: Split = {row: {} for row in AT_HOME}
    for name, found in zip(federation.names, outputs, strict=True):
        y = run.seen[name].y
        curves.add("published", task, run.seen[name].outputs, y)
        curves.add("finished", task, found["finished"], y)
        for row, key in zip(AT_HOME, ("constant", "alone", "finished"), strict=True):
            split[row][name] = scored(task, Evaluation(task, found[key], y))
    return split


def _untold(run: Rehearsed, task: Task) -> Split:
    """Returns what future clients have without a model: the participants' constant, or their own if told."""
    pooled, split = known_targets(run.seen.values()), Split({"constant": {}, ITSELF: {}})
    for name, found in run.future.items():
        for row, known in (("constant", found.knowing(pooled).known), (ITSELF, found.y)):
            if known is not None:
                same = constant(task, known, len(found.y))
                split[row][name] = scored(task, Evaluation(task, same, found.y))
    return split
