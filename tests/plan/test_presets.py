"""Presets: the paper's setting stays the paper's, and what a user chose wins."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from sottovoce.plan import Plan
from sottovoce.plan.presets import PRESETS, TUNED


@pytest.mark.parametrize("dataset", TUNED)
@pytest.mark.parametrize("preset", ["paper", "tuned", "best", "central"])
def test_every_preset_of_every_dataset_is_a_plan(preset: str, dataset: str) -> None:
    plan = Plan.load(overrides={"preset": preset, "dataset": dataset})
    assert (plan.preset, plan.dataset) == (preset, dataset)


def test_the_papers_setting_is_the_papers() -> None:
    plan = Plan.load(overrides={"preset": "paper", "dataset": "cifar10", "epsilon": 16})
    stated = {
        "participants": 40,
        "future_clients": 10,
        "rounds": 500,
        "clients_per_round": 2,
        "coefficients": 16384,
        "context": "moments",
        "context_records": 333,
        "gradient_records": 333,
        "schedule": "random",
        "accounting": "rdp",
        "basis": "unstructured",
        "delta": 1e-5,
        "clip": 1.0,
    }
    assert {name: getattr(plan, name) for name in stated} == stated


def test_no_preset_uses_labels_of_future_clients() -> None:
    for preset in PRESETS:
        for dataset in TUNED:
            plan = Plan.load(overrides={"preset": preset, "dataset": dataset})
            assert not plan.context_traits.future_uses_labels


def test_what_the_user_chose_wins_and_leaves_nothing_of_the_preset_behind() -> None:
    chosen = {"preset": "tuned", "dataset": "cifar10", "context": "labels", "learning_rate": 0.125}
    plan = Plan.load(overrides=chosen)
    assert (plan.context, plan.learning_rate, plan.context_round) == ("labels", 0.125, 0)


def test_central_is_best_with_the_noise_at_the_server_and_more_rounds() -> None:
    best, central = (
        Plan.load(overrides={"preset": name, "dataset": "cifar10", "epsilon": 4})
        for name in ("best", "central")
    )
    differing = {name for name in asdict(best) if getattr(best, name) != getattr(central, name)}
    assert differing == {"preset", "noise", "weighting", "rounds", "evaluate_every"}
    assert (central.noise, central.weighting) == ("server", 1.0)
