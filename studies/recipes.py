"""Recipes of tables of classes: which constants serve which table, and what a table says that had no say.

`python -m studies.recipes --folder TABLES [--jobs 2]` writes `results/recipes.json`, from which a table of
docs/choosing.md is made: 27 recipes (drift, least clip bound, bias scale), tables of classes of
`site_tables`, noise at each client and at the server, ε = 2, 8, 32. Losses are log losses over the
constant's, in the mean over sites, on divisions that no other study judges by.

Steps, shares, weights, noise and calibration are the package's own. Runs of one division train side by side
under several draws of noise, the same for all recipes, with clipped means in closed form (a test holds a run
against its server's).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.metrics import constant
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan, recipes
from sottovoce.release.once.calibration import Scaling
from sottovoce.release.once.centre import measured_from
from sottovoce.release.recipe import kept_parts
from sottovoce.run.prepare import Prepared, prepare
from sottovoce.training.server import Server
from studies.real_tables import PRESETS, loaded, release_once
from studies.site_tables import TABLES
from studies.table_grid import AVERAGED, padded, prepared_plan, with_constant

RESULTS = Path(__file__).parents[1] / "results" / "recipes.json"
RECIPES = tuple(itertools.product((1.0, 1.4, 2.0), (0.15, 0.25, 0.5), (0.3, 0.4, 0.7)))
"""Drift, the least clip bound, and the bias scale."""
CHOSEN = (1.4, 0.15, 0.4)
EPSILONS = (2.0, 8.0, 32.0)
SEEDS, DRAWS = {"vietnam": (91,), "insurance": (91, 92)}, {"vietnam": 1, "insurance": 2}
MOST_SEEDS, MOST_DRAWS = tuple(range(87, 93)), 6


class Draws:
    """A prepared run under several draws of noise; parameters are (draws, sites, columns, outputs)."""

    def __init__(self, prepared: Prepared, seed: int) -> None:
        self._prepared, self._seed = prepared, seed
        sites = prepared.federation.participants
        at, longest = self._centre(), prepared.blueprint.recipe.longest
        self._train = padded([measured_from(mine.train, at, longest) for mine in sites])
        self._seen = with_constant(self._train[0], prepared.plan.bias_scale)
        self._held_out = padded([measured_from(mine.held_out, at, longest) for mine in sites])
        self._outputs = prepared.blueprint.facts.classes

    def _centre(self) -> Tensor:
        """Where inputs are measured from, one for all draws; 0 where nobody releases any."""
        server = Server(self._prepared.blueprint)
        release_once(server, self._prepared, np.random.default_rng(self._seed))
        return server.centre() if self._prepared.plan.centring else torch.zeros(server.blueprint.facts.shape)

    def trained(self, draws: int) -> Tensor:
        """What rounds end with, before a calibration."""
        blueprint = self._prepared.blueprint
        plan, blending, summed = blueprint.plan, blueprint.blending, blueprint.round_sum is not None
        everyone = range(plan.participants)
        sigmas = _column([blueprint.releases_of(i)["gradient"].channel.sigma for i in everyone])
        weights, own = _column(blending.weights), _column(blending.individual)
        if blueprint.round_sum is not None:
            weights = _column(blueprint.round_sum.weights(blueprint.counted))
        steps, root = _column(blending.own_steps), (1 - own).sqrt()
        columns, averaged = self._train[0].shape[2], round(AVERAGED * plan.rounds)
        noise, of_own = (torch.Generator().manual_seed(self._seed + more) for more in (0, 5000))
        shared = torch.zeros(draws, 1, columns, self._outputs)
        part = torch.zeros(draws, plan.participants, columns, self._outputs)
        moving, moved = torch.zeros_like(shared), torch.zeros_like(part)
        means_of = [torch.zeros_like(shared), torch.zeros_like(part)]
        for number in range(plan.rounds):
            means = self._means(root * shared + part)
            released = means + sigmas * torch.randn(means.shape, generator=noise)
            total = (weights * root * released).sum(dim=1, keepdim=True)
            if summed:
                total = total + blueprint.sigma * torch.randn(total.shape, generator=noise)
            moving = plan.momentum * moving + total
            shared = shared - blending.step * moving
            if own.any():
                released = own * released
                if summed:
                    drawn = torch.randn(means.shape, generator=of_own)
                    released = released + own.sqrt() * blueprint.sigma / weights * drawn
                moved = plan.momentum * moved + released
                part = part - steps * moved
            if number >= plan.rounds - averaged:
                means_of = [mean + of / averaged for mean, of in zip(means_of, (shared, part), strict=True)]
        if own.any() and bool((blending.least_kept < 1).any()):
            flat = [self._flat(drawn) for drawn in means_of[1].double()]
            kept = [kept_parts(blending, each.numpy(), everyone, self._outputs) for each in flat]
            means_of[1] = torch.stack([self._table(torch.from_numpy(each)) for each in kept]).float()
        return with_constant((root * means_of[0] + means_of[1]).mT, plan.bias_scale).mT

    def _flat(self, parts: Tensor) -> Tensor:
        """Coefficients (sites, k) as a generator has them, of parameters (sites, columns, outputs)."""
        return torch.cat([parts[:, :-1].mT.flatten(1), parts[:, -1]], dim=1)

    def _table(self, flat: Tensor) -> Tensor:
        """Parameters (sites, columns, outputs) of coefficients (sites, k)."""
        weights = flat[:, : -self._outputs].view(len(flat), self._outputs, -1).mT
        return torch.cat([weights, flat[:, None, -self._outputs :]], dim=1)

    def calibrated(self, theta: Tensor) -> Tensor:
        """Parameters with slope and shifts, each draw's by releases of its own."""
        blueprint, (x, y, used) = self._prepared.blueprint, self._train
        statistic = blueprint.derivatives
        assert statistic is not None
        everyone = range(blueprint.plan.participants)
        sigmas = torch.tensor([blueprint.releases_of(i)["calibration"].sigma for i in everyone])
        noise, counted = torch.Generator().manual_seed(self._seed + 9000), torch.tensor(blueprint.counted)
        found = []
        for drawn in theta:
            z, there = x @ drawn, used > 0
            exact = [
                statistic.per_record(x[i][there[i]], y[i][there[i]], z[i][there[i]]).mean(dim=0)
                for i in everyone
            ]
            released = torch.stack(exact)
            released = released + sigmas[:, None] * torch.randn(
                released.shape, generator=noise, dtype=torch.float64
            )
            scaling = Scaling.of(statistic, released.float(), sigmas, counted)
            drawn = scaling.slope * drawn
            drawn[:, -1] += scaling.shifts.float()
            found.append(drawn)
        return torch.stack(found)

    def loss(self, theta: Tensor) -> float:
        """Log loss on what sites hold out, in the mean over sites and draws."""
        x, y, used = self._held_out
        told = torch.log_softmax(torch.einsum("nmc,rnck->rnmk", x, theta), dim=3)
        picked = told.gather(3, y[None, :, :, None].expand(len(theta), -1, -1, 1))[..., 0]
        return float(-((picked * used).sum(dim=2) / used.sum(dim=1)).mean())

    def _means(self, theta: Tensor) -> Tensor:
        x, (_, y, used) = self._seen, self._train
        deltas = torch.softmax(torch.einsum("nmc,rnck->rnmk", x, theta), dim=3) - F.one_hot(y, self._outputs)
        scale = self._prepared.plan.clip / (deltas.norm(dim=3) * x.norm(dim=2)).clamp_min(1e-12)
        deltas = deltas * (scale.clamp_max(1.0) * used)[..., None]
        return torch.einsum("nmc,rnmk->rnck", x, deltas) / used.sum(dim=1)[:, None, None]


