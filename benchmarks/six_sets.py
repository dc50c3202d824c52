"""One default for records it has never seen: six unlike sets, the setting chosen on the other five.

`python -m benchmarks.six_sets [--sets …]` writes `results/six_sets.json`, from which the table of
docs/benchmarks.md is made. Grid: what noise alone may move a logit (the drift of `sottovoce.release.recipe`,
2.5 by default) and how much of it through own parts (0.5). Each set is judged at the point that is best on
the mean of the others, at the default, and at its own best point, which is a maximum over noisy cells and so
flattered. Digits and breast cancer are scikit-learn's, the latter standardized by constants of the whole set,
which stand in for public ones; pictures are seen through scattering, projected to 512 numbers. Runs are those
of `benchmarks.hospitals`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.hospitals import Judged, accuracies, hospitals, judged
from sottovoce import data
from sottovoce.data import Dataset, Facts
from sottovoce.data.partitions import partition
from sottovoce.plan import Plan
from sottovoce.plan.recipes import CURRENT, RECIPES
from sottovoce.run.prepare import prepare

DRIFTS, OWN_DRIFTS = (1.4, 2.0, 2.5, 2.8, 4.0), (0.25, 0.5, 1.0)
DEFAULT = (RECIPES[CURRENT].drift, RECIPES[CURRENT].own_drift)
GRID = list(itertools.product(DRIFTS, OWN_DRIFTS))
EPSILON = 4.0
RESULTS = Path(__file__).parents[1] / "results" / "six_sets.json"


def digits(seed: int) -> Judged:
    """Ten clients of 179 digits of 8×8 pixels, Dirichlet(1)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _pooled("digits", (x - 8.0) / 4.6, y, clients=10, alpha=1.0, seed=seed, scale=8.0)


def breast_cancer(seed: int) -> Judged:
    """Ten clients of 56 tumours of thirty numbers, Dirichlet(2)."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    standardized = np.clip((x - x.mean(axis=0)) / x.std(axis=0), -4, 4)
    return _pooled("breast cancer", standardized, y, clients=10, alpha=2.0, seed=seed, scale=30**0.5)


def nonlinear(seed: int) -> Judged:
    """Twelve clients of ten numbers and a category of five; products, a threshold and a ring decide."""
    rng = np.random.default_rng([7, seed])
    a, b, effects = rng.normal(size=(10, 2)), rng.normal(size=(10, 2)), rng.normal(size=(5, 3))
    sites, fresh = [], []
    for _ in range(12):
        shift, prior = 0.3 * rng.normal(size=10), 0.5 * rng.normal(size=3)
        drawn = []
        for count in (int(500 * np.exp(0.5 * rng.normal())), 4000):
            x, category = rng.normal(size=(count, 10)) + shift, rng.integers(0, 5, count)
            p, q = x @ a / 3, np.tanh(x @ b / 2)
            rules = [
                2 * p[:, 0] + x[:, 0] * x[:, 1],
                3 * q[:, 0] - np.abs(x[:, 2]) + 0.5,
                0.8 * (x[:, 3] ** 2 + x[:, 4] ** 2 - 2) + p[:, 1],
            ]
            logits = 1.2 * np.stack(rules, axis=1) + effects[category] + prior
            y = (logits + 0.5 * rng.gumbel(size=(count, 3))).argmax(axis=1)
            encoded = np.concatenate([x, np.eye(5)[category]], axis=1).astype(np.float32)
            drawn.append((torch.from_numpy(encoded), torch.from_numpy(y)))
        sites.append(drawn[0])
        fresh.append(drawn[1])
    return judged("nonlinear", sites, fresh, 3)


def pictures(name: str) -> Callable[[int], Judged]:
    """Twenty clients of 400 pictures of a public dataset, Dirichlet(0.5)."""

    def make(seed: int) -> Judged:
        given = {"preset": "best", "dataset": name, "features": "scattering", "feature_size": 512}
        chosen = np.random.default_rng(0).permutation(10_000)[:8_000]
        loaded = data.load(name)
        few = Dataset(name, loaded.x[chosen], loaded.y[chosen], loaded.facts, public=True)
        seen = prepare(Plan.load(overrides=given), few).dataset
        x = seen.x.float().numpy()
        return _pooled(name, x, seen.y.numpy(), clients=20, alpha=0.5, seed=seed, scale=1.0)

    return make


SETS: dict[str, tuple[Callable[[int], Judged], int]] = {
    "digits": (digits, 4),
    "breast cancer": (breast_cancer, 8),
    "hospitals": (hospitals, 2),
    "nonlinear": (nonlinear, 2),
    "MNIST": (pictures("mnist-small"), 2),
    "Fashion-MNIST": (pictures("fashion-mnist"), 2),
}
"""Each with the number of its splits, or draws."""


def _pooled(
    name: str, x: np.ndarray, y: np.ndarray, *, clients: int, alpha: float, seed: int, scale: float
) -> Judged:
    """Records dealt out by a Dirichlet partition, and judged by a fifth of each client's own."""
    facts = Facts((x.shape[1],), int(y.max()) + 1, std=(scale,))
    pool = Dataset(name, torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y).long(), facts)
    parts = partition(pool, kind="dirichlet", clients=clients, records=0, alpha=alpha, seed=seed)
    owner = torch.repeat_interleave(torch.arange(clients), len(parts[0]))
    rows = torch.cat(parts)
    names = tuple(f"site-{i:02}" for i in range(clients))
    return Judged(Dataset(name, pool.x[rows], pool.y[rows], facts, owner, names), ())


def measure(name: str) -> list[float]:
    """Mean accuracy of a set at every point of the grid."""
    make, splits = SETS[name]
    made = [make(seed) for seed in range(splits)]
    found = []
    for drift, own_drift in GRID:
        recipe = replace(RECIPES[CURRENT], version="grid", drift=drift, own_drift=own_drift)
        RECIPES[recipe.name] = recipe
        settings = {"epsilon": EPSILON, "recipe": recipe.name}
        runs = [accuracies(sites, settings, seed).mean() for seed, sites in enumerate(made)]
        found.append(round(float(np.mean(runs)), 2))
    return found


def table(measured: Mapping[str, Sequence[float]]) -> str:
    """Left out, chosen on the others: accuracy at that point, at the default, and at the set's own best."""
    lines = [
        "| left out | chosen on the others (drift, own) | there | at the default | its own best | gap |",
        "|---|---|---|---|---|---|",
    ]
    for name, cells in measured.items():
        others = np.mean([row for other, row in measured.items() if other != name], axis=0)
        pick = int(np.argmax(others))
        drift, own = GRID[pick]
        at = [cells[pick], cells[GRID.index(DEFAULT)], max(cells)]
        shown = " | ".join(f"{value:.1f}" for value in at)
        lines.append(f"| {name} | {drift:g}, {own:g} | {shown} | {max(cells) - cells[pick]:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measures the sets that are asked for, beside those measured before, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.sets:
        known[name] = measure(name)
        print(name, known[name], flush=True)
    ordered = {name: known[name] for name in SETS if name in known}
    options.out.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    print(table(ordered))


if __name__ == "__main__":
    main()
