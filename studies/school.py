"""Examination scores of 139 schools beside MR-MTL's figures: its split, test MSE of scores from 0 to 1.

`python -m studies.school [--seeds 5] [--jobs 2]` writes `results/school.json`, from which a table of
docs/comparisons.md is made. The split is the published one (Liu et al., NeurIPS 2022): 70 : 30 in each
school, `train_test_split` of scikit-learn with seeds 0, 1, …; the error is the mean over all test
pupils. Columns are encoded with public constants (shares from 0 to 100, everything else 0 or 1); the
published figures standardize them at each school without noise. Rivals are `studies.own_splits`', with
the best of a grid picked on the pupils they are judged on. *pooled* is ridge regression on all training
pupils without privacy.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import loadmat
from torch import Tensor

from sottovoce.data import Facts
from sottovoce.models.tasks import open_task
from sottovoce.personal.finishing import finished_outputs
from studies.heart import RIVALS
from studies.own_splits import Rival, Split, padded, rival, rival_scores, run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "school.json"
DELTA, TESTED = 1e-3, 0.3
EPSILONS, MAIN = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0), 6.0
LOWEST, HIGHEST = 1, 70
"""Of a score."""
SHARES, ATTRIBUTES, COLUMNS = (3, 4), 8, 27
"""Columns of percentages; attributes that the columns encode; columns but for one that is 1 for everybody."""
PUBLISHED = {"MR-MTL": 0.02394, "DP-FedAvg": 0.02564, "alone, with noise": 0.02628}
"""At add/remove ε = 6, δ = 1e-3."""
GRID = [
    Rival(steps, rate, clip, prox)
    for steps in (10, 30, 100)
    for rate in (0.1, 0.3, 1.0, 3.0)
    for clip in (0.1, 0.3, 1.0)
    for prox in (-1.0, 0.0, 0.03, 0.1, 0.3, 1.0)
    if rate * prox <= 1
]

Figures = dict[str, Any]


@lru_cache
def schools() -> list[tuple[Tensor, Tensor]]:
    """Columns and scores from −1 to 1 of each school."""
    file = loadmat(ROOT / "studies/data/school/school.mat")
    found = []
    for x, y in zip(file["X"][0], file["Y"][0], strict=True):
        scores = (y.reshape(-1) - (LOWEST + HIGHEST) / 2) / ((HIGHEST - LOWEST) / 2)
        found.append((torch.from_numpy(x[:, :COLUMNS].astype(np.float32)), torch.from_numpy(scores).float()))
    return found


def facts() -> Facts:
    """What the columns are: percentages between bounds, categories 0 or 1, as a table has them."""
    means, stds = [0.0] * COLUMNS, [math.sqrt(ATTRIBUTES)] * COLUMNS
    for place in SHARES:
        means[place], stds[place] = 50.0, 100 / math.sqrt(12) * math.sqrt(ATTRIBUTES)
    return Facts((COLUMNS,), 1, tuple(means), tuple(stds), task="number")


def split(seed: int) -> Split:
    """The published split: scikit-learn's `train_test_split` with `random_state=seed`, school by school."""
    train, test = [], []
    for x, y in schools():
        order = torch.from_numpy(np.random.RandomState(seed).permutation(len(y)))
        tested = math.ceil(TESTED * len(y))
        test.append((x[order[:tested]], y[order[:tested]]))
        train.append((x[order[tested:]], y[order[tested:]]))
    return Split("school", facts(), train, test)


def _error(errors: Sequence[float], divided: Split) -> float:
    """Mean over all test pupils, of scores from 0 to 1."""
    sizes = [len(y) for _, y in divided.test]
    return float(np.average(errors, weights=sizes)) / 4


def _of(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.reshape(-1) - y).square().mean())


def ours(epsilon: float, preset: str, seed: int) -> Figures:
    """The package's run as it is; at the main ε also what schools have at home, alone and finished."""
    divided = split(seed)
    ran = run(divided, {"preset": preset, "epsilon": epsilon, "delta": DELTA}, seed)
    task, errors = open_task(divided.facts), []
    for i, records in enumerate(divided.test):
        test, mine = divided.seen(records), divided.seen(divided.train[i])
        outputs = {"published": ran.outputs(ran.thetas[i], test.x), "shared": ran.outputs(ran.shared, test.x)}
        if epsilon == MAIN and preset == "best":
            outputs |= finished_outputs(ran.blueprint.module, ran.thetas[i], mine, test, task)
        errors.append({row: _of(each, test.y) for row, each in outputs.items()})
    rows = {row: _error([each[row] for each in errors], divided) for row in errors[0]}
    return {"part": preset, "epsilon": epsilon, "seed": seed, "spent": ran.spent, "rows": rows}


