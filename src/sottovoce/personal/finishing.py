"""Finishing at home: a site fits the published model to its own records, without noise, and keeps the result.

The published model is made of releases alone; what is fitted here is made of records and never leaves: a
*home* model. It is chosen by cross-validated loss among fits near a share τ of the published model, by a
proximal strength λ (`fitting`). τ = 0 is the site alone, λ = ∞ the published model as it is, so one grid
holds both; what joining is worth to this site is the best of all against the best alone, which is kept where
the gain is too small for its standard error.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.data import Facts, Records, read_inputs, training_size
from sottovoce.data.tables import schema
from sottovoce.errors import SottovoceError, shown
from sottovoce.machine.files import PRIVATE, check_writable, write_atomically
from sottovoce.models.architectures import model_options, open_model
from sottovoce.models.features.cache import described_client
from sottovoce.models.metrics import constant, student
from sottovoce.models.parameters import flat_parameters, logits
from sottovoce.models.tasks import Task, open_task
from sottovoce.models.tensors import check_place
from sottovoce.personal import PersonalModel, home_model
from sottovoce.personal.fitting import AS_PUBLISHED, Choice, Family, open_family

Progress = Callable[[float], None]
FOLDS, FEW = 5, 200
"""Folds of cross-validation; twice as many for sites of few units, whose fits need every record."""
SUFFIX = ".safetensors"
DOUBT = 0.5
"""A fit that builds on the published model is chosen if it gains more than this many standard errors over the
best alone: the best of many tries is lucky, and the published model has often seen these records."""


class CannotFinish(SottovoceError):
    """Records to which no model can be fitted."""


@dataclass(frozen=True)
class Worth:
    """What joining is worth: finished against alone, in points of the task's metric, with its interval."""

    points: float
    low: float | None
    """None, as `high`: one record (or unit) tells nothing about the next."""
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return "joining is worth nothing that can be told: there is one record to judge by"
        if self.low == self.high == 0:
            return "joining is worth nothing to you: your own records alone were chosen"
        if self.low <= 0 <= self.high:
            return f"joining is worth nothing that can be told: {self.low:+.1f} to {self.high:+.1f} points"
        low, high = sorted((abs(self.low), abs(self.high)))
        if self.points < 0:
            return f"joining costs you {-self.points:.1f} points, {low:.1f} to {high:.1f}"
        return f"joining is worth {self.points:.1f} points to you, {low:.1f} to {high:.1f}"


@dataclass(frozen=True, eq=False)
class Finished:
    """A home model's parameters, how they were chosen, and what each way gives on records of this site."""

    theta: Tensor
    choice: Choice
    alone: Choice
    rows: Mapping[str, Mapping[str, float | None]]
    """`constant`, `alone`, `published`, `finished`: each with `loss` and the task's metric."""
    worth: Worth
    records: int
    """Records that the final fit is made of."""
    held_out: int
    """Records behind `rows`; 0: they are cross-validated, which flatters published and finished."""


def finish_records(
    model: PersonalModel,
    records: Records,
    held_out: Records | None = None,
    progress: Progress = lambda share: None,
) -> Finished:
    """Fits a published model to a site's own records.

    τ and λ are chosen on `records`, those that the run trained on; `rows` are measured on `held_out`, if
    there are any; the final fit takes all. Records that cannot be used are left out.
    """
    task = open_task(model.facts)
    records = records[records.usable]
    held_out = records[:0] if held_out is None else held_out[held_out.usable]
    _check(records, held_out.units)
    found = _chosen_fits(model.module, flat_parameters(model.module), records, task, _fresh(model), progress)
    judged, family = records, found.family
    outputs = {name: found.tried[choice] for name, choice in found.choices.items()}
    if len(held_out):
        judged, outputs = held_out, found.outputs(held_out)
        family = family.on(joined(records, held_out))
    outputs = {"constant": constant(task, records.y, len(judged)), **outputs}
    rows = {
        name: {"loss": float(task.losses(each, judged.y).mean()), task.metric: task.score(each, judged.y)}
        for name, each in outputs.items()
    }
    return Finished(
        theta=family.fit(found.choices["finished"]),
        choice=found.choices["finished"],
        alone=found.choices["alone"],
        rows=rows,
        worth=worth(task, outputs, judged),
        records=len(records) + len(held_out),
        held_out=len(held_out),
    )


def finished_outputs(
    module: nn.Module, published: Tensor, records: Records, held_out: Records, task: Task
) -> dict[str, Tensor]:
    """Returns outputs for held-out records: a constant's, those of `alone`, published and `finished`.

    `published` are parameters θ. Where nothing can be fitted (too few records, or one target), a site alone
    has the constant, and its finished model is the published one.
    """
    records = records[records.usable]
    same = constant(task, records.y, len(held_out))
    try:
        found = _chosen_fits(module, published, records, task, flat_parameters(module), lambda share: None)
    except CannotFinish:
        with torch.no_grad():
            outputs = logits(module, published, held_out.x)
        return {"constant": same, "alone": same, "published": outputs, "finished": outputs}
    return {"constant": same, **found.outputs(held_out)}


