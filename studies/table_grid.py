"""A grid of recipes for tables, many at a time: what that of `blending` was chosen by and is held against.

All settings of a table train side by side, as products of one padded batch, on a GPU or on a core: blended
linear models with the weights and the noise of the package (a test holds a run against its server's). A
setting says what matters: the clip bound, how far shared and own parts move along a mean gradient in a
run (step × rounds), momentum, rounds, and the own share where noise is in a sum. Losses are means over sites
of what they hold out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import Records
from sottovoce.plan import Plan
from sottovoce.privacy import accounting
from sottovoce.release.places.server import CARRIED
from sottovoce.release.recipe import counted_sizes
from sottovoce.run.prepare import Prepared

AVERAGED = 0.3
CLIPS = {"classes": (0.25, 0.5, 1.0, 2.0), "number": (0.125, 0.25, 0.5)}
SHARED, OWN = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0), (0.0, 1.0, 3.0, 10.0)
ROUNDS = ((40, 0.9), (100, 0.9), (100, 0.0))
MOST_NUMBERS = 2e8
"""Outputs held at a time."""


@dataclass(frozen=True)
class Setting:
    """One recipe: clip bound, how far parts move along a mean gradient, and the share of own parts."""

    clip: float
    shared: float
    own: float
    share: float


def settings(task: str, summed: bool) -> Iterator[Setting]:
    """The grid of a task; own parts have a share where noise is in a sum."""
    for clip, shared, own in itertools.product(CLIPS[task], SHARED, OWN):
        yield Setting(clip, shared, own, 0.3 if own and summed else 0.0)


class Tried:
    """The records of a prepared run, on which settings are tried."""

    def __init__(self, prepared: Prepared, device: str = "cpu") -> None:
        sites, facts = prepared.federation.participants, prepared.blueprint.facts
        self._prepared, self._number, self._outputs = prepared, facts.task == "number", facts.classes
        self._train = padded([mine.train for mine in sites], device)
        self._held_out = padded([mine.held_out for mine in sites], device)
        self._device = device

    def losses(self, given: Sequence[Setting], rounds: int, momentum: float, seed: int) -> list[float]:
        """The loss of each setting, in the mean over sites: log loss, or squared error."""
        numbers = self._train[0].shape[0] * self._train[0].shape[1] * self._outputs
        many = max(1, int(MOST_NUMBERS / numbers / (1 if self._device != "cpu" else 20)))
        found: list[float] = []
        for start in range(0, len(given), many):
            theta = self._trained(given[start : start + many], rounds, momentum, seed + start)
            found += self._judged(theta).tolist()
        return found

    def _trained(self, given: Sequence[Setting], rounds: int, momentum: float, seed: int) -> Tensor:
        """Parameters (settings, sites, columns + 1, outputs), averaged over the last rounds."""
        x, y, used = self._train
        sites, columns, many, outputs = x.shape[0], x.shape[2], len(given), self._outputs
        weights, shared_sigma, own_sigma = self._noise(given, rounds)
        steps = [[setting.shared, setting.own] for setting in given]
        step = torch.tensor(steps, device=self._device).T * (1 - momentum) / rounds
        clip = torch.tensor([setting.clip for setting in given], device=self._device)
        target = y[:, :, None] if self._number else torch.nn.functional.one_hot(y, outputs).float()
        generator = torch.Generator(self._device).manual_seed(seed)
        shared = torch.zeros(many, 1, columns, outputs, device=self._device)
        own = torch.zeros(many, sites, columns, outputs, device=self._device)
        moving, mean = [torch.zeros_like(shared), torch.zeros_like(own)], torch.zeros_like(own)
        norms, sizes = x.norm(dim=2), used.sum(dim=1)
        averaged = round(AVERAGED * rounds)
        for number in range(rounds):
            deltas = _outputs(x, shared + own)
            deltas = (deltas if self._number else torch.softmax(deltas, dim=3)) - target[:, :, None]
            scale = clip / (deltas.norm(dim=3) * norms[:, :, None]).clamp_min(1e-12)
            deltas = deltas * (scale.clamp_max(1.0) * used[:, :, None])[..., None]
            sums = torch.bmm(x.transpose(1, 2), deltas.reshape(sites, x.shape[1], many * outputs))
            means = sums.view(sites, columns, many, outputs).permute(2, 0, 1, 3) / sizes[None, :, None, None]
            drawn = torch.randn(means.shape, generator=generator, device=self._device)
            released = means + own_sigma[:, :, None, None] * drawn
            if self._prepared.plan.place.summed:
                total = (weights[:, None, None] * means).sum(dim=1, keepdim=True)
                drawn = torch.randn(total.shape, generator=generator, device=self._device)
                total = total + shared_sigma[:, None, None, None] * drawn
            else:
                total = (weights[:, None, None] * released).sum(dim=1, keepdim=True)
            moving = [momentum * moving[0] + total, momentum * moving[1] + released]
            shared = shared - step[0][:, None, None, None] * moving[0]
            own = own - step[1][:, None, None, None] * moving[1]
            if number >= rounds - averaged:
                mean = mean + (shared + own) / averaged
        return mean

    def _noise(self, given: Sequence[Setting], rounds: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (sites,), σ of a round in the shared part (settings,) and in own ones (settings, sites)."""
        plan, sizes = self._prepared.plan, np.array(self._prepared.trained, dtype=np.float64)
        mu = math.sqrt(accounting.mu_squared(plan.epsilon, plan.delta, plan.accounting))
        counted = np.array(counted_sizes(plan, self._prepared.trained), dtype=np.float64)
        weights = counted**plan.weighting / np.sum(counted**plan.weighting)
        unit = 2 * math.sqrt(rounds) / mu
        clip, share = (np.array([getattr(one, name) for one in given]) for name in ("clip", "share"))
        if plan.place.summed:
            total = unit * clip / counted.sum() / math.sqrt(1 - CARRIED)
            shared = total / np.sqrt(1 - share)
            own = np.where(share > 0, total / np.sqrt(np.maximum(share, 1e-9)), 0.0)[:, None] / weights
        else:
            shared, own = 0 * clip, unit * clip[:, None] / sizes
        moved = [
            torch.tensor(each, dtype=torch.float32, device=self._device) for each in (weights, shared, own)
        ]
        return moved[0], moved[1], moved[2]

    def _judged(self, theta: Tensor) -> Tensor:
        x, y, used = self._held_out
        outputs = _outputs(x, theta)
        if self._number:
            losses = (outputs[..., 0].clamp(-1.0, 1.0) - y[:, :, None]).square()
        else:
            picked = y[:, :, None, None].expand(*outputs.shape[:3], 1)
            losses = -torch.log_softmax(outputs, dim=3).gather(3, picked)[..., 0]
        sites = (losses * used[:, :, None]).sum(dim=1) / used.sum(dim=1)[:, None]
        return sites.mean(dim=0)


