"""Twelve synthetic hospitals: what a blend gains over every site alone and over one shared model.

`python -m benchmarks.hospitals [--seeds 5] [--epsilons 2 8]` writes `results/hospitals.json`, from which the
table of docs/benchmarks.md is made. Sites of 300 to 2,600 records measure the same hidden numbers with gains
and shifts of their own (the recipe of `tools/make_hospitals.py`, with twenty columns); every model is judged
on 10,000 fresh records of its site. The blend is `preset=best` as it is; *alone* (`individual=1`) and
*shared* (`individual=0`) get the best of a grid of steps and weights of their own, picked on the records they
are judged on, which favours them.

Blueprint, noise, weights, steps and server are the package's own. Clipped means of a linear model are written
down here in closed form (a test compares them), and releases are drawn as what every channel decodes to, the
clipped mean plus N(0, σ_i²), without encoding and without a ledger: a run takes half a second.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sottovoce.data import Dataset, Facts
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan
from sottovoce.run.prepare import Prepared, prepare
from sottovoce.training.server import Server

SIZES = (2600, 1900, 1500, 1300, 1100, 900, 750, 650, 520, 430, 350, 300)
COLUMNS, CLASSES, FRESH, LARGE = 20, 4, 10_000, 1_000
STEPS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Server steps of the grids; 0 is the rule that follows from the noise."""
GRIDS: dict[str, list[dict[str, float]]] = {
    "blend": [{}],
    "alone": [{"individual": 1.0, "learning_rate": step} for step in STEPS],
    "shared": [
        {"individual": 0.0, "learning_rate": step, "weighting": weighting}
        for step in STEPS
        for weighting in (1.0, 1.5)
    ],
}
RESULTS = Path(__file__).parents[1] / "results" / "hospitals.json"


@dataclass(frozen=True)
class Judged:
    """Records in the hands of clients, and fresh ones (x, y) of each, by which its model is judged.

    Without fresh ones it is judged by the fifth of its records that is held out.
    """

    records: Dataset
    fresh: Sequence[tuple[torch.Tensor, torch.Tensor]]


def hospitals(seed: int) -> Judged:
    """The recipe: x = z·exp(0.2·N) + 0.6·N by site and column, classes from (z + tanh(z W₂)) W + prior."""
    rng = np.random.default_rng(seed)
    hidden = 0.3 * rng.standard_normal((COLUMNS, COLUMNS))
    weights = 0.9 * rng.standard_normal((COLUMNS, CLASSES))
    sites, fresh = [], []
    for size in SIZES:
        prior = 0.9 * rng.standard_normal(CLASSES)
        gain, shift = np.exp(0.2 * rng.standard_normal(COLUMNS)), 0.6 * rng.standard_normal(COLUMNS)
        drawn = []
        for count in (size, FRESH):
            z = rng.standard_normal((count, COLUMNS))
            outcome = (z + np.tanh(z @ hidden)) @ weights + prior + rng.gumbel(size=(count, CLASSES))
            x = torch.from_numpy((z * gain + shift).astype(np.float32))
            drawn.append((x, torch.from_numpy(outcome.argmax(axis=1))))
        sites.append(drawn[0])
        fresh.append(drawn[1])
    return judged("hospitals", sites, fresh, CLASSES)


def judged(
    name: str,
    sites: Sequence[tuple[torch.Tensor, torch.Tensor]],
    fresh: Sequence[tuple[torch.Tensor, torch.Tensor]],
    classes: int,
) -> Judged:
    """Standardized columns as a table would have them: divided by √columns."""
    columns = sites[0][0].shape[1]
    facts = Facts((columns,), classes, std=(columns**0.5,))
    owner = torch.repeat_interleave(torch.arange(len(sites)), torch.tensor([len(y) for _, y in sites]))
    x, y = (torch.cat([site[part] for site in sites]) for part in (0, 1))
    names = tuple(f"site-{i:02}" for i in range(len(sites)))
    records = Dataset(name, x, y, facts, owner, names)
    return Judged(records, [(facts.normalize(x), y) for x, y in fresh])


