"""In how many cells of the real tables the promises of docs/why-join.md hold, and what the others have.

A cell is a table, a place of the noise and ε, one line of `results/real_tables.json`. `python -m
studies.real_tables --table` prints these counts behind the tables, and the page shows them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from studies.site_tables import TABLES

Line = dict[str, Any]
Told = Callable[[Line], str]
FROM = 2.0
"""The smallest ε about which most is promised."""
CHOSEN = ("picked", "grid")
"""Losses of a grid that published ones are held against."""


def counts(lines: Sequence[Line]) -> str:
    """The counts as Markdown."""
    later = [one for one in lines if one["epsilon"] >= FROM]
    classes = [one for one in lines if TABLES[one["table"]].task == "classes"]
    tables = list({one["table"]: one for one in lines}.values())
    rows = [
        _row("finished − alone at most 0.005 or two standard errors", lines, _is_no_loss, _gain),
        _row("finished below alone", lines, lambda one: one["gain"] < 0),
        _row(
            "pooled at least 1 % below constant, tables",
            tables,
            lambda one: _over(one, "pooled") <= -1,
            _pooled,
        ),
        _row(
            "published below constant, ε = 1", [one for one in lines if one not in later], _is_better, _above
        ),
        _row("published below constant, ε = 2, 8, 32", later, _is_better, _above),
        _row("published no higher than at the ε before", _steps(lines), lambda one: one["rise"] <= 0, _rise),
        _row(
            "published at most 5 % above picked, ε = 2, 8, 32", later, _is_near("picked"), _beside("picked")
        ),
        _row("published below picked, ε = 2, 8, 32", later, lambda one: _over(one, of="picked") < 0),
        _row("published at most 5 % above luckiest, ε = 2, 8, 32", later, _is_near("grid"), _beside("grid")),
        _row(
            "an own part costs at most half a point, classes", classes, lambda one: one["own"] >= -0.5, _own
        ),
    ]
    means = [100 * np.expm1(np.mean([np.log1p(_over(one, of=row) / 100) for one in later])) for row in CHOSEN]
    text = "Geometric mean of published, ε = 2, 8, 32: {:+.1f} % against picked, {:+.1f} % against luckiest."
    return "\n".join(["| | cells | the others |", "|---|---|---|", *rows, "", text.format(*means)])


def _row(what: str, cells: Sequence[Line], holds: Callable[[Line], bool], told: Told | None = None) -> str:
    """One claim, in how many cells it holds, and the others by name, with what `told` says of them."""
    others = [] if told is None else [told(one) for one in cells if not holds(one)]
    return f"| {what} | {sum(map(holds, cells))} of {len(cells)} | {'; '.join(others)} |"


def _over(one: Line, row: str = "published", of: str = "constant") -> float:
    """By how many percent one loss is above another."""
    known = {**one["loss"], **{name: one[name] for name in ("pooled", *CHOSEN) if name in one}}
    return float(100 * (known[row] / known[of] - 1))


def _steps(lines: Sequence[Line]) -> list[Line]:
    """All cells that have one of the next smaller ε, and by how much the loss rises from there."""
    found, cells = [], {(one["table"], one["place"], one["epsilon"]): one for one in lines}
    for (table, place, epsilon), one in cells.items():
        before = [cell for cell in cells if cell[:2] == (table, place) and cell[2] < epsilon]
        if before:
            least = cells[max(before)]
            rise = one["loss"]["published"] - least["loss"]["published"]
            found.append({**one, "before": least["epsilon"], "rise": rise})
    return found


def _cell(one: Line) -> str:
    return f"{one['table']}, {one['place']}, ε = {one['epsilon']:g}"


def _is_no_loss(one: Line) -> bool:
    return bool(one["gain"] <= max(0.005, 2 * one["gain_error"]))


def _is_better(one: Line) -> bool:
    return _over(one) < 0


def _is_near(row: str) -> Callable[[Line], bool]:
    return lambda one: _over(one, of=row) <= 5


def _gain(one: Line) -> str:
    return f"{_cell(one)}: {one['gain']:+.4f} ± {one['gain_error']:.4f}"


def _pooled(one: Line) -> str:
    return f"{one['table']}: {_over(one, 'pooled'):+.1f} %"


def _above(one: Line) -> str:
    return f"{_cell(one)}: {_over(one):+.1f} ± {100 * one['over_constant_error']:.1f} %"


def _rise(one: Line) -> str:
    return f"{one['table']}, {one['place']}, ε = {one['before']:g} to {one['epsilon']:g}: {one['rise']:+.4f}"


def _beside(row: str) -> Told:
    return lambda one: f"{_cell(one)}: {_over(one, of=row):+.1f} % of {one[row]:.3f}"


def _own(one: Line) -> str:
    return f"{_cell(one)}: {one['own']:+.2f} ± {one['own_error']:.2f} points"
