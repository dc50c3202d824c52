"""What a plan says it will cost is what its run then costs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.privacy import accounting
from sottovoce.run import prepare
from sottovoce.run.cost import outline
from sottovoce.run.training import train
from tests.small import small_plan

from .test_folder import planned, sites


@pytest.mark.parametrize("changes", [{}, {"context": "public"}, {"schedule": "random", "accounting": "rdp"}])
def test_noise_epsilon_and_bytes_are_those_of_the_run(
    tmp_path: Path, records: Dataset, changes: dict[str, object]
) -> None:
    said, done = outline(small_plan(**changes)), train(small_plan(**changes), tmp_path / "run")
    assert (said["sigma"], said["sigma_context"]) == (done["sigma"], done["sigma_context"])
    assert said["epsilon"] == pytest.approx(done["epsilon"]["spent_max"], rel=1e-9)
    assert said["epsilon_future"] == done["epsilon"]["future_context"]
    assert (said["releases"], said["releases_max"]) == (done["uplink"]["releases"], done["releases_max"])
    assert said["uplink_bytes"] == done["uplink"]["bytes"]
    assert said["downlink_bytes"] == done["downlink"]["bytes"]


def test_without_noise_no_epsilon_is_promised() -> None:
    said = outline(small_plan(epsilon=float("inf")))
    assert (said["epsilon"], said["epsilon_min"], said["epsilon_future"]) == (None, None, None)


def test_a_public_dataset_is_costed_without_being_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: object) -> None:
        raise AssertionError("the dataset was loaded")

    monkeypatch.setattr(data, "load", fetched)
    blueprint = prepare.outline(
        small_plan(dataset="cifar10", context="moments", model="lenet", coefficients=4096)
    ).blueprint
    assert blueprint.facts.shape == (3, 32, 32)
    assert blueprint.plan.gradient_records == 96


def test_more_records_than_the_dataset_has_are_refused() -> None:
    with pytest.raises(PlanError, match="more than the 50000 of cifar10"):
        prepare.outline(small_plan(dataset="cifar10", context="moments", records_per_client=10_000))


def test_the_best_preset_is_costed_with_all_its_releases() -> None:
    said = outline(Plan.load(overrides={"preset": "best", "epsilon": 4, "channel": "direct"}))
    assert said["epsilon"] == pytest.approx(4.0)
    assert said["epsilon_future"] == pytest.approx(4.0)


def test_the_costs_of_a_folder_are_listed_site_by_site(tmp_path: Path) -> None:
    costs = outline(planned(sites(tmp_path / "sites"), future_clients="west"))
    assert [client["name"] for client in costs["clients"]] == ["001", "3", "north", "west"]
    assert all(client["epsilon"] == pytest.approx(4.0) for client in costs["clients"][:3])
    assert costs["clients"][0]["sigma"] > costs["clients"][2]["sigma"]
    assert costs["clients"][3]["epsilon"] == 0.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"delta": 0.002}, "δ = 0.002"),
        ({"epsilon": 1000}, "100.0 times in 100"),
        ({"epsilon": 0.01}, "nearly all noise"),
    ],
)
def test_what_nobody_can_mean_is_said_before_anything_is_spent(changes: dict[str, float], word: str) -> None:
    assert any(word in doubt for doubt in outline(small_plan(**changes))["doubts"])


def test_a_usual_plan_raises_no_doubt() -> None:
    assert outline(small_plan(epsilon=8))["doubts"] == []


@pytest.mark.parametrize("dataset", ["mnist-small", "mnist", "fashion-mnist", "cifar10"])
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_the_last_round_of_shared_noise_is_affordable_and_leaves_nothing(
    dataset: str, epsilon: float
) -> None:
    """Also: what is stated is at most 0.5 % above what continuous noise of the same variance would be."""
    plan = Plan.load(overrides={"preset": "shared", "dataset": dataset, "epsilon": epsilon})
    made = prepare.outline(plan).blueprint
    releases, spent = made.releases_of(0), 0.0
    for kind, count in made.participant_counts(made.releases_max).items():
        for _ in range(count):
            spent += releases[kind].charge("run", "client", 1).mu_squared
            assert spent <= made.budget.mu_squared * (1 + 1e-9)
    assert spent >= made.budget.mu_squared * (1 - 1e-9)
    sharing = made.sharing
    assert sharing is not None
    once = spent - made.releases_max * sharing.mu**2
    moved, variance = 2 * plan.clip / sharing.step, 64 * sharing.honest
    continuous = accounting.epsilon(once + made.releases_max * moved**2 / variance, plan.delta, "exact")
    assert continuous < epsilon <= 1.005 * continuous
    assert sharing.word == 16


def test_a_plan_says_what_shared_noise_promises_and_what_is_left_of_it() -> None:
    plan = Plan.load(overrides={"preset": "shared", "dataset": "mnist", "epsilon": 4})
    outlined = outline(plan)
    assert "2 of 3 helpers and 4 clients of a round together" in outlined["promise"]
    assert "while cryptography holds and one helper is honest" in outlined["promise"]
    shared = outlined["sharing"]
    assert (shared["clients"], shared["threshold"], shared["colluding"], shared["honest"]) == (40, 36, 4, 32)
    found = {honest: round(value, 2) for honest, value in shared["epsilon_by_honest"].items()}
    assert found == {40: 3.55, 36: 3.76, 32: 4.0, 24: 4.68, 16: 5.87, 8: 8.81, 1: 34.26}
    assert outlined["message_bytes"] == shared["helper_up_bytes"] == 40_980
    assert outlined["doubts"] == []
    alone = outline(plan.replace(threshold=5, helpers=1))
    assert any("nothing is gained" in doubt for doubt in alone["doubts"])
    assert "helpers and" not in alone["promise"]
    assert outline(small_plan())["sharing"] is None


def test_a_plan_with_noise_at_each_client_says_what_sharing_it_would_gain() -> None:
    """Against the numbers of both plans: all clients of one size, and 32 of 40 shares counted on."""
    plans = [
        Plan.load(overrides={"preset": name, "dataset": "mnist", "rounds": 40}) for name in ("best", "shared")
    ]
    best, shared = (outline(plan) for plan in plans)
    alone, together = best["sigma"] / math.sqrt(40), shared["sharing"]["sigma_total"]
    assert best["shared_gain"] == pytest.approx(alone / together, rel=2e-3)
    assert best["shared_gain"] == pytest.approx(math.sqrt(32))
    assert shared["shared_gain"] is None
    assert outline(small_plan())["shared_gain"] is None  # its method has no bound