def of_rivals(epsilon: float, seed: int) -> Figures:
    """Errors of every rival of the grid, and of pooled ridge regression without privacy."""
    divided = split(seed)
    found = [
        _error(rival_scores(divided, rival(divided, one, epsilon, DELTA, seed)), divided) for one in GRID
    ]
    return {"part": "rivals", "epsilon": epsilon, "seed": seed, "errors": found, "pooled": _pooled(divided)}


def _pooled(divided: Split) -> float:
    x, y, counts = padded(divided)
    used = torch.arange(x.shape[1]) < counts[:, None]
    everyone, scores = x[used].double(), y[used].double()
    weights = torch.linalg.solve(
        everyone.T @ everyone + torch.eye(x.shape[2]).double(), everyone.T @ scores
    ).float()
    return _error(rival_scores(divided, weights.expand(len(x), 1, -1)), divided)


def summed_up(figures: Sequence[Figures]) -> list[Figures]:
    """Means and standard deviations over seeds."""
    found: list[Figures] = []
    for part, epsilon in dict.fromkeys((one["part"], one["epsilon"]) for one in figures):
        runs = [one for one in figures if (one["part"], one["epsilon"]) == (part, epsilon)]
        line: Figures = {"part": part, "epsilon": epsilon, "seeds": len(runs)}
        if part == "rivals":
            errors = np.array([one["errors"] for one in runs])
            for name, fits in RIVALS.items():
                among = [i for i, chosen in enumerate(GRID) if fits(chosen)]
                best = min(among, key=lambda i: errors[:, i].mean())
                line[name] = {**_spread(errors[:, best]), "settings": vars(GRID[best])}
            line["pooled"] = _spread(np.array([one["pooled"] for one in runs]))
        else:
            line |= {row: _spread(np.array([one["rows"][row] for one in runs])) for row in runs[0]["rows"]}
        found.append(line)
    return found


def _spread(values: np.ndarray) -> dict[str, Any]:
    deviation = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return {"mean": round(float(values.mean()), 5), "deviation": round(deviation, 5)}


def table(lines: Sequence[Figures]) -> str:
    """The figures as Markdown: ours for each ε, then everybody at the main one."""
    text = [
        "| replace-one ε | noise at each school | one model for all | noise at the server |",
        "|---|---|---|---|",
    ]
    by_part = {(line["part"], line["epsilon"]): line for line in lines}
    for epsilon in EPSILONS:
        best, central = by_part["best", epsilon], by_part["central", epsilon]
        cells = [_cell(one) for one in (best["published"], best["shared"], central["published"])]
        text.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    main, rivals = by_part["best", MAIN], by_part["rivals", MAIN]
    text += ["", f"| ε = {MAIN:g} | run by us, replace-one | published, add/remove |", "|---|---|---|"]
    text += [f"| {name} | {_cell(rivals[name])} | {PUBLISHED[name]:.5f} |" for name in RIVALS]
    text += [f"| ours, {row} | {_cell(main[row])} | |" for row in ("published", "finished")]
    text += [f"| no privacy: alone at home | {_cell(main['alone'])} | |"]
    text += [f"| no privacy: pooled ridge | {_cell(rivals['pooled'])} | |"]
    return "\n".join([*text, f"| each school's mean | {_cell(main['constant'])} | |"])


def _cell(one: Figures) -> str:
    return f"{one['mean']:.5f} ± {one['deviation']:.5f}"


def work(seeds: int) -> Iterator[tuple[Any, ...]]:
    for seed in range(seeds):
        yield from ((ours, epsilon, preset, seed) for epsilon in EPSILONS for preset in ("best", "central"))
        yield (of_rivals, MAIN, seed)


def _do(job: tuple[Any, ...]) -> Figures:
    torch.set_num_threads(1)
    function, *arguments = job
    found: Figures = function(*arguments)
    return found


def main(seeds: int, jobs: int, out: Path) -> None:
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        figures = pool.map(_do, list(work(seeds)), chunksize=1)
    lines = summed_up(figures)
    out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    main(chosen.seeds, chosen.jobs, chosen.out)