@dataclass(frozen=True)
class _Fits:
    """The fits that were chosen among those tried, by name."""

    family: Family
    tried: Mapping[Choice, Tensor]
    choices: Mapping[str, Choice]

    def outputs(self, held_out: Records) -> dict[str, Tensor]:
        """Returns what held-out records get from fits to all others."""
        fit, x = self.family.fit, held_out.x
        return {name: self.family.outputs(fit(choice), x) for name, choice in self.choices.items()}


def _chosen_fits(
    module: nn.Module, published: Tensor, records: Records, task: Task, fresh: Tensor, progress: Progress
) -> _Fits:
    _check(records)
    family = open_family(module, published, records, task, fresh)
    tried = family.out_of_fold(deal_folds(records), progress)
    losses = {choice: task.losses(outputs, records.y).double() for choice, outputs in tried.items()}
    losses = {choice: each for choice, each in losses.items() if bool(each.isfinite().all())}
    own = [choice for choice in losses if choice.share == 0]
    if not own:
        raise CannotFinish("no fit to these records alone stays finite: look for numbers beyond all bounds")
    alone = min(own, key=lambda choice: float(losses[choice].mean()))

    def doubted(choice: Choice) -> float:
        gain = _by_unit(losses[choice] - losses[alone], records.unit)
        return float(gain.mean() + DOUBT * gain.std(correction=0) / math.sqrt(len(gain)))

    best = min(losses, key=doubted)
    return _Fits(family, tried, {"alone": alone, "published": AS_PUBLISHED, "finished": best})


def deal_folds(records: Records) -> Tensor:
    """The fold of each record (m,): units stay together, and every fold gets its share of all targets."""
    generator = torch.Generator().manual_seed(0)
    places = torch.arange(len(records)) if records.unit is None else records.unit
    units, of = torch.unique(places, return_inverse=True)
    first = torch.full((len(units),), len(records)).scatter_reduce_(
        0, of, torch.arange(len(records)), reduce="amin"
    )
    targets = records.y[first].double()
    sums = targets if targets.dim() == 1 else targets.sum(dim=1)
    mixed = torch.randperm(len(units), generator=generator)
    order = mixed[sums[mixed].argsort(stable=True)]
    fold = torch.empty(len(units), dtype=torch.int64)
    folds = FOLDS if len(units) >= FEW else min(2 * FOLDS, len(units))
    fold[order] = torch.arange(len(units)) % folds
    return fold[of]


def joined(one: Records, other: Records) -> Records:
    """The records of both, whose units are not the same."""
    unit = None
    if one.unit is not None and other.unit is not None:
        unit = torch.cat([one.unit, other.unit + int(one.unit.max()) + 1])
    return Records(torch.cat([one.x, other.x]), torch.cat([one.y, other.y]), unit)


def worth(task: Task, outputs: Mapping[str, Tensor], judged: Records) -> Worth:
    """Finished against alone, record by record (unit by unit), in points, with an interval of 95 %.

    For numbers a point is one percent of the constant's squared error. Outputs that agree by chance are not
    surer than one record (unit) is worth.
    """
    if torch.equal(outputs["finished"], outputs["alone"]):
        return Worth(0.0, 0.0, 0.0)
    gains = _points(task, outputs, "finished", judged.y) - _points(task, outputs, "alone", judged.y)
    gains = _by_unit(gains, judged.unit)
    mean = float(gains.mean())
    if len(gains) < 2:
        return Worth(mean, None, None)
    reach = max(student(len(gains) - 1) * float(gains.std()) / len(gains) ** 0.5, 100.0 / len(gains))
    return Worth(mean, mean - reach, mean + reach)


def _by_unit(values: Tensor, unit: Tensor | None) -> Tensor:
    """Values of records (m,) as values of their units, with the same mean; without units as they are."""
    if unit is None:
        return values
    _, of = torch.unique(unit, return_inverse=True)
    sums = torch.zeros(int(of.max()) + 1, dtype=values.dtype).index_add_(0, of, values)
    return sums * len(sums) / len(values)


def _points(task: Task, outputs: Mapping[str, Tensor], row: str, y: Tensor) -> Tensor:
    """Returns what each record (m,) adds to the metric of a row."""
    if task.name == "number":
        error = task.losses(outputs[row].clamp(-1.0, 1.0), y).double()
        return -100.0 * error / task.losses(outputs["constant"], y).double().mean().clamp_min(1e-12)
    right = task.decisions(outputs[row]) == (y if task.name == "classes" else y > 0.5)
    return 100.0 * right.double().reshape(len(y), -1).mean(dim=1)


def _fresh(model: PersonalModel) -> Tensor:
    """The parameters of the model's module before any training; those of a given one are as it was given."""
    if model.untrained is not None:
        return flat_parameters(model.untrained)
    plan, facts = model.plan, model.facts
    return flat_parameters(open_model(plan.model, facts.shape, facts.classes, 0, model_options(plan)))


