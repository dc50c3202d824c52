from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sottovoce.plan import Plan, keys
from sottovoce.plan.catalog import METHODS
from sottovoce.plan.checks import PlanError
from tests.small import small_plan


def test_the_paper_preset_is_the_papers_setting_to_the_letter() -> None:
    for dataset, rate in (("mnist", 0.1), ("cifar10", 0.2)):
        plan = Plan.load(overrides={"preset": "paper", "dataset": dataset})
        assert (plan.participants, plan.future_clients, plan.alpha) == (40, 10, 0.5)
        assert (plan.rounds, plan.clients_per_round, plan.schedule) == (500, 2, "random")
        assert (plan.context_records, plan.gradient_records, plan.clip, plan.delta) == (333, 333, 1.0, 1e-5)
        assert (plan.coefficients, plan.hidden, plan.learning_rate) == (16384, 100, rate)
        assert (plan.accounting, plan.context, plan.channel) == ("rdp", "moments", "direct")
        assert (plan.basis, plan.averaging, plan.momentum) == ("unstructured", 0.0, 0.0)


@pytest.mark.parametrize("preset", ["tuned", "best", "central"])
def test_our_presets_need_no_labels_of_future_clients(preset: str) -> None:
    for dataset in ("mnist-small", "mnist", "cifar10", "fashion-mnist", "mine.npz"):
        plan = Plan.load(overrides={"dataset": dataset, "preset": preset})
        assert not plan.context_traits.future_uses_labels
        assert (plan.accounting, plan.schedule, plan.gradient_records) == ("exact", "balanced", 0)


def test_the_default_is_the_best_preset_and_tuned_for_the_papers_methods() -> None:
    assert Plan.load().preset == "best"
    assert Plan.load(overrides=["method=mean-regularized"]).preset == "best"
    for method in ("factorized", "deep-linear", "full", "global", "direct", "radial"):
        assert Plan.load(overrides={"method": method}).preset == "tuned"
    assert Plan.load(overrides=["method=direct", "preset=best"]).preset == "best"


def test_another_context_than_class_shares_leaves_the_prior_behind() -> None:
    plan = Plan.load(overrides=["preset=best", "context=moments"])
    assert (plan.prior, plan.context_share) == ("none", 0.05)
    plan = Plan.load(overrides=["preset=best", "context=public"])
    assert (plan.prior, plan.context_share) == ("none", 0.0)


def test_features_are_for_the_linear_model() -> None:
    assert Plan.load(overrides=["dataset=cifar10"]).features == "scattering+patterns"
    assert Plan.load(overrides=["dataset=cifar10", "model=lenet"]).features == "none"
    assert Plan.load(overrides=["dataset=mine.npz"]).features == "auto"


def test_a_plan_comes_back_from_its_toml_unchanged(tmp_path) -> None:
    plan = small_plan(epsilon=3.7, delta=1e-6)
    path = tmp_path / "plan.toml"
    path.write_text(plan.to_toml())
    again = Plan.load(path)
    assert again == plan
    assert again.digest() == plan.digest()


