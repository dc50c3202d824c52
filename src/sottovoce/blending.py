"""How much each part of a blended coefficient vector moves: weights, step and own shares.

Method `blend` gives client i the coefficients a_i = √s_i·shared + √g·W φ(c_i) + √v_i·own_i, with shares
s_i + g + v_i = 1. All parts move by the same release. Everything here follows from public numbers, sizes and
noise: N_i = σ_i/√T is the noise of client i's mean release over the whole run, N_0 that of the weighted mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.catalog import OPTIMIZERS, TASKS, Task
from sottovoce.plan import Plan

Reals = NDArray[np.float64]

DRIFT, OWN_DRIFT, ALONE_DRIFT = 2.5, 0.5, 2.0
"""What noise alone may move a logit in a run: through the shared part, the own part, an own part alone."""
LARGEST_OWN_SHARE = 0.5
LARGEST_COUNT = 10
"""Times the median client: for more records nobody counts, unless the plan says for how many."""
SUMMED_STEP = 300.0
"""With noise at the server the step is bounded by what training bears, and own parts by their steps."""


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

    @property
    def shared(self) -> Reals:
        """s_i."""
        return 1.0 - self.generated - self.individual


def counted_sizes(plan: Plan, sizes: Sequence[int]) -> tuple[int, ...]:
    """For how many records each participant counts in weights; sizes are declared, and nobody can check them.

    >>> counted_sizes(Plan(), [90, 80, 2**31])
    (90, 80, 900)
    >>> counted_sizes(Plan(counted_records=85), [90, 80, 2**31])
    (85, 80, 85)
    """
    median = sorted(sizes)[(len(sizes) - 1) // 2]
    most = plan.counted_records or LARGEST_COUNT * median
    return tuple(min(size, most) for size in sizes)


def blending(
    plan: Plan,
    sizes: Sequence[int],
    sigmas: Sequence[float],
    releases: int,
    summed: float | None = None,
    task: Task = TASKS["classes"],
) -> Blending:
    """Weights ∝ m_i^weighting; unless the plan fixes them, η = 2.5/(T N_0) and v_i = min(½, 0.2·N_0/N_i).

    `sizes` are those of `counted_sizes`. With noise at the server `summed` is what a client's coefficients
    see of it in a round, and `sigmas` what the own parts do, σ/w_i: noise there is of √v_i times that, so own
    parts get shorter steps.

    >>> two = {"preset": "tuned", "context": "public", "participants": 2, "clients_per_round": 2}
    >>> plan = Plan.load(overrides={**two, "method": "blend", "learning_rate": 0, "weighting": 1.5})
    >>> found = blending(plan, sizes=[1000, 250], sigmas=[0.05, 0.2], releases=40)
    >>> found.individual.round(3).tolist(), round(found.step, 1)
    ([0.199, 0.05], 8.0)
    """
    counts = np.asarray(sizes, dtype=np.float64)
    weights = counts**plan.weighting / np.sum(counts**plan.weighting)
    noise = np.asarray(sigmas) / math.sqrt(releases)
    shared_noise = math.sqrt(float(np.sum((weights * noise) ** 2)))
    largest = task.largest_step
    if summed is not None:
        shared_noise, largest = summed / math.sqrt(releases), min(SUMMED_STEP, largest)
    # Momentum b ← βb + g moves 1/(1 − β) times as far as a mean of gradients would.
    slower = 1.0 - plan.momentum if OPTIMIZERS[plan.optimizer].momentum else 1.0
    step = plan.learning_rate or slower * _bounded(DRIFT * task.reach, releases * shared_noise, largest)
    if plan.individual >= 0:
        individual = np.full(len(counts), plan.individual)
    elif summed is not None:
        individual = np.full(len(counts), LARGEST_OWN_SHARE * (1 - plan.generated))
    else:
        quieter = shared_noise / np.maximum(noise, 1e-300)
        individual = np.minimum(LARGEST_OWN_SHARE, OWN_DRIFT / DRIFT * quieter) * (1 - plan.generated)
    own = np.full(len(counts), step)
    if plan.individual == 1 and not plan.learning_rate:
        alone = ALONE_DRIFT * task.reach
        own = np.array([slower * _bounded(alone, releases * value, task.largest_step) for value in noise])
    elif summed is not None:
        seen = releases * np.sqrt(individual) * noise
        own = np.minimum(step, [slower * _bounded(OWN_DRIFT * task.reach, value, largest) for value in seen])
    return Blending(weights, step, own, individual, plan.generated, plan.attraction)


def _bounded(drift: float, noise: float, largest: float) -> float:
    return min(largest, drift / noise) if noise > 0 else largest
