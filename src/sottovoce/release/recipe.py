"""How much each part of a blended coefficient vector moves: weights, step and own shares; and the clip bound.

Method `blend` gives client i the coefficients a_i = √s_i·shared + √g·W φ(c_i) + √v_i·own_i, with shares
s_i + g + v_i = 1. All parts move by the same release. Everything here follows from public numbers, sizes and
noise: N_i = σ_i/√T is the noise of client i's mean release over the whole run, N_0 that of the weighted mean.

There are two recipes. Features say much, and a clip keeps them from diverging. On tables (`records.toml` with
columns, a linear model) the clip bound follows the noise: where there is much, gradients are cut short, and a
calibration mends what that does to probabilities; where there is little, none is cut, and no step is longer
than the curvature of the loss allows. Own parts of classes go far, and after the last round keep of how they
differ what chance alone does not explain (`kept_parts`): sites that are alike have hardly any then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.data import Facts
from sottovoce.data.tables import schema
from sottovoce.plan import Plan
from sottovoce.plan.catalog import OPTIMIZERS, TASKS
from sottovoce.plan.recipes import Recipe, open_recipe

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """What a recipe says of some records: how far noise alone may move an output in a run, the largest steps,
    own shares, and the clip bound."""

    recipe: Recipe
    drift: float
    """Through the shared part."""
    own_drift: float
    """Through an own part beside it."""
    summed_drift: float
    """Through an own part with noise in a sum."""
    alone_drift: float
    """Through an own part alone."""
    largest_step: float
    summed_step: float
    """With noise in a sum."""
    own_share: float
    """The largest."""
    summed_shares: tuple[float, float]
    """With noise in a sum everybody has the same: the least, and what it is where no noise shortens the
    shared part's steps. Where noise does, it is less, because own parts take from what all learn together."""
    clips: tuple[float, float]
    """The least and the largest clip bound."""
    clip_noise: float = 0.0
    """N_0 at a clip bound between the two."""
    bias_scale: float = 1.0
    """How far a coefficient of a bias moves it."""
    luck: float = 0.0
    """How far each number of one record's gradient lies from its mean: which records a site happens to
    have is noise to its own part, too."""
    centred: bool = False
    """Inputs are measured from their released mean."""
    categorical: float = 0.0
    """The share of inputs that are categories."""
    rounds: int = 0
    """How many there are at least."""
    curvatures: tuple[float, float] | None = None
    """How far the loss typically curves in a weight and in a bias. Where it is given own parts move as far as
    their noise allows, whatever luck is, and are shrunk at the end (`kept_parts`)."""


_FEATURES = Facts((1,), 2)
"""As much as a recipe has to know of records of classes that a feature map describes."""


def bounds(plan: Plan, facts: Facts) -> Bounds:
    """What the plan's recipe says of its records, of which only the facts are known.

    >>> bounds(Plan(), Facts((2048,), 10)).drift
    2.5
    """
    recipe = open_recipe(plan.recipe)
    task = recipe.tasks[facts.task]
    agreed = None if facts.source is not None or plan.model != "linear" else schema.of(facts)
    if task.tables is None or agreed is None or agreed.array is not None:
        own, shares = recipe.own_drift * task.reach, (recipe.own_shares[0], recipe.summed_shares[0])
        drifts = recipe.drift * task.reach, own, own, recipe.alone_drift * task.reach
        steps = task.largest_step, min(recipe.summed_step, task.largest_step)
        return Bounds(recipe, *drifts, *steps, *shares, (recipe.features_clip, recipe.features_clip))
    tables = task.tables
    # Half of what momentum bears: v ← βv + g is stable up to η = 2(1 + β)/curvature, and moves η/(1 − β).
    heavy = plan.momentum if OPTIMIZERS[plan.optimizer].momentum else 0.0
    step = (1 + heavy) / (1 - heavy) / tables.curvature
    summed, alone = (drift * task.reach for drift in recipe.table_drifts)
    drifts = tables.drift, tables.own_drift, summed, alone
    least, most = tables.clips
    if TASKS[facts.task].class_shares and not plan.calibration:
        least = recipe.uncut
    whole = plan.traits.whole_model or not plan.coefficients
    # Values spread less than bounds say, and the constant input is the longest, unless spreads are stated.
    scale = tables.bias_scale if whole and not agreed.spreads_stated else 1.0
    shares = recipe.own_shares[1], recipe.summed_shares[1]
    found = Bounds(recipe, *drifts, step, step, *shares, (least, most), tables.clip_noise, scale, tables.luck)
    if not whole or not TASKS[facts.task].class_shares:
        return found
    curvatures = recipe.curvature / facts.shape[0], recipe.curvature * (plan.bias_scale or scale) ** 2
    return replace(
        found,
        own_share=recipe.own_shares[2],
        curvatures=curvatures,
        centred=not agreed.spreads_stated,
        categorical=agreed.categorical,
        rounds=tables.rounds,
    )


