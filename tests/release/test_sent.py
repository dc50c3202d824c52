"""No honest server sends coefficients within a factor of ten of where clients cut them; a lying one gains
nothing by sending longer ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sottovoce.data import ClientRecords, Facts, Records
from sottovoce.plan import Plan
from sottovoce.release import sent as module
from sottovoce.release.blueprint import Blueprint
from sottovoce.run.training import train
from sottovoce.training.client import Client
from tests.run.toy import BLEND, GIVEN, SHARED, SHARES, records
from tests.small import built, small_plan

WHOLE = {**BLEND, "coefficients": 0}
PUBLIC = {"context": "public"}
CENTRED = {**WHOLE, "context_share": 0.05, "centring": 0.1, "calibration": 0.1}
BOUNDED: dict[str, dict[str, Any]] = {
    "global": {**PUBLIC, "method": "global"},
    "direct": {**PUBLIC, "method": "direct"},
    "mean-regularized": {**PUBLIC, "method": "mean-regularized"},
    "blend": BLEND,
    "alone": {**BLEND, "individual": 1.0},
    "momentum": {**BLEND, "momentum": 0.9},
    "generated": {**SHARES, "individual": 0.2, "generated": 0.5},
    "prior": {**SHARES, "learning_rate": 1e-3},
    "calibrated": {**WHOLE, "calibration": 0.1},
    "centred": CENTRED,
    "at-server": {**BLEND, "noise": "server", "weighting": 1.0},
    "shared": SHARED,
    "two-rounds-of-one": {**BLEND, "participants": 1, "clients_per_round": 1, "rounds": 2},
    "coded": {**BLEND, "downlink_bits": 4},
}
"""‖h‖ ≤ 1: how far such a run gets is known."""
LEARNED: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "deep-linear": {"method": "deep-linear"},
    "factorized": {},
    "radial": {**PUBLIC, "method": "radial"},
    "predictions": {"context": "predictions", "context_round": 2},
}
"""‖h‖ is learned, and multiplies itself where noise is all there is."""
SMALL = {
    "participants": 4,
    "future_clients": 1,
    "records_per_client": 60,
    "seeded": True,
    "evaluate_every": 0,
}
QUICK = {"seeded": True, "evaluate_every": 0}
PICTURES = {**SMALL, **QUICK, "dataset": "mnist-small", "model": "linear", "channel": "direct"}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"gradient_records": 48, "context_records": 24, "rounds": 40, "coefficients": 4096},
    "tuned": {"context_records": 24, "rounds": 40, "clients_per_round": 2},
    "best": {"features": "none", "feature_size": 0, "coefficients": 0},
    "central": {"features": "none", "feature_size": 0, "coefficients": 0},
    "shared": {"features": "none", "feature_size": 0, "coefficients": 0, "channel": "integers"},
}


def room(folder: Path, patch: pytest.MonkeyPatch, plan: Plan, dataset: Any = None) -> float:
    """How many times as long as what was ever sent in a run it might have been."""
    lengths, real = [0.0], Blueprint.cut

    def noted(self: Blueprint, sent: Tensor) -> Tensor:
        found = real(self, sent)
        lengths.append(float(sent[: self.coefficients].double().norm()) / self.longest_sent)
        assert found is sent
        return found

    patch.setattr(Blueprint, "cut", noted)
    train(plan, folder / "run", dataset=dataset)
    assert max(lengths) > 0
    return 1.0 / max(lengths)


def toy(**changes: Any) -> Plan:
    return Plan.load(overrides={**GIVEN, "rounds": 12, **changes})


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize("name", BOUNDED)
def test_no_honest_run_comes_near_the_bound(
    name: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room(tmp_path, monkeypatch, toy(**BOUNDED[name], epsilon=epsilon), records()) > 10


@pytest.mark.parametrize("epsilon", [4.0, math.inf])
@pytest.mark.parametrize("name", LEARNED)
def test_no_run_that_learns_its_h_and_anything_else_comes_near_the_bound(
    name: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room(tmp_path, monkeypatch, toy(**LEARNED[name], epsilon=epsilon), records()) > 10


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_comes_near_the_bound(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan.load(overrides={**PICTURES, "preset": preset, **PRESETS[preset], "epsilon": 4.0})
    assert room(tmp_path, monkeypatch, plan) > 10


@pytest.mark.parametrize("preset", ["best", "central", "shared"])
def test_no_preset_comes_near_the_bound_on_tables(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan.load(overrides={**QUICK, "dataset": "heart", "preset": preset, "epsilon": 2.0})
    assert room(tmp_path, monkeypatch, plan) > 10


def test_a_run_that_runs_away_is_cut_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, real = list[float](), Blueprint.cut

    def noted(self: Blueprint, sent: Tensor) -> Tensor:
        found = real(self, sent)
        used.append(float(found[: self.coefficients].double().norm()) / self.longest_sent)
        return found

    monkeypatch.setattr(Blueprint, "cut", noted)
    result = train(toy(method="deep-linear", epsilon=0.5), tmp_path / "run", dataset=records())
    assert max(used) == pytest.approx(1.0, rel=1e-6)
    assert result["rounds"] == 12


def held(count: int = 100) -> ClientRecords:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 28, 28, generator=generator)
    whole = Records(x, torch.randint(10, (count,), generator=generator))
    return ClientRecords(whole[:80], whole[80:], whole[:50])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gradient", {}),
        ("gradient", CENTRED),
        ("context", {"context": "predictions", "context_round": 1}),
        ("confusion", {**SHARES, "prior": "none"}),
        ("calibration", {**WHOLE, "calibration": 0.1}),
    ],
    ids=["gradient", "centred", "context", "confusion", "calibration"],
)
def test_longer_coefficients_do_what_those_at_the_bound_do(kind: Any, changes: dict[str, Any]) -> None:
    plan = small_plan(model="linear", gradient_records=40, **changes)
    made = built(plan, Facts((1, 28, 28), 10))
    client = Client("participant-0", held(), made, None, run="run", secret=bytes(32), participant=0)
    direction = torch.randn(made.coefficients, generator=torch.Generator().manual_seed(1))
    longest = direction * (made.longest_sent / direction.norm())
    behind = torch.full((784 if kind == "gradient" and plan.centring else 0,), 0.01)

    def statistic(factor: float) -> Tensor:
        sent = torch.cat([factor * longest, behind])
        return client.statistic(client.gradient(1, sent) if kind == "gradient" else client.once(kind, sent))

    beyond = statistic(2.0)
    for factor in (2.0**10, 2.0**100):
        assert torch.equal(statistic(factor), beyond)
    assert torch.allclose(beyond, statistic(1.0), atol=1e-5)
    assert not torch.allclose(beyond, statistic(0.0), atol=1e-5)
    assert client.faults == []


def test_what_is_within_the_bound_stays_as_it_is() -> None:
    made = built(small_plan(gradient_records=40), Facts((1, 28, 28), 10))
    sent = torch.randn(made.coefficients)
    assert made.cut(sent) is sent
    assert torch.isnan(made.cut(torch.full((made.coefficients,), math.inf))).all()


def test_the_bound_follows_from_the_plan_and_nothing_else() -> None:
    plan, facts = small_plan(gradient_records=40, method="direct", context="public"), Facts((1, 28, 28), 10)
    one, other = built(plan, facts), built(plan, facts)
    assert one.longest_sent == other.longest_sent
    assert built(plan.replace(rounds=8), facts).longest_sent > one.longest_sent
    factor = built(plan.replace(learning_rate=2 * plan.learning_rate), facts).longest_sent / one.longest_sent
    assert factor == pytest.approx(2.0)


def test_an_optimizer_of_ones_own_may_move_every_coefficient_by_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, facts = small_plan(gradient_records=40, epsilon=math.inf), Facts((1, 28, 28), 10)
    before = built(plan, facts).longest_sent
    nonlinear = replace(module.OPTIMIZERS["sgd"], linear=False)
    monkeypatch.setitem(module.OPTIMIZERS, "sgd", nonlinear)
    assert built(plan, facts).longest_sent == pytest.approx(before * math.sqrt(plan.coefficients))
