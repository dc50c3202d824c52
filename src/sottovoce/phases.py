"""The phases of a run: who releases what, when, and with which model.

Participants release contexts before some round, gradients in every round to which the schedule calls them,
and the rest after the last one; future clients release a context when the model behind it is known.
Simulator, coordinator and onboarding walk these phases, and prices are those of what is released in them: a
new kind of release is an entry here, a statistic (`release`) and what the server makes of it (`server`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sottovoce.plan import Plan
from sottovoce.privacy.accounting import Kind

ONCE: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "gradient")
"""What a client releases once in a run."""


@dataclass(frozen=True)
class Phase:
    """Releases of one kind that clients make at one time: all of a role once, or those called to a round."""

    kind: Kind
    by: Literal["participants", "called", "future"]
    after: int
    """Rounds that are made before it."""
    model: Literal["none", "shared", "own"]
    """What the release is made with: records alone, the coefficients of a client of whom nothing is known, as
    they are when the phase begins, or the client's own ones."""
    share: float = 0.0
    """Its part of a participant's μ²; 0: it is paid as the gradients are."""


def phases(plan: Plan) -> tuple[Phase, ...]:
    """All phases of a run, in order.

    >>> from sottovoce.plan import Plan
    >>> shares = Plan(context="shares", context_share=0.05, method="blend", rounds=1)
    >>> [(phase.kind, phase.by, phase.model) for phase in phases(shares)]  # doctest: +NORMALIZE_WHITESPACE
    [('context', 'participants', 'none'), ('gradient', 'called', 'own'),
     ('confusion', 'participants', 'shared'), ('context', 'future', 'shared')]
    """
    context, end = plan.context_traits, plan.rounds
    found = [Phase("gradient", "called", number, "own") for number in range(end)]
    if context.released:
        after = plan.context_round - 1 if context.uses_model else 0
        model: Literal["none", "shared"] = "shared" if context.uses_model else "none"
        found.append(Phase("context", "participants", after, model, plan.context_share))
        if not context.predicted_for_future:
            found.append(Phase("context", "future", after, model))
    if plan.calibration:
        found.append(Phase("calibration", "participants", end, "own", plan.calibration))
    if context.predicted_for_future:
        found.append(Phase("confusion", "participants", end, "shared", plan.confusion_share))
        found.append(Phase("context", "future", end, "shared"))
    return tuple(sorted(found, key=lambda phase: (phase.after, phase.kind == "gradient")))
