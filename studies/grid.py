"""The grid: the runs that a set of cells needs, each once, in the order of importance, and their batches.

Cells share runs (Ours-DG at ε = 16 is in four tables), so a run is known by the digest of its plan, which is
also the end of its directory's name. A replay refers to the run whose gains it repeats by that name, so
plans, and with them the noise, do not depend on where the folder of runs lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sottovoce.plan import Plan
from studies import replay
from studies.cells import Cell

NATIVE = ("direct", "direct-q12", "integers")
"""Channels that need nothing compiled."""

_CODED = ("lrsuq", "lrsuq-elias", "polar")


@dataclass(frozen=True)
class CellRun:
    """One seeded simulation: `cell` asked for it first, `source` is the run whose gains it replays."""

    cell: Cell
    plan: Plan
    source: CellRun | None = None

    @cached_property
    def name(self) -> str:
        """Name of its directory: readable, and unique by the plan's digest."""
        plan = self.plan
        what = f"{plan.dataset}-{plan.preset}-{self.method}-{plan.context}-{plan.channel}"
        where = f"k{plan.coefficients}-e{plan.epsilon:g}-a{plan.alpha:g}-s{plan.seed}"
        return re.sub(r"[^a-z0-9.]+", "-", f"{what}-{where}-{self.digest}".lower())

    @property
    def method(self) -> str:
        """What is learned, in the words of the tables."""
        return self.plan.method if self.source is None else replay.METHOD

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the plan, and of what it replays."""
        return self.plan.digest() if self.source is None else replay.digest(self.plan, self.source.name)

    def law(self) -> Plan:
        """The plan with the channel's decoded law (statistic + Gaussian noise) instead of its code.

        The plan's digest names a run in the streams of its noise: `repeat` gives every code draws of its own.
        """
        if self.plan.channel in NATIVE:
            return self.plan
        return self.plan.replace(channel="direct", repeat=1 + _CODED.index(self.plan.channel))


def run_of(cell: Cell, seed: int) -> CellRun:
    """The run of a cell with a seed."""
    if cell.replays is None:
        return CellRun(cell, cell.plan(seed))
    return CellRun(cell, cell.plan(seed), run_of(cell.replays, seed))


def runs_of(cells: Iterable[Cell], seeds: Sequence[int]) -> list[CellRun]:
    """Every run that the cells need, once, sources of replays before them, otherwise in the cells' order."""
    found: dict[str, CellRun] = {}
    for cell in cells:
        for seed in seeds:
            run = run_of(cell, seed)
            for needed in (run.source, run):
                if needed is not None:
                    found.setdefault(needed.digest, needed)
    return list(found.values())


def batches_of(runs: Sequence[CellRun], size: int) -> list[list[CellRun]]:
    """Batches of at most `size` runs that an engine can train in lockstep, most important first.

    A batch holds runs of one experiment only, so that no table waits for a less important one.
    """
    from studies.sweep import shape

    groups: dict[tuple[object, ...], list[CellRun]] = {}
    for run in runs:
        groups.setdefault((run.cell.experiment, shape(run.plan)), []).append(run)
    place = {run.name: i for i, run in enumerate(runs)}
    found = [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]
    return sorted(found, key=lambda batch: place[batch[0].name])