def clip_bound(found: Bounds, plan: Plan, sizes: Sequence[int], mu: float) -> float:
    """C of a plan that leaves it open: on tables longer where there is less noise, within its bounds.

    `sizes` are those of all participants, of which each has μ for all its gradients.

    >>> from sottovoce.plan.recipes import V0_2
    >>> drifts = (2.0, 0.5, 0.25, 1.0)
    >>> table = Bounds(V0_2, *drifts, 19.0, 19.0, 0.15, (0.0, 0.3), (0.25, 2.0), clip_noise=0.0015)
    >>> [round(clip_bound(table, Plan(), [1000] * 12, mu), 2) for mu in (0.01, 0.4, 1.0)]
    [0.25, 1.04, 2.0]
    """
    counts = np.asarray(counted_sizes(plan, sizes), dtype=np.float64)
    if plan.place.summed:
        noise = 2.0 / mu / float(counts.sum())
    else:
        weights = counts**plan.weighting / np.sum(counts**plan.weighting)
        noise = 2.0 / mu * math.sqrt(float(np.sum((weights / np.asarray(sizes)) ** 2)))
    least, most = found.clips
    return min(most, max(least, found.clip_noise / noise)) if noise > 0 else most


@dataclass(frozen=True)
class Blending:
    """The public numbers of a blend, by participant."""

    weights: Reals
    """How much a participant's release counts in the shared part; they sum to 1."""
    step: float
    """η of the shared and generated parts."""
    own_steps: Reals
    """η of each own part, which is never divided by the number of clients."""
    individual: Reals
    """v_i."""
    generated: float
    """g."""
    attraction: float
    """λ, the proximal strength of method `mean-regularized`, which shares the step."""
    own_noise: Reals
    """How far chance, noise and luck, moves a weight and a bias of each √v_i·own_i in a run, (n, 2)."""
    least_kept: Reals
    """The share of an own part that is kept at the end, whatever chance explains; 1: it stays as it is."""
    caution: float
    """How many times chance is taken to explain what it does, when own parts are shrunk."""

    @property
    def shared(self) -> Reals:
        """s_i."""
        return 1.0 - self.generated - self.individual

    def numbers(self) -> dict[str, Reals]:
        """What no key of the plan says, by name: it stands in a run's state."""
        return {name: np.asarray(getattr(self, name), dtype=np.float64) for name in _OF_A_RECIPE}

    @classmethod
    def stored(cls, plan: Plan, numbers: Mapping[str, Any]) -> Self | None:
        """From such numbers; None if there are none, as in files of version 0.2."""
        if not numbers:
            return None
        values: dict[str, Any] = {name: np.asarray(numbers[name], np.float64) for name in _OF_A_RECIPE}
        values.update({name: float(values[name]) for name in ("step", "caution")})
        return cls(**values, generated=plan.generated, attraction=plan.attraction)


_OF_A_RECIPE = ("weights", "step", "own_steps", "individual", "own_noise", "least_kept", "caution")


