"""What joining is worth against a site alone at home, without noise: published and finished models.

`python -m studies.home [--parts hospitals pictures] [--seeds 5] [--jobs 2]` writes `results/home.json`, from
which the tables of docs/why-join.md are made; parts that are not measured stay as they were. *hospitals*:
twelve synthetic sites whose `records.toml` states mean 0 and spread 1 of every column, by `preset=best` as
it is; every model is judged on 10,000 fresh records of its site. *pictures*: CIFAR-10, forty clients of 800
(or 200) records, judged on what each holds out, and future clients of the same runs with 20 to 200 labels,
which enter their home models only. Runs are seeded simulations of the package's own; `--device cuda` computes
features faster.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.hospitals import CLASSES, COLUMNS, SIZES, hospitals
from torch import Tensor

from sottovoce.data import Records
from sottovoce.data.tables.schema import Description
from sottovoce.models.tasks import Task, open_task
from sottovoce.models.tensors import load_tensors
from sottovoce.personal.finishing import finished_outputs, joined
from sottovoce.plan import Plan
from sottovoce.report.chart import line_of, linear, logarithmic, svg, trend
from sottovoce.run.prepare import Prepared, prepare
from sottovoce.run.simulation import Simulation
from sottovoce.training.server import Server
from studies.real_tables import trained
from studies.sweep import Job, run_batch
from studies.table_grid import prepared_plan

RESULTS = Path(__file__).parents[1] / "results" / "home.json"
AGREEMENT = "\n".join(
    [
        'task = "classes"',
        f'[target]\ncolumn = "outcome"\nvalues = {json.dumps([str(each) for each in range(CLASSES)])}',
        *(f'[columns.c{i}]\nkind = "number"\nlow = -6\nhigh = 6\nmean = 0\nstd = 1' for i in range(COLUMNS)),
    ]
)
"""What the hospitals agreed on."""
PICTURES: dict[str, dict[str, Any]] = {
    "best, ε = 4, 800 records": {"preset": "best", "epsilon": 4.0},
    "central, ε = 4, 800 records": {"preset": "central", "epsilon": 4.0},
    "central, ε = 4, 200 records": {"preset": "central", "epsilon": 4.0, "records_per_client": 250},
}
LABELS = (20, 50, 100, 200)
NAMES = {"hospitals": "hospitals", "pictures": "CIFAR-10", "labels": "newcomers to CIFAR-10"}
ROWS = ("constant", "alone", "published", "finished")

Figures = dict[str, Any]


def at_hospitals(epsilon: float, seed: int) -> Figures:
    """Rows of one data seed, site by site, on fresh records."""
    torch.set_num_threads(1)
    sites = hospitals(seed)
    records = replace(sites.records, facts=Description.parse(AGREEMENT).facts())
    prepared = prepare(prepared_plan(records.name, "best", epsilon, seed), records)
    server = trained(prepared)
    task, found = open_task(prepared.blueprint.facts), []
    for i, fresh in enumerate(sites.fresh):
        mine = prepared.federation.participants[i]
        everything = joined(mine.train, mine.held_out)
        theta = prepared.blueprint.theta(server.coefficients([i])[0])
        outputs = finished_outputs(prepared.blueprint.module, theta, everything, Records(*fresh), task)
        found.append(_scores(task, outputs, fresh[1]))
    return {"part": "hospitals", "setting": f"ε = {epsilon:g}", "seed": seed, "sites": found}


def plan_of(setting: str, seed: int) -> Plan:
    """The plan of a run on CIFAR-10."""
    given = {"dataset": "cifar10", "seeded": True, "channel": "direct", "evaluate_every": 0}
    return Plan.load(overrides={**given, **PICTURES[setting], "seed": seed})


def train_pictures(folder: Path, seeds: Sequence[int], device: str) -> None:
    """Makes all runs on CIFAR-10, those of one setting together, below a folder."""
    for place, setting in enumerate(PICTURES):
        jobs = [Job(plan_of(setting, seed), folder / f"{place}-{seed}") for seed in seeds]
        run_batch(jobs, device=device, law=True)


def at_pictures(setting: str, seed: int, folder: Path) -> list[Figures]:
    """Rows of one run on CIFAR-10, participant by participant, and its future clients with a few labels."""
    torch.set_num_threads(1)
    prepared = prepare(plan_of(setting, seed), trusted=True)
    simulation = _finished(prepared, folder / f"{list(PICTURES).index(setting)}-{seed}")
    blueprint, task = prepared.blueprint, open_task(prepared.blueprint.facts)
    seen = []
    for i, mine in enumerate(prepared.federation.participants):
        theta = blueprint.theta(simulation.server.coefficients([i])[0])
        outputs = finished_outputs(blueprint.module, theta, mine.train, mine.held_out, task)
        seen.append(_scores(task, outputs, mine.held_out.y))
    found = [{"part": "pictures", "setting": setting, "seed": seed, "sites": seen}]
    contexts = simulation.state()["future_contexts"].numpy()
    for labels in LABELS:
        later = []
        for context, newcomer in zip(contexts, prepared.federation.future, strict=True):
            theta = blueprint.theta(simulation.server.personalize(context))
            few = newcomer.context[:labels]
            outputs = finished_outputs(blueprint.module, theta, few, newcomer.held_out, task)
            later.append(_scores(task, outputs, newcomer.held_out.y))
        found.append(
            {"part": "labels", "setting": f"{setting}, {labels} labels", "seed": seed, "sites": later}
        )
    return found


def _finished(prepared: Prepared, run: Path) -> Simulation:
    """A finished run, as it was when it ended."""
    blueprint = prepared.blueprint
    simulation = Simulation(blueprint, prepared.federation, Server(blueprint), None, run="", master=b"")
    simulation.load_state(load_tensors(run / "model.safetensors")[0])
    return simulation


def _scores(task: Task, outputs: Mapping[str, Tensor], y: Tensor) -> dict[str, tuple[float, float]]:
    """Accuracy in percent and log loss of each row."""
    return {
        row: (task.score(outputs[row], y) or 0.0, float(task.losses(outputs[row], y).mean())) for row in ROWS
    }


def summed_up(figures: Sequence[Figures]) -> list[Figures]:
    """Means over seeds and sites for each part and setting, and finished minus alone."""
    found = []
    for part, setting in dict.fromkeys((one["part"], one["setting"]) for one in figures):
        runs = [one for one in figures if (one["part"], one["setting"]) == (part, setting)]
        scores = np.array([[[site[row] for row in ROWS] for site in run["sites"]] for run in runs])
        gains = scores[:, :, ROWS.index("finished"), 0] - scores[:, :, ROWS.index("alone"), 0]
        by_seed = gains.mean(axis=1)
        line: Figures = {
            "part": part,
            "setting": setting,
            "seeds": [run["seed"] for run in runs],
            "accuracy": dict(zip(ROWS, scores[..., 0].mean(axis=(0, 1)).round(2).tolist(), strict=True)),
            "log_loss": dict(zip(ROWS, scores[..., 1].mean(axis=(0, 1)).round(4).tolist(), strict=True)),
            "gain": round(float(gains.mean()), 2),
            "gain_error": round(float(by_seed.std(ddof=1) / len(by_seed) ** 0.5), 2)
            if len(runs) > 1
            else None,
            "sites_losing_a_point": round(float((gains < -1).mean()), 3),
        }
        if part == "hospitals":
            by_size = gains.mean(axis=0).round(2).tolist()
            line["gain_by_size"] = dict(zip(map(str, SIZES), by_size, strict=True))
        found.append(line)
    return found


def table(figures: Sequence[Figures]) -> str:
    """The figures as Markdown."""
    lines = [
        "| | constant | alone at home | published | finished | finished − alone |",
        "|---|---|---|---|---|---|",
    ]
    for one in figures:
        cells = [f"{one['accuracy'][row]:.1f} ({one['log_loss'][row]:.3f})" for row in ROWS]
        error = "" if one["gain_error"] is None else f" ± {one['gain_error']:.1f}"
        lines.append(
            f"| {NAMES[one['part']]}, {one['setting']} | {' | '.join(cells)} | {one['gain']:+.1f}{error} |"
        )
    return "\n".join(lines)


def labels_figure(figures: Sequence[Figures]) -> str:
    """Accuracy of newcomers over the labels that they have, for the docs."""
    charts = []
    for setting in PICTURES:
        found = {n: one for one in figures for n in LABELS if one["setting"] == f"{setting}, {n} labels"}
        tones = {"alone": "orange", "published": "dashed", "finished": "blue"}
        lines = [
            line_of(row, tone, [(n, one["accuracy"][row]) for n, one in found.items()])
            for row, tone in tones.items()
        ]
        y = linear([value for line in lines for _, value in line.points])
        x = logarithmic([float(n) for n in found])
        charts.append(trend(setting, "", lines, x_name="labels", x=x, y=y, show="{:g} %".format))
    note = "Accuracy of future clients on CIFAR-10, mean of five seeds"
    return svg("What a few labels are worth to a newcomer", note, charts)


def work(parts: Sequence[str], seeds: int, folder: Path) -> Iterator[tuple[Any, ...]]:
    """What is to be done, a function and what it is called with."""
    if "hospitals" in parts:
        yield from ((at_hospitals, epsilon, 200 + i) for epsilon in (2.0, 8.0) for i in range(seeds))
    if "pictures" in parts:
        yield from ((at_pictures, setting, 41 + i, folder) for setting in PICTURES for i in range(seeds))


def _do(job: tuple[Any, ...]) -> list[Figures]:
    function, *arguments = job
    found = function(*arguments)
    return found if isinstance(found, list) else [found]


def measure(jobs: Sequence[tuple[Any, ...]], processes: int, out: Path) -> list[Figures]:
    """Does all jobs, some at a time, and keeps what is known so far in a file."""
    figures: list[Figures] = []
    told: list[Figures] = []
    before: list[Figures] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(_do, jobs, chunksize=1):
            figures += found
            print(table(summed_up(found)).splitlines()[-1], found[0]["seed"], flush=True)
            told = summed_up(sorted(figures, key=lambda one: (one["part"], one["setting"], one["seed"])))
            parts = {one["part"] for one in told}
            told += [one for one in before if one["part"] not in parts]
            out.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return told


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["hospitals", "pictures"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where features of pictures are computed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured before")
    parser.add_argument(
        "--figure", type=Path, help="draw what labels are worth to newcomers, as measured before"
    )
    options = parser.parse_args()
    if options.figure:
        drawn = labels_figure(json.loads(options.out.read_text(encoding="utf-8")))
        options.figure.write_text(drawn, encoding="utf-8")
        return
    if options.table:
        print(table(json.loads(options.out.read_text(encoding="utf-8"))))
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        if "pictures" in options.parts:
            train_pictures(runs, range(41, 41 + options.seeds), options.device)
        told = measure(list(work(options.parts, options.seeds, runs)), options.jobs, options.out)
    print(table(told))


if __name__ == "__main__":
    main()
