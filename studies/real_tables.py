"""Real tables in the hands of sites: what is published, what a site has alone, what a finish makes of both.

`python -m studies.real_tables --source DATA` writes `results/real_tables.json`, from which tables of
docs/why-join.md and docs/choosing.md are made: every table of `site_tables`, with noise at each client
(`preset=best`) and at the server (`central`), ε = 1, 2, 8, 32, seven seeds. Loss is log loss, or squared
error over that of each site's mean, in the mean over sites on the fifth that they hold out; *alone* and
*finished* are those of the first `FINISHED` sites. `grid` is the best of `studies.table_grid` on the same
seeds, picked on what it is judged by, which favours it; `picked` is the setting that was best on other seeds
(`CHOOSING`), as somebody would find it who may try the whole grid without privacy. Seven divisions of a
small table say little: `results/small_tables.json` has 21 others of four of them, by `--seeds 901 921
--epsilons 2 8 32 --out FILE` with `--tables "breast cancer" wine --choosing 521 532`, and then with `--tables
heart indomethacin --device none`, which tries no grid.

Blueprint, noise, weights, steps and server are the package's own; clipped means of a linear model are in
closed form, and releases are drawn as what channels decode to, as in `benchmarks.hospitals`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.channel.wire import SeededRandomness
from sottovoce.data import Dataset
from sottovoce.models.metrics import constant
from sottovoce.models.parameters import flat_parameters, logits
from sottovoce.models.tasks import Task, open_task
from sottovoce.personal.finishing import finished_outputs, joined
from sottovoce.release.once.centre import cut
from sottovoce.run.prepare import Prepared, prepare
from sottovoce.training.server import Server
from studies.counts import counts
from studies.site_tables import TABLES
from studies.table_grid import ROUNDS, Tried, padded, prepared_plan, settings, with_constant

RESULTS = Path(__file__).parents[1] / "results" / "real_tables.json"
PRESETS = {"client": "best", "server": "central"}
EPSILONS, SEEDS, FINISHED = (1.0, 2.0, 8.0, 32.0), tuple(range(701, 708)), 40
CHOOSING = (51, 52, 53)
"""Seeds on which `picked` is picked."""
DRAWS = 4
"""Of noise for every division of records: on small tables one draw says little."""
ROWS = ("constant", "alone", "published", "finished")
FITTED = ("alone", "finished")

Figures = dict[str, Any]


def clipped_means(prepared: Prepared, held: Sequence[Tensor], coefficients: Tensor) -> np.ndarray:
    """Clipped mean gradients (n, k) of linear models with bias at (W, b/c) of each site, reference 0.

    Behind the coefficients is the centre that inputs are measured from, if there is one.
    """
    outputs, size = prepared.blueprint.facts.classes, prepared.blueprint.coefficients
    seen, y, used = held
    if coefficients.shape[1] > size:
        there = cut(coefficients[0, size:], prepared.blueprint.recipe.longest)
        seen = torch.cat([seen[..., :-1] - there, seen[..., -1:]], dim=-1)
        coefficients = coefficients[:, :size]
    x = with_constant(seen, prepared.plan.bias_scale)
    weight = coefficients[:, :-outputs].view(len(coefficients), outputs, -1)
    deltas = x @ torch.cat([weight, coefficients[:, -outputs:, None]], dim=2).transpose(1, 2)
    if prepared.blueprint.facts.task == "number":
        deltas = deltas - y[:, :, None]
    else:
        deltas = torch.softmax(deltas, dim=2) - torch.nn.functional.one_hot(y, outputs)
    scale = prepared.plan.clip / (deltas.norm(dim=2) * x.norm(dim=2)).clamp_min(1e-12)
    deltas = deltas * (scale.clamp_max(1.0) * used)[:, :, None]
    means = (deltas.transpose(1, 2) @ x).double() / used.sum(dim=1)[:, None, None]
    return torch.cat([means[:, :, :-1].flatten(1), means[:, :, -1]], dim=1).numpy()


class ByColumn(SeededRandomness):
    """Noise of a sum (k, columns) whose first column is the same however many there are: runs with own parts
    and without are compared under the same noise."""

    def __init__(self, seed: bytes, k: int) -> None:
        super().__init__(seed)
        self._k = k

    def normal(self, count: int) -> np.ndarray:
        return np.stack([super(ByColumn, self).normal(self._k) for _ in range(count // self._k)], 1).ravel()


def trained(prepared: Prepared, draw: int = 0) -> Server:
    """What a run ended with; each `draw` has noise of its own."""
    plan, blueprint = prepared.plan, prepared.blueprint
    everyone = list(range(plan.participants))
    server, held = Server(blueprint), padded([mine.train for mine in prepared.federation.participants])
    sigmas = np.array([blueprint.releases_of(i)["gradient"].channel.sigma for i in everyone])
    noise = np.random.default_rng([plan.seed, draw] if draw else plan.seed)

    release_once(server, prepared, noise)
    for number in range(plan.rounds):
        means = clipped_means(prepared, held, server.sent(everyone))
        released = dict(enumerate(means + sigmas[:, None] * noise.standard_normal(means.shape)))
        if plan.place.summed:
            randomness = ByColumn(f"{plan.seed}:{number}:{draw}".encode(), means.shape[1])
            server.receive_update(server.add_up(released, randomness))
        else:
            server.receive_round(released)
    server.finish()
    release_once(server, prepared, noise)
    return server


def release_once(server: Server, prepared: Prepared, noise: np.random.Generator) -> None:
    """Takes what is due between the last round and the next."""
    blueprint = prepared.blueprint
    for phase in (phase for phase in blueprint.once if phase.after == server.round):
        for i, mine in enumerate(prepared.federation.participants):
            release = blueprint.releases_of(i)[phase.kind]
            exact = release.statistic(mine.train, server.model_of(phase, i)).numpy()
            server.receive(phase.kind, i, exact + release.sigma * noise.standard_normal(exact.shape))
        server.close(phase)


def published(prepared: Prepared, draw: int = 0) -> tuple[list[Tensor], list[tuple[float, float]]]:
    """Each site's published parameters, and loss and score of its model on what it holds out."""
    blueprint, sites = prepared.blueprint, prepared.federation.participants
    task = open_task(blueprint.facts)
    coefficients = trained(prepared, draw).coefficients(list(range(len(sites))))
    thetas = [blueprint.theta(one).detach() for one in coefficients]
    outputs = [
        logits(blueprint.module, theta, mine.held_out.x) for theta, mine in zip(thetas, sites, strict=True)
    ]
    judged = [_judged(task, each, mine.held_out.y) for each, mine in zip(outputs, sites, strict=True)]
    return thetas, judged


