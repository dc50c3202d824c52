"""What an adversary's guesses came to, and the ε that so many right and wrong ones certify.

A pair is played run after run, one file or the other by a coin. Where runs are too dear, one run carries many
canaries, each of them one of two records by a coin of its own.

A promise of μ-GDP bounds every test: false negatives β ≥ Φ(Φ⁻¹(1 − α) − μ) for false positives α, so that a
guess between two files is wrong with probability Φ(−μ/2) at least. The number of wrong guesses therefore
bounds μ from below (Clopper and Pearson), and μ gives ε at δ, as in Nasr and others 2023. Counting alone,
without the Gaussian curve, certifies less: ε ≥ log((1 − β − δ)/α). One run with many canaries is bounded as
in Steinke, Nasr and Jagielski 2023. Thresholds are chosen from what is promised, before anything is seen.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from sottovoce.audit.game import Seen, play
from sottovoce.audit.pair import Pair, busiest, is_by_class, narrowed, put, worst_blueprint, worst_records
from sottovoce.data import ClientRecords, FederatedDataset, Records
from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import derived_seed
from sottovoce.models.features.cache import Progress
from sottovoce.plan import Plan
from sottovoce.privacy import accounting
from sottovoce.release.blueprint import Blueprint

MOST_POINTS = 200
"""Of a measured trade-off curve."""
LEAST_NOISE = 0.99
"""Noise may fall short of the σ that is charged by chance, and by the rounding of a code; not by more."""
CHANCE = 5.0
"""Standard deviations beyond which nothing is called chance."""
ROUNDING = 1e-6
CONFIDENCE = 0.95
FALSE_ALARM = 1e-4
"""How often an audit of a true promise may say that it is not: once in 10,000."""
_MOST_RUNS = 10**6
_DRAWN = 4096


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
        [size] = self.pair.blueprint.facts.shape
        weights = seen.numbers["gradient"][: size * self.pair.blueprint.facts.classes]
        found: np.ndarray = weights.reshape(-1, size).sum(axis=0) + seen.numbers.get("centre", 0.0)
        return found[: self.count]


def guess_canaries(blueprint: Blueprint, federation: FederatedDataset) -> dict[str, Any]:
    """Plays one run full of canaries, and guesses those of which it shows most."""
    canaries, plan = Canaries.of(blueprint, federation), blueprint.plan
    coins = _coins(plan, canaries.count)
    seen = play(canaries.pair, 0, canaries.mixed(coins))
    evidence = canaries.evidence(seen)
    guesses = one_run_guesses(canaries.count, math.sqrt(seen.charged), plan.delta)
    shown = np.argsort(-np.abs(evidence), kind="stable")[:guesses]
    right = int(((evidence > 0) == coins)[shown].sum())
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


def _curve(evidence: np.ndarray, coins: np.ndarray) -> list[list[float]]:
    """False positives and false negatives, at thresholds from the highest to the lowest."""
    order = np.argsort(-evidence, kind="stable")
    seconds = coins[order]
    positives = np.append(0, np.cumsum(~seconds)) / max(1, int((~coins).sum()))
    negatives = 1 - np.append(0, np.cumsum(seconds)) / max(1, int(coins.sum()))
    kept = np.unique(np.linspace(0, len(order), min(len(order), MOST_POINTS) + 1).astype(int))
    return [[float(positives[i]), float(negatives[i])] for i in kept]


_normal = NormalDist()


def wrong_guesses(mu: float) -> float:
    """The least probability of a wrong guess between two files under μ-GDP.

    >>> round(wrong_guesses(2.0), 3)
    0.159
    """
    return _normal.cdf(-mu / 2)


def least_mu(wrong: int, runs: int, confidence: float = CONFIDENCE) -> float:
    """The μ that so many wrong guesses certify: with this confidence no smaller one is true.

    >>> round(least_mu(203, 1000), 2)
    1.51
    """
    return max(0.0, -2 * _inverse(most_likely(wrong, runs, confidence)))


def most_likely(found: int, of: int, confidence: float) -> float:
    """The largest probability that `found` of `of` leave likely (Clopper and Pearson 1934, one-sided)."""
    return 1.0 if found >= of else float(_stats().beta.ppf(confidence, found + 1, of - found))


def least_epsilon(mu: float, delta: float) -> float:
    """ε of μ-GDP at δ, by the exact curve."""
    return accounting.epsilon(mu**2, delta, "exact")


def check_runs(runs: int, mu: float) -> None:
    """Refuses so few runs that even the worst pair would most likely certify nothing."""

    def certified(count: int) -> float:
        return least_mu(round(count * wrong_guesses(mu)), count)

    if certified(runs) > 0:
        return
    needed = runs
    while needed < _MOST_RUNS and certified(needed) <= 0:
        needed = 2 * needed + 1
    raise SottovoceError(
        f"{runs} runs are too few to certify anything about this promise: play at least {needed}, or play 1 "
        "with many canaries"
    )


def counted_threshold(mu: float, delta: float, runs: int) -> float:
    """The evidence above which counting is expected to certify most, for a pair as far apart as promised."""

    def expected(threshold: float) -> float:
        rates = (1 - _normal.cdf((threshold + side * mu**2 / 2) / mu) for side in (1, -1))
        false, true = (round(runs / 2 * rate) for rate in rates)
        return counted_epsilon((false, true), (runs // 2, runs // 2), delta)

    return max((mu * step / 20 for step in range(101)), key=expected)


def counted_epsilon(above: tuple[int, int], runs: tuple[int, int], delta: float) -> float:
    """ε by counting: in how many runs of the first and of the second file was evidence above a threshold?

    >>> round(counted_epsilon((0, 400), (5000, 5000), 1e-5), 1)
    4.6
    """
    half = 1 - (1 - CONFIDENCE) / 2
    positives = most_likely(above[0], runs[0], half)
    right = 1 - most_likely(runs[1] - above[1], runs[1], half)
    return max(0.0, math.log((right - delta) / positives)) if right > delta else 0.0


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """ε that `right` of `guesses` about so many canaries of one run certify (their Theorem 5.2).

    >>> round(one_run_epsilon(1000, 100, 97, 1e-5), 1)
    2.5
    """

    def credible(epsilon: float) -> bool:
        return _one_run_chance(canaries, guesses, right, epsilon, delta) > 1 - confidence

    low, high = 0.0, 1.0
    while not credible(high):
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if credible(middle) else (middle, high)
    return low


def one_run_guesses(canaries: int, mu: float, delta: float) -> int:
    """Returns how many canaries to guess, those with most evidence, so that most is certified on average."""
    draws = np.random.default_rng(0).normal(mu**2 / 2, mu, _DRAWN)
    strongest = draws[np.argsort(-np.abs(draws))] > 0

    def expected(guesses: int) -> float:
        right = strongest[: max(1, round(_DRAWN * guesses / canaries))].mean()
        return one_run_epsilon(canaries, guesses, round(guesses * float(right)), delta)

    choices = sorted({max(1, round(canaries * step / 20)) for step in range(1, 21)})
    return max(choices, key=expected)


def _one_run_chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The chance of so many right guesses, at most, under (ε, δ)."""
    binomial = _stats().binom(guesses, 1 / (1 + math.exp(-epsilon)))
    likely = float(binomial.sf(right - 1))
    fewer = np.arange(1, right + 1)
    share = float(np.max(np.cumsum(binomial.pmf(right - fewer)) / fewer, initial=0.0))
    return min(1.0, likely + 2 * canaries * delta * share)


def _inverse(probability: float) -> float:
    if probability <= 0:
        return -math.inf
    return math.inf if probability >= 1 else _normal.inv_cdf(probability)


def _stats() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise SottovoceError("bounds of guesses need scipy: pip install 'sottovoce[audit]'") from None
    return stats