def test_later_sources_win(tmp_path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('preset = "paper"\nepsilon = 4.0\n')
    assert Plan.load(path).epsilon == 4.0
    assert Plan.load(path, ["epsilon=2"]).epsilon == 2.0


def test_any_change_of_a_key_changes_the_digest() -> None:
    plan = small_plan()
    assert (
        len({plan.digest(), *(plan.replace(**{k: v}).digest() for k, v in (("seed", 9), ("clip", 2.0)))}) == 3
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_plan_without_naming_a_context(method: str) -> None:
    plan = small_plan(method=method)
    assert (plan.context == "public") == (method in ("global", "direct", "radial"))


@pytest.mark.parametrize(
    ("pair", "hint"),
    [
        ("epsilom=3", "did you mean 'epsilon'"),
        ("method=factorised", "did you mean 'factorized'"),
        ("preset=papers", "did you mean 'paper'"),
        ("channel=polr", "did you mean 'polar'"),
        ("epsilon=0", "above 0"),
        ("weighting=1e3", "4 or less"),
        ("epsilon=-1", "above 0"),
        ("epsilon=nan", "above 0"),
        ("delta=1", "between 0 and 1"),
        ("rounds=ten", "whole number"),
        ("rounds=2.5", "whole number"),
        ("seeded=perhaps", "true or false"),
        ("clients_per_round=99", "participants"),
        ("momentum=1", "below 1"),
        ("seed=-1", "0 or more"),
        ("seed=99999999999999999999", "below 2"),
        ("budget=1", "at least epsilon"),
        ("budget=inf", "finite"),
        ("rounds", "neither a plan file nor key=value"),
        ("context=predictions", "context_round"),
    ],
)
def test_bad_settings_get_one_line_that_says_what_to_do(pair: str, hint: str) -> None:
    with pytest.raises(PlanError, match=hint) as caught:
        Plan.load(overrides=[pair])
    assert "\n" not in str(caught.value)


def test_equal_plans_have_equal_digests() -> None:
    assert Plan(epsilon=8).digest() == Plan(epsilon=8.0).digest()


def test_contexts_scaled_by_differences_need_two_participants() -> None:
    with pytest.raises(PlanError, match="participants above 1"):
        small_plan(participants=1, clients_per_round=1, context="standardized")


def test_going_without_noise_must_be_said_to_be_a_simulation() -> None:
    with pytest.raises(PlanError, match="seeded=true"):
        small_plan(epsilon=float("inf"), seeded=False)


def test_a_file_that_is_no_plan_is_refused(tmp_path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\x00 not toml")
    with pytest.raises(PlanError, match="is not a plan"):
        Plan.load(path)
    with pytest.raises(PlanError, match="no plan at"):
        Plan.load(tmp_path / "missing.toml")


def test_every_key_explains_itself() -> None:
    assert all(text and len(text) < 100 for _, _, text in keys())


def test_the_documentation_lists_the_keys_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | `{default}` | {text} |" for name, default, text in keys()]


def test_keys_that_came_later_leave_the_digests_of_older_plans_as_they_were() -> None:
    # Written by 0.1.0, which had no `repeat`.
    assert Plan.load(overrides=["preset=tuned", "seeded=true"]).digest() == "4249eb12104a315d"
    draws = {small_plan(repeat=repeat).digest() for repeat in range(3)}
    assert len(draws) == 3


def test_a_plan_that_states_every_key_takes_nothing_from_what_its_preset_says_today(tmp_path: Path) -> None:
    """A plan of version 0.1 has no calibration, and its preset for records of one's own has one by now."""
    plan = Plan.load(overrides={"preset": "best", "dataset": "mine.npz"})
    assert plan.calibration > 0
    stated = [line for line in plan.to_toml().splitlines() if not line.startswith("calibration")]
    path = tmp_path / "plan.toml"
    path.write_text("\n".join(stated))
    assert Plan.load(path).calibration == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "factorized"}, "method=factorized has none"),
        ({"method": "blend", "weighting": 1.5}, "set weighting=1"),
        ({"method": "blend", "channel": "integers"}, "noise=server counts none of it"),
        ({"method": "blend", "context": "labels", "context_share": 0.0}, "set context_share"),
        ({"noise": "both"}, "noise=both is not known"),
    ],
)
def test_noise_at_the_server_is_refused_where_nothing_bounds_it(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        Plan.load(overrides={"noise": "server", "context": "public", **changes})


@pytest.mark.parametrize("method", ["blend", "direct", "global"])
def test_methods_whose_step_is_bounded_take_noise_at_the_server(method: str) -> None:
    plan = Plan.load(overrides={"noise": "server", "context": "public", "method": method})
    assert plan.place.at_server
    assert plan.weighting == 1.0


SHARED = {"preset": "shared", "dataset": "mnist-small"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "factorized", "learning_rate": 0.1}, "method=factorized has none"),
        ({"weighting": 1.5}, "set weighting=1"),
        ({"channel": "polar"}, "set channel=integers"),
        ({"channel": "direct"}, "set channel=integers"),
        ({"individual": 0.2}, "set individual=0"),
        ({"individual": -1}, "set individual=0"),
        ({"generated": 0.2}, "set individual=0 and generated=0"),
        ({"helpers": 0}, "set helpers"),
        ({"threshold": 3, "colluding": 3}, "threshold above colluding"),
        ({"threshold": 2, "colluding": 4}, "threshold above colluding"),
        ({"threshold": 17}, "fewer than threshold=17"),
        ({"participants": 1, "context": "public"}, "fewer than threshold=2"),
        ({"clients_per_round": 1}, "fewer than threshold=2"),
        ({"colluding": "0"}, "set colluding to 1 or more"),
        ({"context_share": 0.0}, "set context_share"),
        ({"epsilon": "inf", "seeded": True}, "no noise to share"),
    ],
)
def test_shared_noise_is_refused_where_it_cannot_hold(changes: dict[str, Any], reason: str) -> None:
    Plan.load(overrides=SHARED)
    with pytest.raises(PlanError, match=reason):
        Plan.load(overrides={**SHARED, **changes})


