"""A rehearsal: what a site has today beside what joining gives it, before a run.

Six rows: a *constant*, every site *alone at home* without noise, *alone* with noise, one *shared* model, the
*published* model of a blend, and that model *finished* at home (`finishing`). What joining is worth is
finished against alone at home, site by site, on held-out records; several splits of all records say how sure
that is. It is for records of which nothing is published: synthetic, public or retrospective ones. Each run is
charged to a ledger of its own; no model is written, and nothing enters the ledger of a folder. A choice made
by looking at the figures is not covered by any ε (docs/sharp-edges.md), and the result says so.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor, nn

from sottovoce import data
from sottovoce.blueprint import seeded_master
from sottovoce.central import DrawnRounds
from sottovoce.cores import side_by_side
from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.features.kept import Progress
from sottovoce.files import PRIVATE, write_atomically
from sottovoce.finishing import finished_outputs
from sottovoce.given import Clients, Held, given
from sottovoce.metrics import Curves, Evaluation, mean_known, student
from sottovoce.plan import Plan, PlanError
from sottovoce.privacy.ledger import Ledger
from sottovoce.run import Updates, check_apart, make_folder
from sottovoce.run.prepare import Prepared, Shared, prepare, with_given
from sottovoce.run.result import Result, description, protected_unit, site_rows
from sottovoce.run.rounds import Simulation
from sottovoce.server import Server
from sottovoce.tasks import Task, open_task

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
_HELD_OUT = 0.25
"""Held-out records for each that trains: splits overlap, and their mean is less sure than 1/repeats says."""

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "worst_decile": partial(np.quantile, q=0.1),
}
"""What a summary says of the gains of all sites."""

OnRound = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Scored:
    """One model on one site's held-out records."""

    metric: float | None
    loss: float
    error: float
    """The sum of all losses."""
    records: int


Split = dict[str, dict[str, Scored]]
"""Of one split: rows, and the participants in each."""


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
    (None without future clients) and `epsilon`, the most that a participant has spent. All are means over
    `repeats` splits. `gain` is about finished against alone at home. Without `out` nothing is kept. Records
    from Python are given as to `train`.
    """
    own = given(dataset, clients, records)
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
    plan = plan.replace(evaluate_every=0)
    if not plan.place.shared:  # nothing travels, and the noise of all other channels is Gaussian
        plan = plan.replace(channel="direct")
    first = ready(plan, dataset)  # refuses what cannot be, before there is a folder
    again = plan  # in later splits the same sites join later as in the first
    if plan.partition == "client" and first.federation.future_names:
        again = plan.replace(future_names=",".join(first.federation.future_names))
    make_folder(folder)
    splits, spent, curves = list[Split](), dict[str, float | None](), Curves()
    future: dict[str, list[Mapping[str, float | None]]] = {name: [] for name in ROWS}
    for repeat in range(repeats):
        with TemporaryDirectory() as temporary:
            ledgers = folder if repeat == 0 else Path(temporary)
            trained: Split = {}
            for name, changes in ROWS.items():
                split = again.replace(seed=plan.seed + repeat) if repeat else plan
                if plan.place.shared and name == "alone":  # nobody is there to share the noise with
                    split = split.replace(noise="client")
                prepared = ready(split.replace(**changes), dataset)
                run = rehearse(prepared, ledgers / f"{name}.ledger.sqlite", partial(on_round, name))
                task = open_task(prepared.blueprint.facts)
                trained[name] = {client: _scored(task, found) for client, found in run.seen.items()}
                future[name].append({client: found.accuracy for client, found in run.future.items()})
                spent.setdefault(name, run.spent)
            splits.append({**trained, **_at_home(prepared, run, curves)})
    rows = {name: _row(name, splits, task) for name in ("constant", "home_alone", *ROWS, "finished")}
    for name in ROWS:
        rows[name] |= {"epsilon": spent[name], **_future(future[name])}
    result = Result(
        {
            **run.told,
            "rehearsal": True,
            "warning": WARNING,
            "repeats": repeats,
            "rows": rows,
            "gain": _gain(splits, task),
            "reliability": curves.told(),
        }
    )
    write_atomically(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode(), PRIVATE)
    return result


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
    spent = [site["epsilon"] for site in sites if site["role"] == "participant"]
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
            split[row][name] = _scored(task, Evaluation(task, found[key], y))
    return split


def _scored(task: Task, found: Evaluation) -> Scored:
    outputs, y = found.outputs.float(), found.y
    if not len(y):
        return Scored(None, float("nan"), 0.0, 0)
    bounded = outputs.clamp(-1.0, 1.0) if task.name == "number" else outputs
    losses = task.losses(bounded, y)
    return Scored(found.accuracy, float(losses.mean()), float(losses.sum()), len(y))


def _row(name: str, splits: Sequence[Split], task: Task) -> dict[str, Any]:
    """The means of one row over all splits."""
    clients = [client for client in splits[0][name] if all(client in split[name] for split in splits)]
    points = {client: [_points(split, name, client, task) for split in splits] for client in clients}
    losses = {client: [split[name][client].loss for split in splits] for client in clients}
    per_client = {client: mean_known(values) for client, values in points.items()}
    participants = mean_known(list(per_client.values()))
    if task.name == "number":
        participants = mean_known(
            [_skill(split[name].values(), split["constant"].values()) for split in splits]
        )
    known = {
        client: float(np.nanmean(values)) for client, values in losses.items() if np.isfinite(values).any()
    }
    return {
        "participants": participants,
        "log_loss": float(np.mean(list(known.values()))) if known else None,
        "per_client": per_client,
        "log_loss_per_client": known,
    }


def _points(split: Split, row: str, client: str, task: Task) -> float | None:
    """A site's metric in percent; of numbers the skill against its own mean."""
    if task.name == "number":
        return _skill([split[row][client]], [split["constant"][client]])
    return split[row][client].metric


