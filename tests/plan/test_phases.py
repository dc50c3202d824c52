"""The phases of a run: their order, who releases, with which model, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from sottovoce.data import Facts
from sottovoce.plan.catalog import CONTEXTS
from sottovoce.release.blueprint import phases
from sottovoce.release.once import ONCE
from tests.small import built, small_plan

BLEND = {"method": "blend", "learning_rate": 0.5}
SHARES = {**BLEND, "context": "shares", "context_share": 0.05, "confusion_share": 0.02}


def told(**changes: Any) -> list[str]:
    return [
        f"{phase.kind} by {phase.by} after {phase.after} with {phase.model}"
        for phase in phases(small_plan(rounds=2, **changes))
    ]


ROUNDS = ["gradient by called after 0 with own", "gradient by called after 1 with own"]


def test_contexts_that_need_no_model_come_first() -> None:
    assert told(context="labels") == [
        "context by participants after 0 with none",
        "context by future after 0 with none",
        *ROUNDS,
    ]


def test_contexts_made_with_a_model_come_after_the_rounds_before_theirs() -> None:
    assert told(context="predictions", context_round=2) == [
        ROUNDS[0],
        "context by participants after 1 with shared",
        "context by future after 1 with shared",
        ROUNDS[1],
    ]


def test_future_clients_that_predict_come_last_after_the_confusions_of_participants() -> None:
    assert told(**SHARES) == [
        "context by participants after 0 with none",
        *ROUNDS,
        "confusion by participants after 2 with shared",
        "context by future after 2 with shared",
    ]


def test_a_public_context_leaves_rounds_alone() -> None:
    assert told(method="direct", context="public") == ROUNDS


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_run_releases_and_pays_for_what_its_phases_say_and_nothing_else(context: str) -> None:
    plan = small_plan(**{**SHARES, "context": context, "context_round": 2, "gradient_records": 40})
    made = built(plan, Facts((1, 28, 28), 10))
    once = [phase.kind for phase in made.once]
    assert set(made.releases_of(0)) == {"gradient", *once}
    assert made.participant_counts(3) == {"gradient": 3, **dict.fromkeys(once, 1)}
    assert made.future_counts == {phase.kind: 1 for phase in made.future}
    assert made.epsilon(made.participant_counts(made.releases_max), 0) <= plan.epsilon * (1 + 1e-9)
    shared = sum(phase.model == "shared" for phase in made.once)
    assert made.once_downlink_bytes == 4 * plan.participants * made.coefficients * shared
    assert (shared > 0) == (CONTEXTS[context].uses_model or CONTEXTS[context].predicted_for_future)


def test_what_is_paid_by_a_share_costs_that_share() -> None:
    made = built(small_plan(**SHARES, gradient_records=40), Facts((1, 28, 28), 10))
    spent = made.budget.mu_squared
    costs = {phase.kind: made.releases_of(0)[phase.kind].mu_squared / spent for phase in made.once}
    assert costs == pytest.approx({"context": 0.05, "confusion": 0.02})
    assert {phase.kind: phase.share for phase in made.once} == {"context": 0.05, "confusion": 0.02}


def test_every_kind_but_the_gradient_is_released_once() -> None:
    assert ONCE == ("context", "confusion", "calibration", "centre")
