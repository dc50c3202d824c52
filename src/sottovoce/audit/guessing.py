"""What an adversary's guesses came to: right and wrong, the ε that they certify, and what looked wrong.

A pair is played run after run, one file or the other by a coin. Where runs are too dear, one run carries many
canaries, each of them one of two records by a coin of its own.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sottovoce.audit import bounds
from sottovoce.audit.game import Match, Seen
from sottovoce.audit.pair import Pair, busiest, is_by_class, narrowed, put, worst_blueprint, worst_records
from sottovoce.blueprint import Blueprint
from sottovoce.cores import derived_seed
from sottovoce.data import ClientRecords, FederatedDataset, Records
from sottovoce.plan import Plan
from sottovoce.privacy import accounting

Progress = Callable[[int, int], None]

MOST_POINTS = 200
"""Of a measured trade-off curve."""
LEAST_NOISE = 0.99
"""Noise may fall short of the σ that is charged by chance, and by the rounding of a code; not by more."""
CHANCE = 5.0
"""Standard deviations beyond which nothing is called chance."""
ROUNDING = 1e-6


def guess_pair(pair: Pair, runs: int, progress: Progress = lambda done, of: None) -> dict[str, Any]:
    """Plays a pair so often, and tells what the guesses certify."""
    plan, match = pair.blueprint.plan, Match(pair)
    coins = _coins(plan, runs)
    seen = []
    for number, second in enumerate(coins):
        progress(number, runs)
        seen.append(match.play(number, pair.files[int(second)]))
    progress(runs, runs)
    evidence, charged = np.array([one.evidence for one in seen]), min(one.charged for one in seen)
    wrong = int(((evidence > 0) != coins).sum())
    mu, certain = math.sqrt(charged), bounds.least_mu(wrong, runs, 1 - bounds.FALSE_ALARM)
    threshold = bounds.counted_threshold(mu, plan.delta, runs)
    above, sides = evidence > threshold, (int((~coins).sum()), int(coins.sum()))
    counted = int((above & ~coins).sum()), int((above & coins).sum())
    least = bounds.least_mu(wrong, runs)
    found = {
        "pair": pair.about,
        "client": pair.name,
        "runs": runs,
        "wrong": wrong,
        **_charged(plan, charged),
        "mu_lower": least,
        "epsilon_lower": bounds.least_epsilon(least, plan.delta),
        "epsilon_counted": bounds.counted_epsilon(counted, sides, plan.delta),
        "curve": _curve(evidence, coins),
        **_watched(seen),
    }
    if certain > mu:
        found["faults"].append(
            f"the {pair.about} pair was guessed right {runs - wrong:,} of {runs:,} times, which certifies "
            f"ε ≥ {bounds.least_epsilon(certain, plan.delta):.3g}, and ε = {found['epsilon']:.3g} is charged"
        )
    return found


@dataclass(frozen=True, eq=False)
class Canaries:
    """A participant whose first training units are made up; `pair` has all of one side, and of the other."""

    pair: Pair
    count: int

    @classmethod
    def of(cls, blueprint: Blueprint, federation: FederatedDataset) -> Canaries:
        """As many as the busiest participant has training units, and a record has coordinates."""
        size, participant = math.prod(blueprint.facts.shape), busiest(blueprint)
        worst, held = worst_blueprint(blueprint, size), narrowed(federation.participants[participant], size)
        count = min(held.train.units, size - int(is_by_class(worst)))
        place = _places(held.train)
        rows = torch.nonzero(place < count)[:, 0]
        made = worst_records(worst, torch.eye(size)[:count])
        first, second = (replace(held, train=put(held.train, rows, side[place[rows]])) for side in made)
        name = federation.names[participant]
        return cls(Pair("canaries", worst, name, participant, (first, second)), count)

    def mixed(self, coins: np.ndarray) -> ClientRecords:
        """The file in which every canary is as its coin says."""
        first, second = self.pair.files
        place = _places(first.train)
        canary = torch.from_numpy(np.append(coins, [False]))[place.clamp_max(self.count)]
        rows = torch.nonzero(canary)[:, 0]
        return replace(first, train=put(first.train, rows, second.train[rows]))

    def evidence(self, seen: Seen) -> np.ndarray:
        """Of every canary, for its second side: that of the weights of its own coordinate."""
        [size] = self.pair.blueprint.facts.shape
        weights = seen.coefficients[: size * self.pair.blueprint.facts.classes]
        found: np.ndarray = weights.reshape(-1, size).sum(axis=0)[: self.count]
        return found


def guess_canaries(blueprint: Blueprint, federation: FederatedDataset) -> dict[str, Any]:
    """Plays one run full of canaries, and guesses those of which it shows most."""
    canaries, plan = Canaries.of(blueprint, federation), blueprint.plan
    coins = _coins(plan, canaries.count)
    seen = Match(canaries.pair).play(0, canaries.mixed(coins))
    evidence = canaries.evidence(seen)
    guesses = bounds.one_run_guesses(canaries.count, math.sqrt(seen.charged), plan.delta)
    shown = np.argsort(-np.abs(evidence), kind="stable")[:guesses]
    right = int(((evidence > 0) == coins)[shown].sum())
    least = bounds.one_run_epsilon(canaries.count, guesses, right, plan.delta)
    watched = _watched([replace(seen, ratios={})])  # the files differ in all canaries
    found = {
        "pair": "canaries",
        "client": canaries.pair.name,
        "runs": 1,
        "canaries": canaries.count,
        "guesses": guesses,
        "wrong": guesses - right,
        **_charged(plan, seen.charged),
        "epsilon_lower": least,
        **watched,
    }
    certain = bounds.one_run_epsilon(canaries.count, guesses, right, plan.delta, 1 - bounds.FALSE_ALARM)
    if certain > found["epsilon"]:
        found["faults"].append(
            f"{right} of {guesses} canaries were guessed right, which certifies ε ≥ {certain:.3g}, and "
            f"ε = {found['epsilon']:.3g} is charged"
        )
    return found


def _places(records: Records) -> torch.Tensor:
    """Which unit each record belongs to, counted from 0."""
    if records.unit is None:
        return torch.arange(len(records))
    places: torch.Tensor = torch.unique(records.unit, return_inverse=True)[1]
    return places


def _coins(plan: Plan, count: int) -> np.ndarray:
    seed = derived_seed(plan.seed, "coins") if plan.seeded else secrets.randbits(128)
    coins: np.ndarray = np.random.default_rng(seed).integers(2, size=count) == 1
    return coins


def _charged(plan: Plan, charged: float) -> dict[str, float]:
    return {
        "mu": math.sqrt(charged),
        "epsilon": accounting.epsilon(charged, plan.delta, plan.accounting),
        "delta": plan.delta,
    }


def _watched(seen: Sequence[Seen]) -> dict[str, Any]:
    """The largest ratio of each kind and the noise's scale over all runs, and what is wrong with them."""
    kinds = dict.fromkeys(kind for one in seen for kind in one.noise)
    faults = list(dict.fromkeys(fault for one in seen for fault in one.faults))
    ratios, noise = dict[str, float](), dict[str, float]()
    for kind in kinds:
        if any(kind in one.ratios for one in seen):
            ratios[kind] = max(one.ratios[kind] for one in seen if kind in one.ratios)
        squares, numbers = (sum(one.noise[kind][i] for one in seen if kind in one.noise) for i in (0, 1))
        noise[kind] = math.sqrt(squares / numbers)
        if ratios.get(kind, 0.0) > 1 + ROUNDING:
            faults.append(f"a {kind} moved {ratios[kind]:.4g} times as far as is charged for")
        # σ estimated from n normals has a deviation of σ/√(2n).
        if noise[kind] < min(LEAST_NOISE, 1 - CHANCE / math.sqrt(2 * numbers)):
            faults.append(f"the noise of a {kind} has {noise[kind]:.4g} of the σ that is charged for")
    return {"noise": noise, "ratios": ratios, "faults": faults}


def _curve(evidence: np.ndarray, coins: np.ndarray) -> list[list[float]]:
    """False positives and false negatives, at thresholds from the highest to the lowest."""
    order = np.argsort(-evidence, kind="stable")
    seconds = coins[order]
    positives = np.append(0, np.cumsum(~seconds)) / max(1, int((~coins).sum()))
    negatives = 1 - np.append(0, np.cumsum(seconds)) / max(1, int(coins.sum()))
    kept = np.unique(np.linspace(0, len(order), min(len(order), MOST_POINTS) + 1).astype(int))
    return [[float(positives[i]), float(negatives[i])] for i in kept]
