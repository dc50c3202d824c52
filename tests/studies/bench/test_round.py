"""The benchmark of a round measures the round that it says."""

from __future__ import annotations

from pathlib import Path

from studies.bench.round import SETTINGS, made_up, measure, open_session


def test_the_figures_are_named_and_positive() -> None:
    found = measure(rounds=1, channels=("direct",))
    assert found.keys() == {"round_over_gradients", "direct_ms", "gradients_ms"}
    assert all(value > 0 for value in found.values())


def test_the_plan_is_of_333_records_and_two_clients_a_round(tmp_path: Path) -> None:
    records = made_up(SETTINGS["participants"] * SETTINGS["records_per_client"])
    session = open_session(records, tmp_path / "run", rounds=2, channel="direct")
    plan = session.simulation.blueprint.plan
    session.close()
    assert (plan.gradient_records, plan.clients_per_round, plan.coefficients) == (333, 2, 16384)