def trained(sites: Judged, settings: Mapping[str, Any], seed: int) -> tuple[Prepared, Server]:
    """A run with what it ended with."""
    given = {"partition": "client", "participants": 0, "clients_per_round": 0, "future_clients": 0}
    given |= {"calibration": 0.0}  # models are judged by what they decide
    plan = Plan.load(overrides={"preset": "best", **given, "dataset": "hospitals", "seed": seed, **settings})
    prepared = prepare(plan, replace(sites.records, name="hospitals"))
    plan, federation, blueprint = prepared.plan, prepared.federation, prepared.blueprint
    server, everyone = Server(blueprint), list(range(plan.participants))
    noise = torch.Generator().manual_seed(seed)
    sigmas = [blueprint.releases_of(i)["gradient"].sigma for i in everyone]
    held = [(mine.train.x, mine.train.y) for mine in federation.participants]
    for _ in range(plan.rounds):
        coefficients, releases = server.coefficients(everyone), {}
        for i in everyone:
            mean = clipped_mean(coefficients[i], *held[i], plan.clip)
            drawn = sigmas[i] * torch.randn(len(mean), generator=noise, dtype=torch.float64)
            releases[i] = (mean + drawn).numpy()
        server.receive_round(releases)
    server.finish()
    return prepared, server


def accuracies(sites: Judged, settings: Mapping[str, Any], seed: int) -> np.ndarray:
    """Percent of each participant's fresh records that its final model gets right."""
    prepared, server = trained(sites, settings, seed)
    blueprint, federation = prepared.blueprint, prepared.federation
    task, found = open_task(blueprint.facts), []
    fresh = sites.fresh or [(mine.held_out.x, mine.held_out.y) for mine in federation.participants]
    for i, (x, y) in enumerate(fresh):
        theta = blueprint.theta(server.coefficients([i])[0])
        with torch.no_grad():
            found.append(task.score(logits(blueprint.module, theta, x), y))
    return np.array(found, dtype=np.float64)


def clipped_mean(coefficients: torch.Tensor, x: torch.Tensor, y: torch.Tensor, clip: float) -> torch.Tensor:
    """The clipped mean gradient of a linear model with bias at θ = (W, b), reference 0: float64 (k,).

    A record's gradient is (p − e_y) ⊗ (x, 1), whose norm is the product of two norms.
    """
    classes = len(coefficients) // (x.shape[1] + 1)
    weight, bias = coefficients[:-classes].view(classes, -1), coefficients[-classes:]
    deltas = torch.softmax(torch.addmm(bias, x, weight.T), dim=1)
    deltas[torch.arange(len(y)), y] -= 1.0
    norms = deltas.norm(dim=1) * (x.square().sum(dim=1) + 1.0).sqrt()
    deltas = deltas * (clip / norms).clamp_max(1.0)[:, None]
    return torch.cat([(deltas.T @ x).flatten(), deltas.sum(dim=0)]).double() / len(y)


def measure(seeds: Sequence[int], epsilons: Iterable[float]) -> Iterator[dict[str, Any]]:
    """For each ε the mean accuracies by method at its best setting, and what large sites gain by blending."""
    made = {seed: hospitals(seed) for seed in seeds}
    for epsilon in epsilons:
        best: dict[str, np.ndarray] = {}
        chosen: dict[str, dict[str, float]] = {}
        for name, grid in GRIDS.items():
            tried = [
                np.mean([accuracies(made[s], {**setting, "epsilon": epsilon}, s) for s in seeds], axis=0)
                for setting in grid
            ]
            winner = int(np.argmax([sites.mean() for sites in tried]))
            best[name], chosen[name] = tried[winner], grid[winner]
        better = np.maximum(best["alone"], best["shared"])
        rival = max(best["alone"].mean(), best["shared"].mean())
        yield {
            "epsilon": epsilon,
            "seeds": list(seeds),
            **{name: round(float(sites.mean()), 2) for name, sites in best.items()},
            "gain": round(float(best["blend"].mean() - rival), 2),
            "sites": {
                str(size): round(float(gain), 2)
                for size, gain in zip(SIZES, best["blend"] - better, strict=True)
            },
            "worst_large_site": round(float((best["blend"] - better)[np.array(SIZES) > LARGE].min()), 2),
            "chosen": chosen,
        }


def table(figures: Sequence[Mapping[str, Any]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| ε | blend (`preset=best`) | every site alone | one shared model | gain over the better | "
        "five sites above 1,000 records, blend − better of the two |",
        "|---|---|---|---|---|---|",
    ]
    for row in figures:
        large = [gain for size, gain in row["sites"].items() if int(size) > LARGE]
        cells = [f"{row['epsilon']:g}", *(f"{row[name]:.1f}" for name in GRIDS), f"{row['gain']:+.1f}"]
        lines.append(f"| {' | '.join(cells)} | {', '.join(f'{gain:+.1f}' for gain in large)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="data seeds, from 200 on")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = []
    for found in measure(range(200, 200 + options.seeds), options.epsilons):
        print(json.dumps(found), flush=True)
        figures.append(found)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures))


if __name__ == "__main__":
    main()