@pytest.mark.parametrize(
    ("clients", "threshold", "colluding"),
    [(2, 2, 1), (3, 2, 1), (10, 9, 1), (16, 14, 2), (30, 27, 3), (40, 36, 4), (1000, 900, 100)],
)
def test_nine_tenths_of_a_round_must_come_and_a_tenth_may_collude_unless_a_plan_says_otherwise(
    clients: int, threshold: int, colluding: int
) -> None:
    plan = Plan.load(overrides={**SHARED, "participants": clients})
    assert (plan.in_every_sum, plan.may_collude) == (threshold, colluding)
    said = Plan.load(overrides={**SHARED, "participants": 40, "threshold": 12, "colluding": 5})
    assert (said.in_every_sum, said.may_collude) == (12, 5)


def test_shared_noise_brings_what_it_goes_with() -> None:
    plan = Plan.load(overrides={"noise": "shared", "dataset": "mnist-small"})
    assert (plan.channel, plan.weighting, plan.individual, plan.generated) == ("integers", 1.0, 0.0, 0.0)
    assert plan.place.summed
    assert plan.place.shared
    assert not plan.place.at_server
    central, shared = (Plan.load(overrides={**SHARED, "preset": name}) for name in ("central", "shared"))
    assert shared == central.replace(preset="shared", noise="shared", channel="integers")
    assert Plan.load(overrides=shared.digested()).digest() == shared.digest()


def test_the_digest_of_a_plan_with_noise_at_the_client_is_what_it_was() -> None:
    assert "noise" not in Plan.load(overrides={"noise": "client"}).digested()
    assert Plan.load(overrides={"noise": "server", "method": "direct"}).digested()["noise"] == "server"


def test_a_folder_of_sites_takes_the_preset_that_needs_no_tuning_unless_one_is_named(tmp_path: Path) -> None:
    assert Plan.load(overrides={"dataset": str(tmp_path)}).preset == "best"
    assert Plan.load(overrides={"dataset": str(tmp_path), "preset": "tuned"}).preset == "tuned"


def test_a_file_of_version_0_1_may_say_the_default_of_a_key_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(small_plan().to_toml() + 'replay_gains = ""\n', encoding="utf-8")
    assert Plan.load(tmp_path / "plan.toml").digest() == small_plan().digest()
    with pytest.raises(PlanError, match="unknown plan key 'replay_gains'"):
        small_plan(replay_gains="run/rounds.jsonl")
