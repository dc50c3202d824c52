"""Four real heart hospitals beside FLamby's figures: 66 : 34 splits, repeated, with intervals.

`python -m studies.heart [--splits 50] [--jobs 2]` writes `results/heart.json`, from which tables of
docs/comparisons.md are made. *all*: the shipped records, 920 patients and 13 columns, missing ones counted as
they are. *flamby*: FLamby's choice (du Terrail et al., NeurIPS 2022), 10 columns and no row with a hole, 740
patients. Every row is trained on two thirds of each hospital and judged on the rest: one model for all
(*shared*), published and finished models, each hospital alone at home without noise, and rivals with the best
of a grid picked on the records they are judged on. *newcomers*: each hospital in turn joins when the three
others are done, without labels, then with 40 of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.data import Dataset, Description, Facts
from sottovoce.models.tasks import open_task
from sottovoce.personal.finishing import finished_outputs
from studies.own_splits import Rival, Split, rival, rival_scores, run, score

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "heart.json"
SITES = ("hungarian", "cleveland", "va", "switzerland")  # in the order of our names
DELTA, SHARE, LABELS = 1e-3, 0.66, 40
EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
ROWS = ("constant", "alone", "shared", "published", "finished")
NEW = ("constant", "alone", "published", "finished")
FLAMBY_COLUMNS = 10
PUBLISHED = {
    "DP-FedAvg, add/remove ε = 0.1 / 1 / 5 / 10": (62.9, 70.2, 70.0, 69.8),
    "FedAvg, best federated, local, pooled, no privacy": (68.5, 73.1, 73.0, 73.5),
}
"""FLamby's, mean accuracy over hospitals in percent, five seeds."""
GRID = [
    Rival(steps, rate, clip, prox)
    for steps in (10, 30, 100)
    for rate in (0.1, 0.3, 1.0, 3.0)
    for clip in (0.3, 1.0)
    for prox in (-1.0, 0.0, 0.1, 0.3, 1.0)
    if rate * prox <= 1
]

Figures = dict[str, Any]


@lru_cache
def records(kind: str) -> Dataset:
    """The hospitals by kind: `all`, or FLamby's choice of rows and columns."""
    return data.load("heart") if kind == "all" else _flamby()


def _flamby() -> Dataset:
    """The first ten columns of rows without a hole (a cholesterol of 0 is none), by our constants."""
    agreed = Description.load(data.SHIPPED / "heart" / "records.toml")
    columns = dict(list(agreed.columns.items())[:FLAMBY_COLUMNS])
    whole, rows, owners = data.load("heart"), [], []
    assert whole.client is not None
    for i, name in enumerate(SITES):
        published = list(csv.reader((ROOT / f"studies/data/heart/processed.{name}.data").open()))[1:]
        full = [not {"?", "-9", "-9.0"} & set(row[:FLAMBY_COLUMNS]) for row in published]
        mine = torch.nonzero(whole.client == i)[:, 0]
        rows.append(mine[torch.tensor(full)])
        owners.append(torch.full((sum(full),), i))
    inputs = [name for name, column in columns.items() for _ in column.encoded(name)]
    facts = Facts((len(inputs),), 2, std=(len(columns) ** 0.5,), class_names=whole.facts.class_names)
    index = torch.cat(rows)
    return Dataset("flamby", whole.x[index, : len(inputs)], whole.y[index], facts, torch.cat(owners))


def split(kind: str, seed: int, without: int | None = None) -> Split:
    """Two thirds of each hospital to train on, the rest to judge; `without` one that joins later."""
    dataset, rng = records(kind), np.random.default_rng([seed, 66])
    train: list[tuple[Tensor, Tensor]] = []
    test: list[tuple[Tensor, Tensor]] = []
    assert dataset.client is not None
    for i in range(len(SITES)):
        mine = torch.nonzero(dataset.client == i)[:, 0]
        mine = mine[torch.from_numpy(rng.permutation(len(mine)))]
        size = round(SHARE * len(mine))
        for into, rows in ((train, mine[:size]), (test, mine[size:])):
            if i != without:
                into.append((dataset.x[rows], dataset.y[rows]))
    return Split(f"heart-{kind}", dataset.facts, train, test)


def at_home(kind: str, epsilon: float, seed: int) -> Figures:
    """Accuracy and log loss of each row at each hospital, of one split."""
    divided = split(kind, seed)
    ran = run(divided, {"epsilon": epsilon, "delta": DELTA}, seed)
    task, found = open_task(divided.facts), []
    for i, records_of in enumerate(divided.test):
        test = divided.seen(records_of)
        mine = divided.seen(divided.train[i])
        outputs = finished_outputs(ran.blueprint.module, ran.thetas[i], mine, test, task)
        outputs["shared"] = ran.outputs(ran.shared, test.x)
        found.append({row: _judged(task, outputs[row], test.y) for row in ROWS})
    return {"part": kind, "epsilon": epsilon, "seed": seed, "spent": ran.spent, "sites": found}


def newcomer(epsilon: float, seed: int) -> Figures:
    """Each hospital in turn joins three others: without labels, and with 40 that stay at home."""
    found = []
    for joining in range(len(SITES)):
        divided, whole = split("all", seed, without=joining), split("all", seed)
        ran = run(divided, {"epsilon": epsilon, "delta": DELTA}, seed)
        task = open_task(divided.facts)
        test = whole.seen(whole.test[joining])
        few = whole.seen(whole.train[joining])[:LABELS]
        outputs = finished_outputs(ran.blueprint.module, ran.shared, few, test, task)
        found.append({row: _judged(task, outputs[row], test.y) for row in NEW})
    return {"part": "newcomers", "epsilon": epsilon, "seed": seed, "sites": found}