def _column(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)[None, :, None, None]


def with_recipe(plan: Plan, drift: float, least: float, scale: float) -> Plan:
    """The plan with a recipe of its own for tables of classes, which this process knows from now on."""
    usual = recipes.open_recipe(plan.recipe)
    task = usual.tasks["classes"]
    assert task.tables is not None
    tables = dataclasses.replace(
        task.tables, drift=drift, clips=(least, task.tables.clips[1]), bias_scale=scale
    )
    changed = {**usual.tasks, "classes": dataclasses.replace(task, tables=tables)}
    recipe = dataclasses.replace(usual, version="study", tasks=changed)
    return plan.replace(recipe=recipes.RECIPES.setdefault(recipe.name, recipe).name)


def tried(folder: Path, name: str, place: str, epsilon: float, seed: int) -> dict[str, Any]:
    """The losses of all recipes on one division."""
    torch.set_num_threads(1)
    records, losses = loaded(folder, name), []
    plan = prepared_plan(records.name, PRESETS[place], epsilon, seed)
    for numbers in RECIPES:
        run = Draws(prepare(with_recipe(plan, *numbers), records), seed)
        losses.append(run.loss(run.calibrated(run.trained(DRAWS.get(name, MOST_DRAWS)))))
    task = open_task(records.facts)
    sites = prepare(plan, records).federation.participants
    constants = [
        float(task.losses(constant(task, mine.train.y, len(mine.held_out)), mine.held_out.y).mean())
        for mine in sites
    ]
    return {
        "table": name,
        "place": place,
        "epsilon": epsilon,
        "constant": float(np.mean(constants)),
        "losses": losses,
    }


def summed_up(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each table, place and ε: the losses of all recipes over the constant's."""
    found = []
    for cell in sorted({(one["table"], one["place"], one["epsilon"]) for one in figures}):
        mine = [one for one in figures if (one["table"], one["place"], one["epsilon"]) == cell]
        over = np.mean([one["losses"] for one in mine], axis=0) / np.mean([one["constant"] for one in mine])
        found.append(
            {
                **dict(zip(("table", "place", "epsilon"), cell, strict=True)),
                "over_constant": over.round(4).tolist(),
            }
        )
    return found


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Leaving one table out: what the others choose, and the geometric means of its losses, as Markdown."""
    names = sorted({line["table"] for line in lines})
    logs = {
        name: np.mean([np.log(line["over_constant"]) for line in lines if line["table"] == name], axis=0)
        for name in names
    }
    told = ["| left out | the others choose | its loss then | by the recipe | by its own choice |"]
    told.append("|---|---|---|---|---|")
    for name in names:
        others = int(np.argmin(np.mean([logs[other] for other in names if other != name], axis=0)))
        own, losses = int(np.argmin(logs[name])), np.exp(logs[name])
        chosen = losses[RECIPES.index(CHOSEN)]
        told.append(
            f"| {name} | {_words(others)} | {losses[others]:.3f} | {chosen:.3f} | "
            f"{losses[own]:.3f} ({_words(own)}) |"
        )
    return "\n".join(told)


def _words(index: int) -> str:
    return ", ".join(f"{value:g}" for value in RECIPES[index])


def work(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The divisions on which recipes are tried."""
    for name in (name for name, one in TABLES.items() if one.task == "classes"):
        for place, epsilon in itertools.product(PRESETS, EPSILONS):
            yield from ((folder, name, place, epsilon, seed) for seed in SEEDS.get(name, MOST_SEEDS))


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("build/real_tables"), help="where tables are kept"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured before")
    options = parser.parse_args()
    if not options.table:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            lines = summed_up(pool.starmap(tried, list(work(options.folder)), chunksize=1))
        RESULTS.write_text(json.dumps(lines, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
