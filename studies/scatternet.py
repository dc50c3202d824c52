"""ScatterNet with a linear head (Tramèr and Boneh, ICLR 2021) on our divisions, beside our features.

`python -m studies.scatternet [--datasets mnist fashion-mnist cifar10] [--device cuda]` writes
`results/scatternet.json`, from which a table of docs/comparisons.md is made. Features are compared and
nothing else: one linear softmax model for all participants' training records together, clipped
full-batch gradients, noise once a step at a trusted server, momentum 0.9, mean of the last third of the
steps, judged on everything that participants hold out and on all future clients' records. Each map gets
the best of the same grid of steps, step sizes and clips, picked on what it is judged by. *scatternet*:
all 81 coefficients of each channel, in 27 groups normalized over a picture (their group norm), none
left out. *ours* is what `preset=central` sees; *ours, whole* the same before the projection to 2,048
numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.models.features.fixed import COEFFICIENTS, Scattering
from sottovoce.plan import Plan
from sottovoce.privacy.accounting import calibrate
from sottovoce.run.prepare import prepare

RESULTS = Path(__file__).parents[1] / "results" / "scatternet.json"
GROUPS = 27
DELTA = 1e-5
TARGETS = {"add/remove 3": (3.0, 1.0), "replace-one 4": (4.0, 2.0)}
"""ε, and how many clips one record moves a sum by."""
STEPS, RATES, CLIPS = (150, 400), (16.0, 64.0, 256.0), (0.03, 0.1, 0.3, 1.0)
SEEDS = (41, 42, 43)
PUBLISHED = {"mnist": 98.7, "fashion-mnist": 89.7, "cifar10": 67.0}
"""At add/remove ε = 3 on the official training and test pictures."""
MAPS: dict[str, dict[str, Any]] = {
    "scatternet": {"features": "studies.scatternet:scatternet", "feature_size": 0, "mirror": False},
    "ours": {},
    "ours, whole": {"feature_size": 0},
}

Figures = dict[str, Any]


def scatternet(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """The map as `features=studies.scatternet:scatternet` names it."""
    channels, height, width = shape
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scatter = Scattering(height, width, device=device)

    def describe(x: Tensor) -> Tensor:
        found = scatter(x.to(device))
        # As they are published: S₀, S₁ of the fine and of the coarse scale, S₂; channel after channel.
        kinds = (
            found[:, :, 0, :1],
            found[:, :, 0, 1:],
            found[:, :, 1:, 0],
            found[:, :, 1:, 1:].flatten(2, 3),
        )
        return nn.functional.group_norm(torch.cat(kinds, dim=2).flatten(1, 2), GROUPS).flatten(1)

    assert channels * COEFFICIENTS % GROUPS == 0
    return describe


scatternet.version = "27 groups"  # type: ignore[attr-defined]
scatternet.public_pretraining = False  # type: ignore[attr-defined]


def pooled(dataset: str, seed: int, device: str, **features: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All participants' training records, and all that clients are judged on, as a map sees them."""
    plan = Plan.load(
        overrides={"dataset": dataset, "preset": "central", "seed": seed, "coefficients": 0, **features}
    )
    federation = prepare(plan, trusted=True, cache=False, device=device).federation
    train = [mine.train for mine in federation.participants]
    judged = [mine.held_out for mine in federation.participants]
    judged += [part for mine in federation.future for part in (mine.context, mine.held_out)]
    parts = (
        torch.cat([records.x for records in train]),
        torch.cat([records.y for records in train]),
        torch.cat([records.x for records in judged]),
        torch.cat([records.y for records in judged]),
    )
    return tuple(part.to(device) for part in parts)  # type: ignore[return-value]


def private_head(
    x: Tensor, y: Tensor, *, steps: int, rate: float, clip: float, sigma: float, classes: int, seed: int
) -> Tensor:
    """A linear model (columns + 1, classes) of full-batch gradients, each sum with noise N(0, σ²)."""
    rng = torch.Generator(x.device).manual_seed(seed)
    beside = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    lengths, wanted = beside.norm(dim=1, keepdim=True), nn.functional.one_hot(y, classes)
    weights = x.new_zeros(beside.shape[1], classes)
    velocity, kept = torch.zeros_like(weights), torch.zeros_like(weights)
    last = max(1, steps // 3)
    for step in range(steps):
        errors = torch.softmax(beside @ weights, dim=1) - wanted
        scale = (clip / (errors.norm(dim=1, keepdim=True) * lengths).clamp_min(1e-12)).clamp_max(1)
        noise = sigma * torch.randn(weights.shape, generator=rng, device=x.device)
        velocity = 0.9 * velocity + (beside.T @ (errors * scale) + noise) / len(x)
        weights = weights - rate * velocity
        if step >= steps - last:
            kept += weights / last
    return kept


def best(dataset: str, name: str, device: str, seeds: Sequence[int]) -> list[Figures]:
    """For each target the best of the grid on the first seed, and its mean over seeds."""
    held = [pooled(dataset, seed, device, **MAPS[name]) for seed in seeds]

    def tried(target: str, setting: tuple[int, float, float], place: int) -> float:
        (epsilon, moved), (steps, rate, clip) = TARGETS[target], setting
        squares = steps * (moved * clip) ** 2
        sigma = calibrate(epsilon=epsilon, delta=DELTA, accounting="exact", squared_sensitivity=squares)
        x, y, tested, truth = held[place]
        seed = seeds[place]
        head = private_head(x, y, steps=steps, rate=rate, clip=clip, sigma=sigma, classes=10, seed=seed)
        right = (tested @ head[:-1] + head[-1]).argmax(dim=1) == truth
        return 100 * float(right.double().mean())

    found = []
    for target in TARGETS:
        grid = {each: tried(target, each, 0) for each in itertools.product(STEPS, RATES, CLIPS)}
        setting = max(grid, key=grid.__getitem__)
        accuracies = [tried(target, setting, place) for place in range(len(seeds))]
        line: Figures = {"dataset": dataset, "map": name, "epsilon": target, "setting": setting}
        line |= {"numbers": held[0][0].shape[1], "records": len(held[0][0]), "accuracies": accuracies}
        found.append(line | {"accuracy": round(sum(accuracies) / len(accuracies), 2)})
    return found


def table(lines: Sequence[Figures]) -> str:
    """The figures as Markdown."""
    text = ["| | map | " + " | ".join(TARGETS) + " |", "|---|---|" + "---|" * len(TARGETS)]
    for dataset, name in dict.fromkeys((line["dataset"], line["map"]) for line in lines):
        mine = [line for line in lines if (line["dataset"], line["map"]) == (dataset, name)]
        cells = [f"{line['accuracy']:.1f}" for line in mine]
        text.append(f"| {dataset} | {name}, {mine[0]['numbers']:,} numbers | {' | '.join(cells)} |")
    return "\n".join(text)


def main(datasets: Sequence[str], device: str, out: Path) -> None:
    lines: list[Figures] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    lines = [line for line in lines if line["dataset"] not in datasets]
    for dataset, name in itertools.product(datasets, MAPS):
        lines += best(dataset, name, device, SEEDS)
        out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
        print(table(lines[-len(TARGETS) :]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--datasets", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    main(chosen.datasets, chosen.device, chosen.out)