def of_rivals(kind: str, epsilon: float, seed: int) -> Figures:
    """Accuracies of every rival of the grid."""
    divided = split(kind, seed)
    found = [rival_scores(divided, rival(divided, chosen, epsilon, DELTA, seed)) for chosen in GRID]
    return {"part": f"rivals, {kind}", "epsilon": epsilon, "seed": seed, "scores": found}


def _judged(task: Any, outputs: Tensor, y: Tensor) -> tuple[float, float, float | None]:
    """Accuracy, log loss, and how well it ranks (AUROC; None where only one class is judged)."""
    wanted = outputs[:, 1] - outputs[:, 0]
    ill, well = wanted[y == 1], wanted[y == 0]
    area = None
    if len(ill) and len(well):
        differences = ill[:, None] - well
        area = float(((differences > 0).double() + 0.5 * (differences == 0).double()).mean())
    return score(task, outputs, y), float(task.losses(outputs, y).mean()), area


def summed_up(figures: Sequence[Figures]) -> list[Figures]:
    """Means over splits of means over hospitals, with 95 % intervals for repeated splits."""
    found: list[Figures] = []
    for part, epsilon in dict.fromkeys((one["part"], one["epsilon"]) for one in figures):
        runs = [one for one in figures if (one["part"], one["epsilon"]) == (part, epsilon)]
        line: Figures = {"part": part, "epsilon": epsilon, "splits": len(runs)}
        if part.startswith("rivals"):
            scores = np.array([one["scores"] for one in runs]).mean(axis=2)  # splits, grid
            for name, fits in RIVALS.items():
                among = [i for i, chosen in enumerate(GRID) if fits(chosen)]
                best = max(among, key=lambda i: scores[:, i].mean())
                line[name] = {**_interval(scores[:, best]), "settings": vars(GRID[best])}
        else:
            rows = runs[0]["sites"][0]
            for row in rows:
                values = np.array([[site[row][:2] for site in one["sites"]] for one in runs])
                line[row] = _interval(values[..., 0].mean(axis=1))
                line[row]["log_loss"] = round(values[..., 1].mean(), 4)
                line[row]["sites"] = values[..., 0].mean(axis=0).round(2).tolist()
                areas = [[site[row][2] for site in one["sites"] if site[row][2] is not None] for one in runs]
                line[row]["auroc"] = round(float(np.mean([np.mean(each) for each in areas])), 4)
            gains = [[site["finished"][0] - site["alone"][0] for site in one["sites"]] for one in runs]
            line["finished − alone"] = _interval(np.array(gains).mean(axis=1))
        found.append(line)
    return found


RIVALS: dict[str, Callable[[Rival], bool]] = {
    "DP-FedAvg": lambda chosen: chosen.prox < 0,
    "alone, with noise": lambda chosen: chosen.prox == 0,
    "MR-MTL": lambda chosen: chosen.prox > 0,
}


def _interval(values: np.ndarray) -> dict[str, Any]:
    """Mean and half of a 95 % interval; splits overlap, so it is Nadeau and Bengio's, 1/n + test/train."""
    n = len(values)
    spread = values.std(ddof=1) * (1 / n + (1 - SHARE) / SHARE) ** 0.5 if n > 1 else float("nan")
    return {"mean": round(float(values.mean()), 2), "half": round(1.96 * float(spread), 2)}


def work(splits: int) -> Iterator[tuple[Any, ...]]:
    for seed in range(splits):
        yield from ((at_home, "all", epsilon, seed) for epsilon in EPSILONS)
        yield (at_home, "flamby", 1.0, seed)
        yield (of_rivals, "all", 1.0, seed)
        yield (of_rivals, "flamby", 1.0, seed)
        yield (newcomer, 1.0, seed)


def _do(job: tuple[Any, ...]) -> Figures:
    torch.set_num_threads(1)
    function, *arguments = job
    found: Figures = function(*arguments)
    return found


def main(splits: int, jobs: int, out: Path) -> None:
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        figures = pool.map(_do, list(work(splits)), chunksize=4)
    out.write_text(json.dumps(summed_up(figures), indent=1) + "\n", encoding="utf-8")
    print(table(summed_up(figures)))


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The figures as Markdown, mean accuracy over hospitals in percent."""
    text = ["| | " + " | ".join(ROWS) + " | finished − alone |", "|---" * (len(ROWS) + 2) + "|"]
    for line in lines:
        if line["part"].startswith("rivals"):
            continue
        cells = [f"{line[row]['mean']:.1f} ± {line[row]['half']:.1f}" if row in line else "" for row in ROWS]
        gain = line["finished − alone"]
        cells.append(f"{gain['mean']:+.1f} ± {gain['half']:.1f}")
        text.append(f"| {line['part']}, ε = {line['epsilon']:g} | {' | '.join(cells)} |")
    for line in lines:
        if line["part"].startswith("rivals"):
            told = ", ".join(f"{name} {line[name]['mean']:.1f} ± {line[name]['half']:.1f}" for name in RIVALS)
            text.append(f"\n{line['part']}, ε = {line['epsilon']:g}: {told}")
    return "\n".join(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    main(chosen.splits, chosen.jobs, chosen.out)