def prepared_plan(records: str, preset: str, epsilon: float, seed: int, **changes: object) -> Plan:
    """The plan of a seeded run of all sites."""
    own = {"partition": "client", "participants": 0, "clients_per_round": 0, "future_clients": 0}
    fixed = {"preset": preset, "dataset": records, "epsilon": epsilon, "seed": seed}
    return Plan.load(overrides={**own, **fixed, "seeded": True, "channel": "direct", **changes})


def padded(held: Sequence[Records], device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Inputs with a constant one (sites, most, columns + 1), targets and which are there (sites, most)."""
    most = max(map(len, held))
    x = torch.zeros(len(held), most, held[0].x.shape[1] + 1)
    y, used = torch.zeros(len(held), most, dtype=held[0].y.dtype), torch.zeros(len(held), most)
    for i, mine in enumerate(held):
        x[i, : len(mine), :-1], x[i, : len(mine), -1] = mine.x, 1.0
        y[i, : len(mine)], used[i, : len(mine)] = mine.y, 1.0
    return x.to(device), y.to(device), used.to(device)


def with_constant(x: Tensor, scale: float) -> Tensor:
    """Inputs (..., columns + 1) whose last is `scale` times what it was."""
    return torch.cat([x[..., :-1], scale * x[..., -1:]], dim=-1)


def _outputs(x: Tensor, theta: Tensor) -> Tensor:
    """Outputs (sites, most, settings, outputs) for parameters (settings, sites, columns, outputs)."""
    many, sites, columns, outputs = theta.shape
    flat = theta.permute(1, 2, 0, 3).reshape(sites, columns, many * outputs)
    return torch.bmm(x, flat).view(sites, x.shape[1], many, outputs)