def measured(records: Dataset, place: str, epsilon: float, seed: int) -> Figures:
    """One division: mean losses and scores of all rows, and of one shared model (`individual=0`).

    Those of published models are means over draws of noise; finished are those of the first.
    """
    prepared = prepare(prepared_plan(records.name, PRESETS[place], epsilon, seed), records)
    task, module = open_task(records.facts), prepared.blueprint.module
    thetas, judged = published(prepared)
    rows: dict[str, list[tuple[float, float]]] = {"published": judged}
    for theta, mine in zip(thetas, prepared.federation.participants, strict=True):
        outputs = {"constant": constant(task, mine.train.y, len(mine.held_out))}
        if len(rows.get("finished", [])) < FINISHED:
            outputs |= finished_outputs(module, theta, mine.train, mine.held_out, task)
            del outputs["published"]
        for row, found in outputs.items():
            rows.setdefault(row, []).append(_judged(task, found, mine.held_out.y))
    shared = prepare(prepared_plan(records.name, PRESETS[place], epsilon, seed, individual=0.0), records)
    drawn = [judged, *(published(prepared, draw)[1] for draw in range(1, DRAWS))]
    loss, score = np.mean(drawn, axis=(0, 1)).tolist()
    without = np.mean([published(shared, draw)[1] for draw in range(DRAWS)], axis=(0, 1))
    return {
        "table": records.name,
        "place": place,
        "epsilon": epsilon,
        "seed": seed,
        "clip": prepared.plan.clip,
        "loss": {row: float(np.mean([one for one, _ in found])) for row, found in rows.items()}
        | {"published": loss},
        "score": {row: float(np.mean([one for _, one in found])) for row, found in rows.items()}
        | {"published": score},
        "without_own": dict(zip(("loss", "score"), without.tolist(), strict=True)),
        "first": float(np.mean([one for one, _ in rows["constant"][:FINISHED]])),
    }


def tried(records: Dataset, place: str, epsilon: float, seed: int, device: str = "cpu") -> Figures:
    """The losses of the whole grid on the records of one run."""
    prepared = prepare(prepared_plan(records.name, PRESETS[place], epsilon, seed), records)
    grid = list(settings(records.facts.task, prepared.plan.place.summed))
    found = Tried(prepared, device)
    each = [np.reshape(found.losses(DRAWS * grid, *how, seed), (DRAWS, -1)) for how in ROUNDS]
    losses = [drawn.mean(axis=0).tolist() for drawn in each]
    return {"table": records.name, "place": place, "epsilon": epsilon, "seed": seed, "grid": losses}


