"""Recipes: the numbers that decide what a plan leaves open, each set of them under a name that plans state.

A name says which version brought the recipe, and has a fingerprint of its numbers: whoever changes one has
made another recipe. A run goes on with the recipe that it began with, or not at all; a new recipe stands
beside the old ones here. What a recipe makes of a run's evidence (sizes, noise) stands in the run's state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

from sottovoce.errors import SottovoceError

FIRST = "0.2-20b943c9"
"""What version 0.2.0 had without saying so: its finished runs are read by it."""


class UnknownRecipe(SottovoceError):
    """A recipe that this version does not have."""


@dataclass(frozen=True)
class Tables:
    """Of tables with a linear model."""

    curvature: float
    """How far the loss may curve, ½ or 1 times 2, for records of norm 1 and their constant input."""
    drift: float
    """What noise alone may move an output in a run, through the shared part."""
    own_drift: float
    """The same through an own part beside it."""
    luck: float
    """How far each number of one record's gradient lies from its mean."""
    clips: tuple[float, float]
    """The least and the largest clip bound: below the least all gradients have the same length, the largest
    cuts none."""
    bias_scale: float
    """How far a coefficient of a bias moves it."""
    clip_noise: float
    """The noise in the mean of all releases that a clip bound between the two leaves."""
    rounds: int = 0
    """How many there are at least, where nobody has said; 0: as many as the preset has."""


@dataclass(frozen=True)
class Task:
    """What depends on what is predicted."""

    reach: float = 1.0
    """How far noise may move an output in a run of `blend`, against a logit: numbers lie within −1…1."""
    largest_step: float = 500.0
    """η where there is little noise: a squared error diverges beyond it, a softmax saturates."""
    tables: Tables | None = None
    """None: tables are treated as features are."""


@dataclass(frozen=True)
class Calibrating:
    """What a calibration releases, and what is made of it (`release.once.calibration`)."""

    slopes: tuple[float, ...] = (0.4, 1.0, 2.5)
    """Those at which derivatives are taken."""
    reach: float = 2.0
    """Outputs count in the derivative of the slope up to this norm. They do not depend on the target, so that
    a calibrated model stays as it is whatever the bound."""
    shifted: float = 0.25
    """What the derivatives in shifts are multiplied by: one slope matters more than all shifts."""
    spreads: tuple[float, float] = (0.6, 0.2)
    """What slopes and shifts are taken to be where noise hides them, 1 and 0 but for these standard
    deviations: of a slope's logarithm, of a shift."""
    typical: tuple[float, float] = (2.0, 0.8)
    """The spread of outputs, and the deviation of its logarithm, that are typical before any is seen."""
    misfit: float = 0.005
    """How far derivatives may lie from those of typical outputs."""
    range: tuple[float, float] = (0.2, 4.0)
    """Of slopes."""
    most_shift: float = 3.0
    optimism: float = 6.0
    """Records that a model was trained with look as if it may be surer of them than it may be of others: a
    slope above 1 counts as its power 1/(1 + optimism · inputs/records)."""
    points: int = 25
    """Of the grid of slopes and spreads."""
    draws: int = 500
    """The outputs drawn for each."""
    errors: float = 3.0
    """Participants differ by what is beyond so many standard errors of noise."""
    most_spread: float = 1.0
    """By this variance at most."""
    least_spread: float = 0.3
    """To how much beside its noise each participant's difference is trusted, where they are averaged."""