def _skill(rows: Iterable[Scored], constants: Iterable[Scored]) -> float | None:
    """100 · (1 − squared error / that of each site's mean), over all records."""
    error, least = (sum(scored.error for scored in scores) for scores in (rows, constants))
    return 100.0 * (1.0 - error / least) if least > 0 else None


def _future(splits: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Returns what future clients get, by name; who joins later may differ from split to split."""
    names = sorted({name for split in splits for name in split})
    each = {name: mean_known([split[name] for split in splits if name in split]) for name in names}
    return {"future": mean_known(list(each.values())), "future_per_client": each}


def _gain(splits: Sequence[Split], task: Task) -> dict[str, Any]:
    """Finished against alone at home, in points, for each site with an interval of 95 % over the splits."""
    sites: dict[str, dict[str, Any]] = {}
    each: list[list[float]] = []
    for client in _row("finished", splits, task)["per_client"]:
        pairs = [
            (_points(split, "finished", client, task), _points(split, "home_alone", client, task))
            for split in splits
        ]
        gains = [one - other for one, other in pairs if one is not None and other is not None]
        if not gains:
            continue
        if len(gains) == len(splits):
            each.append(gains)
        records = max(split["finished"][client].records for split in splits)
        mean, reach = float(np.mean(gains)), _reach(gains, 100 / records)
        losses = [split["finished"][client].loss - split["home_alone"][client].loss for split in splits]
        low, high = (None, None) if reach is None else (mean - reach, mean + reach)
        sites[client] = {"points": mean, "low": low, "high": high, "log_loss": float(np.nanmean(losses))}
    points = [site["points"] for site in sites.values()]
    told: dict[str, Any] = {}
    for name, statistic in STATISTICS.items():
        told[name] = float(statistic(points)) if points else None
        told[f"{name}_interval"] = _interval(told[name], each, statistic)
    gaining = sum(site["low"] is not None and site["low"] > 0 for site in sites.values())
    losing = sum(site["high"] is not None and site["high"] < 0 for site in sites.values())
    return {
        "per_client": sites,
        **told,
        "sites_gaining": gaining,
        "sites_losing": losing,
        "sites_undecided": len(sites) - gaining - losing,
    }


def _interval(
    value: float | None, gains: Sequence[Sequence[float]], statistic: Callable[[Any], Any]
) -> list[float] | None:
    """An interval of 95 % around a statistic of the sites' mean gains, from what it is without each split."""
    by_split = np.array(gains, ndmin=2).T
    many = len(by_split)
    if value is None or not gains or many < 2:
        return None
    whole = statistic(by_split.mean(axis=0))
    without = [statistic(np.delete(by_split, split, axis=0).mean(axis=0)) for split in range(many)]
    reach = _reach([many * whole - (many - 1) * left for left in without], 0.0)
    return None if reach is None else [value - reach, value + reach]


def _reach(gains: Sequence[float], least: float) -> float | None:
    """Half of an interval of 95 % for a mean over splits that overlap (Nadeau and Bengio, 2003).

    Splits that agree by chance are not surer than `least`, what one held-out record is worth. None for a
    single split, which says nothing about itself.
    """
    if len(gains) < 2:
        return None
    t = student(len(gains) - 1)
    return max(least, t * float(np.std(gains, ddof=1)) * float(np.sqrt(1 / len(gains) + _HELD_OUT)))