def pooled(records: Dataset, seed: int) -> Figures:
    """The loss of one model of all sites' records, without privacy."""
    prepared = prepare(prepared_plan(records.name, "best", 8.0, seed), records)
    task, module = open_task(records.facts), prepared.blueprint.module
    sites = list(prepared.federation.participants)
    training, held_out = (
        reduce(joined, parts) for parts in zip(*((s.train, s.held_out) for s in sites), strict=True)
    )
    outputs = finished_outputs(module, flat_parameters(module), training, held_out, task)["alone"]
    sizes = np.cumsum([len(mine.held_out) for mine in sites])[:-1]
    parts = torch.tensor_split(outputs, sizes.tolist())
    found = [_judged(task, part, mine.held_out.y)[0] for part, mine in zip(parts, sites, strict=True)]
    return {"table": records.name, "seed": seed, "pooled": float(np.mean(found))}


def _judged(task: Task, outputs: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss, and accuracy in percent; of numbers the squared error, and nothing else."""
    if task.name == "number":
        return float((outputs.squeeze(1).clamp(-1.0, 1.0) - y).square().mean()), 0.0
    return float(task.losses(outputs, y).mean()), task.score(outputs, y) or 0.0


def summed_up(figures: Sequence[Figures], choosing: Sequence[int] = CHOOSING) -> list[Figures]:
    """One line for each table, place and ε: means over seeds, of numbers in units of the constant's."""
    runs = [one for one in figures if "loss" in one]
    grids = {(*_cell(one), one["seed"]): one["grid"] for one in figures if "grid" in one}
    found = []
    for cell in sorted(set(map(_cell, runs)), key=lambda cell: (list(TABLES).index(cell[0]), *cell[1:])):
        mine = [one for one in runs if _cell(one) == cell]
        number = TABLES[cell[0]].task == "number"
        scale = np.array([one["loss"]["constant"] if number else 1.0 for one in mine])
        first = np.array([one["first"] if number else 1.0 for one in mine])
        losses = {
            row: np.array([one["loss"][row] for one in mine]) / (first if row in FITTED else scale)
            for row in ROWS
        }
        gain = losses["finished"] - losses["alone"]
        without = np.array([one["without_own"]["loss"] for one in mine]) / scale
        over = losses["published"] / losses["constant"]
        own = np.array([one["score"]["published"] - one["without_own"]["score"] for one in mine])
        grid = [grids[(*cell, one["seed"])] for one in mine if (*cell, one["seed"]) in grids]
        before = [grids[(*cell, seed)] for seed in choosing if (*cell, seed) in grids]
        others = [one["pooled"] for one in figures if "pooled" in one and one["table"] == cell[0]]
        line = {
            **dict(zip(("table", "place", "epsilon"), cell, strict=True)),
            "clip": round(mine[0]["clip"], 3),
            "loss": {row: round(float(values.mean()), 4) for row, values in losses.items()},
            "published_error": _error(losses["published"]),
            "over_constant_error": _error(over),
            "own": round(float(own.mean()), 2),
            "own_error": _error(own),
            "gain": round(float(gain.mean()), 4),
            "gain_error": _error(gain),
            "without_own": round(float(without.mean()), 4),
            "score": {
                **{row: round(float(np.mean([one["score"][row] for one in mine])), 2) for row in ROWS},
                "without_own": round(float(np.mean([one["without_own"]["score"] for one in mine])), 2),
            },
        }
        if others:
            line["pooled"] = round(float(np.mean(others) / (scale.mean() if number else 1.0)), 4)
        if grid:
            means = np.mean(np.array(grid) / scale[:, None, None], axis=0)
            line["grid"] = round(float(means.min()), 4)
            if before:
                each = (
                    np.array([one.flat[np.argmin(np.mean(before, axis=0))] for one in np.array(grid)]) / scale
                )
                line["picked"] = round(float(each.mean()), 4)
                line["picked_error"] = _error((losses["published"] - each) / each.mean())
        found.append(line)
    return found


def _cell(one: Figures) -> tuple[str, str, float]:
    return one["table"], one["place"], one["epsilon"]


def _error(values: np.ndarray) -> float:
    return round(float(values.std(ddof=1) / len(values) ** 0.5), 4) if len(values) > 1 else 0.0


def table(lines: Sequence[Figures], place: str, epsilons: Sequence[float] = (2.0, 8.0)) -> str:
    """The figures as Markdown."""
    told = ["| | pooled | constant | alone | published | finished | finished − alone | picked | luckiest |"]
    told.append("|---|---|---|---|---|---|---|---|---|")
    for one in lines:
        if one["place"] != place or one["epsilon"] not in epsilons:
            continue
        loss = one["loss"]
        cells = [f"{one['table']}, ε = {one['epsilon']:g}", f"{one['pooled']:.3f}", f"{loss['constant']:.3f}"]
        cells += [f"{loss['alone']:.3f}", f"{loss['published']:.3f} ± {one['published_error']:.3f}"]
        cells += [f"{loss['finished']:.3f}", f"{one['gain']:+.3f} ± {one['gain_error']:.3f}"]
        told.append(f"| {' | '.join([*cells, format(one['picked'], '.3f'), format(one['grid'], '.3f')])} |")
    return "\n".join(told)


def further(lines: Sequence[Figures]) -> str:
    """What more divisions of small tables say, as Markdown."""
    told = ["| | above constant | above picked | above luckiest | finished − alone | own part, points |"]
    told.append("|---|---|---|---|---|---|")
    for one in lines:
        cells = [_above(one, one["loss"]["constant"], one["over_constant_error"])]
        cells += [_above(one, one.get("picked"), one.get("picked_error")), _above(one, one.get("grid"))]
        cells += [
            f"{one['gain']:+.3f} ± {one['gain_error']:.3f}",
            f"{one['own']:+.2f} ± {one['own_error']:.2f}",
        ]
        told.append(f"| {one['table']}, {one['place']}, ε = {one['epsilon']:g} | {' | '.join(cells)} |")
    return "\n".join(told)


def _above(one: Figures, known: float | None, error: float | None = None) -> str:
    if known is None:
        return "–"
    sure = "" if error is None else f" ± {100 * error:.1f}"
    return f"{100 * (one['loss']['published'] / known - 1):+.1f}{sure} %"


@lru_cache(maxsize=2)
def loaded(folder: Path, name: str) -> Dataset:
    """The records of a table that was written to a folder."""
    return data.load(str(folder / name))


def with_grid(lines: Sequence[Figures], before: Sequence[Figures]) -> list[Figures]:
    """Lines with what was found of the grid before, on the same seeds; and those of other tables."""
    known, kept = {_cell(one): one for one in before}, ("grid", "picked", "picked_error")
    found = {
        _cell(one): one | {name: value for name, value in known.get(_cell(one), {}).items() if name in kept}
        for one in lines
    }
    return list((known | found).values())


def work(given: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """What is to be done: a function, the table, and what else it is called with."""
    for name in given.tables:
        yield from ((pooled, given.folder, name, seed) for seed in given.seeds)
        for place, epsilon, seed in itertools.product(PRESETS, given.epsilons, given.seeds):
            yield measured, given.folder, name, place, epsilon, seed
        if given.device == "cpu":
            for place, epsilon, seed in itertools.product(PRESETS, given.epsilons, _both(given)):
                yield tried, given.folder, name, place, epsilon, seed


def _both(given: argparse.Namespace) -> tuple[int, ...]:
    return (*given.seeds, *given.choosing)


class Range(argparse.Action):
    """Two seeds stand for all from the first to the last."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, tuple(range(values[0], values[1] + 1)))


def _do(job: tuple[Any, ...]) -> Figures:
    torch.set_num_threads(1)
    function, folder, name, *rest = job
    found: Figures = function(loaded(folder, name), *rest)
    return {**found, "table": name}


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="folder with heart/ and school/")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/real_tables"), help="where tables are kept"
    )
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs=2, action=Range, default=SEEDS, help="first and last")
    parser.add_argument("--choosing", type=int, nargs=2, action=Range, default=CHOOSING)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--device", default="cpu", help="where the grid is tried; none: its figures stay")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the tables of what was measured before")
    options = parser.parse_args()
    if options.table:
        lines = json.loads(options.out.read_text(encoding="utf-8"))
        if options.out == RESULTS:
            print("\n\n".join([*(table(lines, place) for place in PRESETS), counts(lines)]))
        else:
            print(further(lines))
        return
    for name in options.tables:
        if not (options.folder / name).exists():
            TABLES[name].write(options.source, options.folder / name)
    figures: list[Figures] = []
    jobs = list(work(options))
    cells, before = len(PRESETS) * len(options.epsilons), []
    total = len(options.tables) * (len(options.seeds) * (1 + cells) + len(_both(options)) * cells)
    if options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))
    if options.device == "none":
        total = len(jobs)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        found = pool.imap_unordered(_do, jobs, chunksize=1)
        if options.device not in ("cpu", "none"):  # one process on the device while the others are on cores
            for name, place in itertools.product(options.tables, PRESETS):
                for epsilon, seed in itertools.product(options.epsilons, _both(options)):
                    records = loaded(options.folder, name)
                    figures.append({**tried(records, place, epsilon, seed, options.device), "table": name})
        for one in found:
            figures.append(one)
            print(len(figures), one["table"], flush=True)
            if len(figures) % 25 == 0 or len(figures) == total:
                _write(figures, options, before)


def _write(figures: Sequence[Figures], given: argparse.Namespace, before: Sequence[Figures]) -> None:
    lines = with_grid(summed_up(sorted(figures, key=lambda one: one["seed"]), given.choosing), before)
    given.out.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