def _check(records: Records, held_out: int = 0) -> None:
    if records.units < FOLDS:
        what = "records" if records.unit is None else "units"
        beside = f" beside {held_out} to judge by" if held_out else ""
        few = f"{records.units} {what} to choose by{beside} are too few"
        raise CannotFinish(f"{few}, {FOLDS} are the fewest: give more records")
    if bool((records.y == records.y[0]).all()):
        raise CannotFinish("every record has the same target: give records that differ in what is predicted")


def finish(
    model: PersonalModel | str | Path,
    data: str | Path,
    out: str | Path | None = None,
    *,
    module: nn.Module | str | None = None,
    features: str | None = None,
    progress: Progress = lambda share: None,
) -> dict[str, Any]:
    """Fits a published model to its client's file, writes the home model to `out`, and returns what it tells.

    `out` is by default NAME.home.safetensors beside the model's file. `module` and `features` are the run's
    own, if it has some, by name or as a module. Records without a target are left out and counted; nothing
    but `out` is written. `progress` is called with the share that is done. `unknown` and `unreadable` count
    cells, by column, that the model does not know or cannot read; `empty` are columns without any.
    """
    _check_path("data", data)
    if not isinstance(model, PersonalModel):
        _check_path("model", model)
    if out is not None:
        _check_path("out", out)
    if out is None:
        if isinstance(model, PersonalModel):
            raise CannotFinish("a model in memory has no place: say where its home model goes", "out")
        out = home_file(Path(model))
    source, target = Path(data), Path(out)
    if target.resolve() == source.resolve():
        raise CannotFinish(f"{out} holds the records: choose another file for the home model")
    if not isinstance(model, PersonalModel):
        if target.resolve() == Path(model).resolve():
            raise CannotFinish(f"{out} is the published model: choose another file for the home model")
        model = PersonalModel.read(Path(model), model=module, features=features)
    check_place(target, home=True)
    if model.home:
        raise CannotFinish("this model was finished already: give the published one")
    if target.suffix.lower() != SUFFIX:
        raise CannotFinish(f"a home model is written as {SUFFIX}, not as {target.name}: rename it", "out")
    check_writable(target)
    found = described_client(source, model.plan, model.facts, needed=0, local=features, limited=False)
    trained, held_out = divided(found, model.division)
    try:
        _check_usable(found)
        odd = _odd_cells(source, model.records, len(found))
        finished = finish_records(model, trained, held_out, progress)
    except CannotFinish as refused:
        raise CannotFinish(f"{source}: {refused}") from None
    told = {
        "task": model.facts.task,
        "metric": open_task(model.facts).metric,
        "rows": finished.rows,
        "chosen": _chosen(finished.choice),
        "chosen_alone": _chosen(finished.alone),
        "worth": asdict(finished.worth),
        "records": finished.records,
        "held_out": finished.held_out,
        "left_out": len(found) - finished.records,
    }
    write_atomically(target, home_model(model, finished.theta, told), PRIVATE)
    return {"model": str(target), "client": model.origin.client, **told, **odd}


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str | os.PathLike):
        raise CannotFinish(f"{name}={shown(repr(path))} is no path: say where its file lies", name)


def _check_usable(records: Records) -> None:
    if not bool(records.usable.any()):
        raise CannotFinish(
            f"none of {len(records)} records can be used: give some with a target that the model knows"
        )


def _odd_cells(source: Path, facts: Facts, records: int) -> dict[str, Any]:
    """What is odd in the columns of a file; one of which a whole column says nothing is refused.

    `unknown` and `unreadable` count cells by column, `empty` are columns in which no record has anything.
    """
    odd = {name: Counter[str]() for name in ("unknown", "unreadable", "missing")}
    agreed = schema.of(facts)
    if agreed is not None and agreed.array is None:
        for _, _, columns in read_inputs(source, facts):
            for name, column in columns.items():
                for kind, counts in odd.items():
                    counts[name] += getattr(column, kind)
    unknown, unreadable, missing = ({name: n for name, n in one.items() if n} for one in odd.values())
    for name, cells in unreadable.items():
        if cells == records:
            raise CannotFinish(
                f"column '{name}' holds nothing that the model could read: write it as the records that it "
                "was trained on"
            )
    empty = [name for name, cells in missing.items() if cells + unreadable.get(name, 0) == records]
    return {"unknown": unknown, "unreadable": unreadable, "empty": empty}


def home_file(published: Path) -> Path:
    """Returns where the home model of a published one lies by default: beside it.

    >>> home_file(Path("models/north.safetensors")).name
    'north.home.safetensors'
    """
    return published.with_name(f"{published.stem}.home{SUFFIX}")


def _chosen(choice: Choice) -> dict[str, float | None]:
    """A choice as JSON has it: no strength (`pull`) where nothing was fitted."""
    return {"share": choice.share, "pull": None if math.isinf(choice.strength) else choice.strength}


def divided(records: Records, division: int | None) -> tuple[Records, Records]:
    """Those that a run trained on, and those that it held out."""
    if division is None:
        return records, records[:0]
    mixed = records.of_units(records.order(division))
    rows = mixed.rows_of(training_size(records.units))
    return mixed[:rows], mixed[rows:]