def counted_sizes(plan: Plan, sizes: Sequence[int]) -> tuple[int, ...]:
    """For how many records each participant counts in weights; sizes are declared, and nobody can check them.

    >>> counted_sizes(Plan(), [90, 80, 2**31])
    (90, 80, 900)
    >>> counted_sizes(Plan(counted_records=85), [90, 80, 2**31])
    (85, 80, 85)
    """
    median = sorted(sizes)[(len(sizes) - 1) // 2]
    most = plan.counted_records or open_recipe(plan.recipe).largest_count * median
    return tuple(min(size, most) for size in sizes)


def blending(
    plan: Plan,
    sizes: Sequence[int],
    sigmas: Sequence[float],
    releases: int,
    summed: float | None = None,
    within: Bounds | None = None,
) -> Blending:
    """The public numbers of a blend `within` the bounds of a recipe, by default those of features.

    Weights ∝ m_i^weighting; unless the plan fixes them, η = d/(T N_0) and v_i = min(½, o/(T η N_i)).

    d and o are the recipe's drifts, 2.5 and 0.5 on features, and ½ is its largest own share. For tables of
    classes see `_way`. On tables the luck of which records a site has counts in N_i², too; where own parts
    are shrunk at the end it decides about what is kept in any case.
    `sizes` are those of `counted_sizes`. With noise at the server `summed` is what a client's coefficients
    see of it in a round, and `sigmas` what the own parts do, σ/w_i: noise there is of √v_i times that, so own
    parts get shorter steps.

    >>> two = {"preset": "tuned", "context": "public", "participants": 2, "clients_per_round": 2}
    >>> plan = Plan.load(overrides={**two, "method": "blend", "learning_rate": 0, "weighting": 1.5})
    >>> two = blending(plan, sizes=[1000, 250], sigmas=[0.05, 0.2], releases=40)
    >>> two.individual.round(3).tolist(), round(two.step, 1)
    ([0.199, 0.05], 8.0)
    """
    found = within or bounds(plan, _FEATURES)
    counts = np.asarray(sizes, dtype=np.float64)
    weights = counts**plan.weighting / np.sum(counts**plan.weighting)
    noise, luck = np.asarray(sigmas) / math.sqrt(releases), found.luck / np.sqrt(counts)
    shared_noise = math.sqrt(float(np.sum((weights * noise) ** 2)))
    largest = found.largest_step
    if summed is not None:
        shared_noise, largest = summed / math.sqrt(releases), found.summed_step
    # Momentum b ← βb + g moves 1/(1 − β) times as far as a mean of gradients would.
    slower = 1.0 - plan.momentum if OPTIMIZERS[plan.optimizer].momentum else 1.0
    far = _bounded(found.drift, releases * shared_noise, largest)
    if found.curvatures:
        told = float(counts.sum()) / releases
        far = _way(found, shared_noise, releases, largest, told, min(1.0, plan.clip or 1.0))
    step = plan.learning_rate or slower * far

    def own_parts(luck: Reals) -> tuple[Reals, Reals]:
        """Returns v_i, and the steps of own parts."""
        if plan.individual >= 0:
            individual = np.full(len(counts), plan.individual)
        elif summed is not None:
            least, most = found.summed_shares
            individual = np.full(len(counts), max(least, most * far / largest) * (1 - plan.generated))
        else:
            wanted = found.own_drift / np.maximum(releases * far * np.hypot(noise, luck), 1e-300)
            individual = np.where(noise > 0, np.minimum(found.own_share, wanted), 0.0) * (1 - plan.generated)
        own = np.full(len(counts), step)
        if plan.individual == 1 and not plan.learning_rate:
            alone = [_bounded(found.alone_drift, releases * value, found.largest_step) for value in noise]
            own = slower * np.array(alone)
        elif summed is not None:
            seen = releases * np.sqrt(individual) * np.hypot(noise, np.sqrt(individual) * luck)
            own = np.minimum(step, [slower * _bounded(found.summed_drift, value, largest) for value in seen])
        return individual, own

    individual, own = own_parts(luck)
    kept, by_chance = np.ones(len(counts)), np.zeros((len(counts), 2))
    left_open = plan.individual < 0 and plan.averaging > 0 and OPTIMIZERS[plan.optimizer].linear
    if found.curvatures and left_open:
        # In a sum noise is small, and what luck allows is too much for sites of some thirty records.
        cautious = individual * own * (1.0 if summed is None else found.recipe.summed_luck)
        individual, own = own_parts(np.zeros(len(counts)))
        kept = np.divide(cautious, individual * own, out=kept, where=individual > 0)
        far_noise, far_mean = _reach(releases, 1.0 - slower, plan.averaging)
        seen = own * (individual if summed is None else np.sqrt(individual)) * np.asarray(sigmas) * far_noise
        # The records that a site happens to have lead it as far as its steps go, or as their best fit lies.
        curved = np.array(found.curvatures)
        gains = np.minimum((own * individual * far_mean)[:, None], 1.0 / curved)
        by_chance = np.hypot(seen[:, None], np.sqrt(curved / counts[:, None]) * gains)
    caution = found.recipe.caution
    return Blending(weights, step, own, individual, plan.generated, plan.attraction, by_chance, kept, caution)


def kept_parts(found: Blending, parts: Reals, participants: Sequence[int], classes: int) -> Reals:
    """What is kept of own parts √v_i·own_i (n, k) of a linear model, by James and Stein's rule.

    How parts differ from their weighted mean has a mean square e over sites and coefficients, of which chance
    alone explains n: they keep 1 − 1.25·n/e of it, or `least_kept` if that is more. Weights have a share of
    their own and so have biases, the last coefficients, one for each class. All of it is post-processing.

    >>> chance, least = np.full((2, 2), 3.0), np.zeros(2)
    >>> two = Blending(np.full(2, 0.5), 1.0, np.ones(2), np.full(2, 0.1), 0.0, 0.0, chance, least, 1.25)
    >>> weights_and_biases = np.array([[4.0, -4.0, 9.0, -9.0], [-4.0, 4.0, -9.0, 9.0]])
    >>> kept_parts(two, weights_and_biases, [0, 1], classes=2)[0].round(2).tolist()
    [2.59, -2.59, 8.38, -8.38]
    """
    chosen = list(participants)
    weights, chance = found.weights[chosen], np.sum(found.own_noise[chosen] ** 2, axis=0)
    common = weights @ parts / weights.sum()
    apart = parts - common
    for block, explained in zip((slice(None, -classes), slice(-classes, None)), chance, strict=True):
        differing = apart[:, block].reshape(len(parts), classes, -1)
        # A softmax does not see what all classes have in common, and no signal lies there.
        differing = differing - differing.mean(axis=1, keepdims=True)
        energy = float(np.sum(np.mean(differing**2, axis=(1, 2)))) * classes / (classes - 1)
        kept = max(0.0, 1.0 - found.caution * float(explained) / energy) if energy > 0 else 0.0
        apart[:, block] *= np.maximum(found.least_kept[chosen], kept)[:, None]
    result: Reals = common + apart
    return result


def _way(found: Bounds, noise: float, releases: int, largest: float, records: float, clip: float) -> float:
    """Returns the steps of a table of classes, of `records` a release.

    Its drift d is multiplied by ∛(N_0/n), or 1 if that is more, with n the noise that a clip bound is meant
    to leave; nobody goes further than records tell (`told`). The steps of a model of numbers alone and of one
    of categories alone are averaged, as logarithms, by the shares of both among the inputs.
    """
    recipe, share, told = found.recipe, found.categorical, found.recipe.told
    drift = found.drift * max(1.0, noise / found.clip_noise) ** recipe.rise
    numbers = _bounded(drift, releases * noise, min(largest, told[0] * records))
    categories = _bounded(recipe.soon * drift, releases * noise, min(largest, told[1] * records / clip))
    return float(numbers ** (1.0 - share) * categories**share)


def _reach(releases: int, momentum: float, averaging: float) -> tuple[float, float]:
    """Returns how far a mean over the last rounds is moved at a step of 1: by noise of 1 in every release, as
    a deviation, and by releases of 1."""
    last = max(1, round(averaging * releases))
    reached = np.cumsum((1.0 - momentum ** np.arange(1, releases + 1)) / (1.0 - momentum))[::-1]
    before = np.append(reached[last:], np.zeros(last))
    moved = (reached - before) / last
    return float(np.linalg.norm(moved)), float(moved.sum())


def _bounded(drift: float, noise: float, largest: float) -> float:
    return min(largest, drift / noise) if noise > 0 else largest
