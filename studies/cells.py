"""Cells: one entry of one of the paper's tables, as plan settings with the published values beside them.

A table is a TOML file whose rows are plan settings and whose columns are the values of one plan key; the
published numbers stand in the order of the columns, as [mean, deviation] or alone, `nan` where the paper is
silent. Rows that the paper does not have name the row whose published accuracies stand `beside` them. A row
may have fewer `datasets` and `values` than its table.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError, nearest
from sottovoce.plan import Plan

EXPERIMENTS = ("main-table", "frontier", "heterogeneity", "geometry", "codecs", "dimension")
"""In the order of importance in which a grid runs them."""

SEEDS = (41, 42, 43, 44, 45)
"""The seeds of the paper's runs."""

QUICK_ROUNDS = 80
QUICK_EPSILON = 16.0
QUICK_SEEDS = (41,)


@dataclass(frozen=True)
class Cell:
    """Settings of a plan, still without a seed, and what the paper published for them.

    `published` has the keys `seen_mean`, `seen_std`, `future_mean`, `future_std`, `uplink_mb`, … that the
    paper gives; a row that it does not have stands `beside` one of its rows. `replays` is the cell whose
    gains a replay repeats.
    """

    experiment: str
    dataset: str
    label: str
    across: str
    at: float | bool
    settings: Mapping[str, Any]
    published: Mapping[str, float]
    beside: str | None = None
    quick: bool = False
    replays: Cell | None = None

    @property
    def id(self) -> str:
        """A name that no other cell has.

        >>> open_cells("main-table")[0].id
        'main-table/mnist/Global/epsilon=4'
        """
        at = str(self.at).lower() if isinstance(self.at, bool) else f"{self.at:g}"
        parts = [self.experiment, self.dataset, self.label, f"{self.across}={at}"]
        if self.across != "epsilon":
            parts.append(f"epsilon={self.settings['epsilon']:g}")
        return "/".join([*parts, "quick"] if self.quick else parts)

    def plan(self, seed: int) -> Plan:
        """The plan of this cell's run with a seed; a seeded simulation."""
        # Tables need the final accuracy only, and evaluating on the way takes a tenth of a run.
        given = {**self.settings, "dataset": self.dataset, "seed": seed, "seeded": True, "evaluate_every": 0}
        plan = Plan.load(overrides=given)
        if not self.quick:
            return plan
        context_round = math.ceil(plan.context_round * QUICK_ROUNDS / plan.rounds)
        return plan.replace(rounds=QUICK_ROUNDS, context_round=context_round)


@dataclass(frozen=True)
class Difference:
    """A difference in points of future accuracy between two cells, with the published one or None."""

    label: str
    dataset: str
    of: str
    minus: str
    absolute: bool
    published: float | None

    def value(self, future: Mapping[str, float]) -> float | None:
        """Ours, from future accuracies by cell id; None until both cells are there."""
        if self.of not in future or self.minus not in future:
            return None
        points = future[self.of] - future[self.minus]
        return abs(points) if self.absolute else points


def read_table(experiment: str, folder: Path | None = None) -> dict[str, Any]:
    """The TOML of an experiment, from the package or from a folder of one's own."""
    if folder is None and experiment not in EXPERIMENTS:
        raise SottovoceError(f"unknown experiment '{experiment}': {nearest(experiment, EXPERIMENTS)}")
    from importlib import resources

    place = resources.files(__package__) if folder is None else folder
    return tomllib.loads(place.joinpath(f"{experiment}.toml").read_text(encoding="utf-8"))


def open_cells(
    experiment: str,
    *,
    datasets: Sequence[str] = (),
    epsilons: Sequence[float] = (),
    quick: bool = False,
    folder: Path | None = None,
) -> list[Cell]:
    """The cells of an experiment in the order of its rows; datasets and ε default to the table's own.

    Other datasets or budgets than the paper's are welcome and simply have no published values.
    """
    table = read_table(experiment, folder)
    columns = _columns(table, epsilons, quick)
    cells: dict[tuple[str, str, Any], Cell] = {}
    for row in table["row"]:
        for dataset in datasets or table["datasets"]:
            for at, epsilon in columns:
                if not _asked(row, dataset, at):
                    continue
                source = cells.get((row.get("replays", ""), dataset, (at, epsilon)))
                cells[row["label"], dataset, (at, epsilon)] = Cell(
                    experiment=experiment,
                    dataset=dataset,
                    label=row["label"],
                    across=table["across"],
                    at=at,
                    settings=_settings(table, row, at, epsilon),
                    published=_published(table, row, dataset, at, epsilon),
                    beside=row.get("beside"),
                    quick=quick,
                    replays=source,
                )
    return list(cells.values())


def open_differences(experiment: str, folder: Path | None = None) -> list[Difference]:
    """The differences between cells that the paper states, or that we look at beside it."""
    table = read_table(experiment, folder)
    found = []
    for entry in table.get("difference", []):
        for dataset in table["datasets"]:
            ends = [
                next(
                    cell.id
                    for cell in open_cells(experiment, datasets=[dataset], folder=folder)
                    if cell.label == end["row"] and cell.at == end["at"]
                )
                for end in (entry["of"], entry["from"])
            ]
            found.append(
                Difference(
                    label=entry["label"],
                    dataset=dataset,
                    of=ends[0],
                    minus=ends[1],
                    absolute=entry.get("absolute", False),
                    published=entry.get("published", {}).get(dataset),
                )
            )
    return found


def _asked(row: Mapping[str, Any], dataset: str, at: Any) -> bool:
    """Whether a row has a cell for a dataset and a column; one that names none has all."""
    return dataset in row.get("datasets", [dataset]) and at in row.get("values", [at])


def _columns(table: Mapping[str, Any], epsilons: Sequence[float], quick: bool) -> list[tuple[Any, float]]:
    """Value of the key across, and ε, of each column."""
    if table["across"] == "epsilon":
        values = epsilons or ([QUICK_EPSILON] if quick else table["values"])
        return [(float(value), float(value)) for value in values]
    return [(value, float(e)) for e in epsilons or [table["plan"]["epsilon"]] for value in table["values"]]


def _settings(table: Mapping[str, Any], row: Mapping[str, Any], at: Any, epsilon: float) -> dict[str, Any]:
    settings = {**table["plan"], **row["plan"], "epsilon": epsilon}
    if table["across"] != "noise":
        settings[table["across"]] = at
    elif not at:
        settings |= {"epsilon": math.inf, "channel": "direct"}
    return settings


def _published(
    table: Mapping[str, Any], row: Mapping[str, Any], dataset: str, at: Any, epsilon: float
) -> dict[str, float]:
    """What the paper has for a cell; nothing where it ran another dataset, column or budget."""
    source = row
    if "beside" in row:
        source = next(other for other in table["row"] if other["label"] == row["beside"])
    if at not in table["values"] or epsilon != table["plan"].get("epsilon", epsilon):
        return {}
    column = table["values"].index(at)
    found: dict[str, float] = {}
    for measure, values in source.get("published", {}).get(dataset, {}).items():
        value = values[column]
        if isinstance(value, list):
            found[f"{measure}_mean"], found[f"{measure}_std"] = value
        else:
            found[measure] = value
    return {measure: value for measure, value in found.items() if not math.isnan(value)}
