"""What an adversary's guesses came to, and the ε that so many right and wrong ones certify.

A pair is played run after run, one file or the other by a coin. Where runs are too dear, one run carries many
canaries, each of them one of two records by a coin of its own.

What wrong guesses certify is in `bounds`. They are held against what was measured, too: the files' distance
and the noise's scale say how many guesses are wrong where each release has noise of its own. Fewer mean that
noise of several releases cancels, more that it adds up, as where it is drawn once for all rounds and whoever
subtracts two releases has none.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sottovoce.audit.bounds import (
    FALSE_ALARM,
    beyond_chance,
    counted_epsilon,
    counted_threshold,
    least_epsilon,
    least_mu,
    one_run_epsilon,
    one_run_guesses,
    wrong_guesses,
)
from sottovoce.audit.game import Seen, play
from sottovoce.audit.pair import Pair, busiest, is_by_class, narrowed, put, worst_blueprint, worst_records
from sottovoce.data import ClientRecords, FederatedDataset, Records
from sottovoce.machine.determinism import derived_seed
from sottovoce.models.features.cache import Progress
from sottovoce.plan import Plan
from sottovoce.plan.catalog import Kind
from sottovoce.privacy import accounting
from sottovoce.release.blueprint import Blueprint

MOST_POINTS = 200
"""Of a measured trade-off curve."""
LEAST_NOISE = 0.99
"""Noise may fall short of the σ that is charged by chance, and by the rounding of a code; not by more."""
CHANCE = 5.0
"""Standard deviations beyond which nothing is called chance."""
ROUNDING = 1e-6


def guess_pair(pair: Pair, runs: int, progress: Progress = lambda done, of: None) -> dict[str, Any]:
    """Plays a pair so often, and tells what the guesses certify."""
    plan = pair.blueprint.plan
    coins = _coins(plan, runs)
    seen = []
    for number, second in enumerate(coins):
        progress(number, runs)
        seen.append(play(pair, number, pair.files[int(second)]))
    progress(runs, runs)
    evidence, charged = np.array([one.evidence for one in seen]), min(one.charged for one in seen)
    wrong = int(((evidence > 0) != coins).sum())
    mu, certain = math.sqrt(charged), least_mu(wrong, runs, 1 - FALSE_ALARM)
    threshold = counted_threshold(mu, plan.delta, runs)
    above, sides = evidence > threshold, (int((~coins).sum()), int(coins.sum()))
    counted = int((above & ~coins).sum()), int((above & coins).sum())
    least = least_mu(wrong, runs)
    found = {
        "pair": pair.about,
        "client": pair.name,
        "runs": runs,
        "wrong": wrong,
        **_charged(plan, charged),
        "mu_lower": least,
        "epsilon_lower": least_epsilon(least, plan.delta),
        "epsilon_counted": counted_epsilon(counted, sides, plan.delta),
        "curve": _curve(evidence, coins),
        **_watched(seen),
    }
    found["faults"] += _unlike(f"the {pair.about} pair", wrong, found["noise"], seen)
    if certain > mu:
        found["faults"].append(
            f"the {pair.about} pair was guessed right {runs - wrong:,} of {runs:,} times, which certifies "
            f"ε ≥ {least_epsilon(certain, plan.delta):.3g}, and ε = {found['epsilon']:.3g} is charged"
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
        """Of every canary, for its second side: that of its own coordinate's weights, and of its centre."""
        return sum(self.each(seen.numbers).values(), np.zeros(self.count))

    def each(self, numbers: Mapping[Kind, np.ndarray]) -> dict[Kind, np.ndarray]:
        """Of what was noted number by number, that of each canary's own coordinate, by kind."""
        [size] = self.pair.blueprint.facts.shape
        weights = numbers["gradient"][: size * self.pair.blueprint.facts.classes]
        found: dict[Kind, np.ndarray] = {"gradient": weights.reshape(-1, size).sum(axis=0)[: self.count]}
        return found | ({"centre": numbers["centre"][: self.count]} if "centre" in numbers else {})


def guess_canaries(blueprint: Blueprint, federation: FederatedDataset) -> dict[str, Any]:
    """Plays one run full of canaries, and guesses those of which it shows most."""
    canaries, plan = Canaries.of(blueprint, federation), blueprint.plan
    coins = _coins(plan, canaries.count)
    seen = play(canaries.pair, 0, canaries.mixed(coins))
    evidence = canaries.evidence(seen)
    guesses = one_run_guesses(canaries.count, math.sqrt(seen.charged), plan.delta)
    shown, hit = np.argsort(-np.abs(evidence), kind="stable")[:guesses], (evidence > 0) == coins
    right = int(hit[shown].sum())
    least = one_run_epsilon(canaries.count, guesses, right, plan.delta)
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
    apart = canaries.each(seen.apart)
    each = [
        replace(seen, apart={kind: far[place] for kind, far in apart.items()})
        for place in range(canaries.count)
    ]
    found["faults"] += _unlike("the canaries", int((~hit).sum()), found["noise"], each)
    certain = one_run_epsilon(canaries.count, guesses, right, plan.delta, 1 - FALSE_ALARM)
    if certain > found["epsilon"]:
        found["faults"].append(
            f"{right} of {guesses} canaries were guessed right, which certifies ε ≥ {certain:.3g}, and "
            f"ε = {found['epsilon']:.3g} is charged"
        )
    return found


def _places(records: Records) -> torch.Tensor:
    """Returns which unit each record belongs to, counted from 0."""
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


def _unlike(who: str, wrong: int, noise: Mapping[Kind, float], seen: Sequence[Seen]) -> list[str]:
    """Says so if guesses are wrong less or more often than noise of this scale makes them, drawn every time.

    A guess is wrong if normal evidence of mean d²/2 and variance Σ s²d² of kinds is below zero. How far the
    files are apart (d) may change from run to run, and the noise's scale (s) is as sure as numbers are many,
    so both bounds are wide.
    """
    if not seen or noise.keys() != seen[0].apart.keys():  # what has no row in the ledger is a fault by itself
        return []
    numbers = {kind: sum(one.noise[kind][1] for one in seen if kind in one.noise) for kind in noise}

    def chance(one: Seen, sure: float) -> float:
        squares = {kind: float(np.sum(apart)) for kind, apart in one.apart.items()}
        spread = sum(
            square * (noise[kind] * max(0.0, 1 + sure * CHANCE / math.sqrt(2 * numbers[kind]))) ** 2
            for kind, square in squares.items()
        )
        return wrong_guesses(sum(squares.values()) / math.sqrt(spread)) if spread > 0 else 0.5

    least, most = min(chance(one, -1.0) for one in seen), max(chance(one, 1.0) for one in seen)
    if not beyond_chance(wrong, len(seen), least, most):
        return []
    return [
        f"{wrong:,} of {len(seen):,} guesses about {who} were wrong, and noise as was measured makes it "
        f"{len(seen) * least:.3g} to {len(seen) * most:.3g} give or take chance, if each release has its own"
    ]


def _curve(evidence: np.ndarray, coins: np.ndarray) -> list[list[float]]:
    """False positives and false negatives, at thresholds from the highest to the lowest."""
    order = np.argsort(-evidence, kind="stable")
    seconds = coins[order]
    positives = np.append(0, np.cumsum(~seconds)) / max(1, int((~coins).sum()))
    negatives = 1 - np.append(0, np.cumsum(seconds)) / max(1, int(coins.sum()))
    kept = np.unique(np.linspace(0, len(order), min(len(order), MOST_POINTS) + 1).astype(int))
    return [[float(positives[i]), float(negatives[i])] for i in kept]
