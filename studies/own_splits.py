"""Runs of the package on a split that others published, and rivals written small on the same records.

The package holds a fifth of each client's records out; a published split is another. So records are laid out
such that the package trains on exactly those that the split says, and models are judged on the split's test
records. Rivals are full-batch: local models, DP-FedAvg and MR-MTL (Liu et al., NeurIPS 2022) of linear
models, with clipped record gradients and noise of the package's own accountant, replace-one as ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import Dataset, Facts, Records, split_seeds
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan
from sottovoce.privacy.accounting import calibrate
from sottovoce.release.blueprint import Blueprint
from sottovoce.run.prepare import prepare
from sottovoce.run.rehearsal import rehearse


@dataclass(frozen=True)
class Split:
    """Sites with training and test records, as they are stored: x (m, columns), y (m,)."""

    name: str
    facts: Facts
    train: Sequence[tuple[Tensor, Tensor]]
    test: Sequence[tuple[Tensor, Tensor]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"site-{i:03}" for i in range(len(self.train)))

    def seen(self, records: tuple[Tensor, Tensor]) -> Records:
        """Records as a model sees them."""
        return Records(self.facts.normalize(records[0]), records[1])

    def laid_out(self, seed: int) -> Dataset:
        """A dataset of which the package, with this seed, trains on the training records and no other."""
        xs, ys, owners = [], [], []
        for i, drawn in enumerate(split_seeds(len(self.train), seed)):
            (x, y), (other_x, other_y) = self.train[i], self.test[i]
            held = -(-5 * len(y) // 4) - len(y)
            order = np.random.default_rng(drawn).permutation(len(y) + held)
            places = torch.from_numpy(np.argsort(order))
            xs.append(torch.cat([x, other_x[:held]])[places])
            ys.append(torch.cat([y, other_y[:held]])[places])
            owners.append(torch.full((len(places),), i))
        parts = (torch.cat(xs), torch.cat(ys), self.facts, torch.cat(owners), self.names)
        return Dataset(self.name, *parts, public=True)


@dataclass(frozen=True)
class Ran:
    """A finished run: each site's parameters, those of a newcomer, and what was spent."""

    blueprint: Blueprint
    thetas: Tensor
    shared: Tensor
    spent: float | None

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            return logits(self.blueprint.module, theta, x)


def run(split: Split, settings: Mapping[str, Any], seed: int) -> Ran:
    """The package's own run, seeded, with a ledger that is thrown away."""
    given = {"partition": "client", "participants": 0, "clients_per_round": 0, "future_clients": 0}
    given |= {"dataset": split.name, "seed": seed, "seeded": True, "channel": "direct", "evaluate_every": 0}
    prepared = prepare(Plan.load(overrides={**given, **settings}), split.laid_out(seed))
    for i, mine in enumerate(prepared.federation.participants):
        assert torch.equal(mine.train.x, split.seen(split.train[i]).x)
    with tempfile.TemporaryDirectory() as folder:
        found = rehearse(prepared, Path(folder) / "ledger.sqlite", lambda line: None)
    blueprint = prepared.blueprint
    thetas = torch.stack([blueprint.theta(row) for row in found.coefficients])
    return Ran(blueprint, thetas, blueprint.theta(found.shared), found.spent)


@dataclass(frozen=True)
class Rival:
    """A rival's settings; `prox` < 0: one model for all (DP-FedAvg), 0: each alone, above: MR-MTL's λ."""

    steps: int
    rate: float
    clip: float
    prox: float
    local: int = 1
    """Noised steps between two means."""


def rival(split: Split, chosen: Rival, epsilon: float, delta: float, seed: int) -> Tensor:
    """Parameters (sites, outputs, columns + 1) after training with record-level replace-one (ε, δ)."""
    noise, facts = torch.Generator().manual_seed(seed), split.facts
    x, y, counts = padded(split)
    sigmas = torch.tensor(
        [
            calibrate(
                epsilon=epsilon,
                delta=delta,
                accounting="exact",
                squared_sensitivity=chosen.steps * (2 * chosen.clip / m) ** 2,
            )
            for m in counts.tolist()
        ]
    ).view(-1, 1, 1)
    used = (torch.arange(x.shape[1]) < counts[:, None]).unsqueeze(2)
    weights = (counts / counts.sum()).view(-1, 1, 1)
    own = torch.zeros(len(x), facts.classes, x.shape[2])
    centre = own.mean(0, keepdim=True)
    lengths = x.norm(dim=2, keepdim=True)
    for step in range(chosen.steps):
        outputs = x @ own.transpose(1, 2)
        if facts.task == "number":
            errors = outputs - y.unsqueeze(2)
        else:
            errors = torch.softmax(outputs, dim=2) - torch.nn.functional.one_hot(y, facts.classes)
        scale = (chosen.clip / (errors.norm(dim=2, keepdim=True) * lengths).clamp_min(1e-12)).clamp_max(1)
        sums = (errors * scale * used).transpose(1, 2) @ x
        released = sums / counts.view(-1, 1, 1) + sigmas * torch.randn(own.shape, generator=noise)
        own = own - chosen.rate * (released + max(chosen.prox, 0.0) * (own - centre))
        if (step + 1) % chosen.local == 0:
            centre = (weights * own).sum(0, keepdim=True)
            if chosen.prox < 0:
                own = centre.expand_as(own).clone()
    return own


def padded(split: Split) -> tuple[Tensor, Tensor, Tensor]:
    """Training records of all sites, (sites, most, columns + 1), their targets, and how many each has."""
    seen = [split.seen(records) for records in split.train]
    counts = torch.tensor([len(mine) for mine in seen])
    x = torch.zeros(len(seen), int(counts.max()), seen[0].x.shape[1] + 1)
    y = torch.zeros(len(seen), int(counts.max()), dtype=seen[0].y.dtype)
    for i, mine in enumerate(seen):
        x[i, : len(mine), :-1], x[i, : len(mine), -1], y[i, : len(mine)] = mine.x, 1.0, mine.y
    return x, y, counts


def rival_scores(split: Split, parameters: Tensor) -> list[float]:
    """Accuracy in percent of each site, or its mean squared error on the scale from −1 to 1."""
    task, found = open_task(split.facts), []
    for theta, records in zip(parameters, split.test, strict=True):
        mine = split.seen(records)
        outputs = mine.x @ theta[:, :-1].T + theta[:, -1]
        found.append(score(task, outputs, mine.y))
    return found


def score(task: Any, outputs: Tensor, y: Tensor) -> float:
    """Accuracy in percent, or mean squared error."""
    if task.facts.task == "number":
        return float((outputs.reshape(-1) - y).square().mean())
    return float(task.score(outputs, y))