@dataclass(frozen=True)
class Recipe:
    """All numbers that a run uses and no key of a plan says."""

    version: str
    """Which brought it."""
    tasks: Mapping[str, Task]
    drift: float
    """On features, what noise alone may move a logit in a run, through the shared part."""
    own_drift: float
    """Through the own part."""
    alone_drift: float
    """Through an own part alone."""
    table_drifts: tuple[float, float]
    """On tables: through an own part with noise in a sum, and alone; a whole output is 1."""
    largest_count: int
    """Times the median client: for more records nobody counts, unless the plan says for how many."""
    uncut: float
    """On tables of classes: about as long as a gradient is before training. Without a calibration nothing
    mends what a shorter clip bound does to probabilities."""
    curvature: float
    """Of a record's log loss in an output, p(1 − p) for a class that is neither sure nor excluded; inputs of
    a table have squares of 1 over their number in the mean."""
    soon: float
    """The share of a drift that a model of categories alone is worth: a category spreads as far as inputs can
    and is learned soon, where numbers use a part of their bounds; what follows is luck."""
    told: tuple[float, float]
    """How far each record may lead a model of tables of classes in a run, however little noise there is: one
    of numbers by its steps, one of categories by steps times the clip bound, up to a bound of 1."""
    rise: float
    """On tables of classes: the power by which drift grows with noise that the least clip bound leaves above
    what it is meant to. Some more is borne for a signal."""
    caution: float
    """Own parts are shrunk as if chance explained so many times as much of how they differ: what lowers a log
    loss a little may cost accuracy."""
    summed_step: float
    """With noise at the server the step is bounded by what training bears, and own parts by their steps."""
    summed_luck: float
    """In a sum noise is small, and what luck allows is too much for sites of some thirty records: so much of
    it is kept at least."""
    own_shares: tuple[float, float, float]
    """The largest share of an own part: on features, on tables, on tables of classes."""
    summed_shares: tuple[tuple[float, float], tuple[float, float]]
    """With noise in a sum, on features and on tables: the least, and what it is where no noise shortens the
    shared part's steps."""
    features_clip: float
    """The clip bound on features."""
    longest: float
    """Inputs count in their mean up to this norm; a table's are about 1 long, and few are longer."""
    smoothing: float
    """Of class shares, the least."""
    calibrating: Calibrating = field(default_factory=Calibrating)

    @cached_property
    def name(self) -> str:
        """What a plan calls it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


V0_2 = Recipe(
    version="0.2",
    tasks={
        "classes": Task(
            tables=Tables(
                curvature=1.0,
                drift=1.4,
                own_drift=0.5,
                luck=0.6,
                clips=(0.15, 2.0),
                bias_scale=0.4,
                clip_noise=0.001,
                rounds=100,
            ),
        ),
        "labels": Task(),
        "number": Task(
            reach=0.1,
            largest_step=10.0,
            tables=Tables(
                curvature=2.0,
                drift=0.15,
                own_drift=0.025,
                luck=0.05,
                clips=(0.25, 0.5),
                bias_scale=0.7,
                clip_noise=0.0005,
            ),
        ),
    },
    drift=2.5,
    own_drift=0.5,
    alone_drift=2.0,
    table_drifts=(0.25, 1.0),
    largest_count=10,
    uncut=1.0,
    curvature=0.2,
    soon=0.35,
    told=(4.5, 0.25),
    rise=1 / 3,
    caution=1.25,
    summed_step=300.0,
    summed_luck=0.5,
    own_shares=(0.5, 0.15, 0.25),
    summed_shares=((0.5, 0.5), (0.0, 0.2)),
    features_clip=0.5,
    longest=1.3,
    smoothing=0.02,
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (V0_2,)}
"""Those that this version has, by name."""
CURRENT = V0_2.name
"""That of new plans."""


def open_recipe(name: str) -> Recipe:
    """The recipe of that name; where this version has none, the error says which version has.

    >>> open_recipe("0.9-5eaf00d5")
    Traceback (most recent call last):
    sottovoce.plan.recipes.UnknownRecipe: recipe=0.9-5eaf00d5 is not known here: Sottovoce 0.9 has it, go on \
with that version, or train the plan anew
    """
    if name not in RECIPES:
        version = name.partition("-")[0]
        raise UnknownRecipe(
            f"recipe={name} is not known here: Sottovoce {version} has it, go on with that version, or train "
            "the plan anew"
        )
    return RECIPES[name]
