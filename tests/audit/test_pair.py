"""The worst pair is as far apart as is charged for, in every release; a given pair differs in one unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.audit.game import play
from sottovoce.audit.pair import (
    Pair,
    busiest,
    given_pair,
    with_unit,
    worst_blueprint,
    worst_pair,
    worst_records,
)
from sottovoce.data import ClientRecords, Records
from sottovoce.release.once.centre import cut
from sottovoce.training.client import Asked, Client

from .toys import BEST, CENTRAL, CENTRED, SHARED, toy

MOMENTS = {
    "preset": "tuned",
    "method": "factorized",
    "model": "linear",
    "coefficients": 0,
    "context_records": 10,
}
PLANS: dict[str, dict[str, Any]] = {
    "best": BEST,
    "central": CENTRAL,
    "shared": SHARED,
    "public": {"seeded": True},
    "central, public": {"seeded": True, "preset": "central", "rounds": 3},
    "a long clip": {**BEST, "clip": 7.0},
    "moments": {**MOMENTS, "context": "moments", "seeded": True},
    "predictions": {**MOMENTS, "context": "predictions", "context_round": 2, "seeded": True},
    "some clients a round": {**BEST, "clients_per_round": 2, "rounds": 4},
    "centred": CENTRED,
    "centred, with class shares": {**BEST, "centring": 0.08},
}
BY_INPUTS = {"calibration": -1.0, "context": -1.0, "confusion": -1.0}
"""Records with opposite inputs, the worst pair of centred plans, are of one class."""

LEAST = {"calibration": 0.45}
"""Two records that are both taken for what they are not, the worst pair of all other releases, tell as much
of a slope: they differ in shifts alone. `tests/release/once/test_calibration.py` has pairs that come near its
bound."""


@pytest.mark.parametrize("plan", PLANS)
def test_the_worst_pair_moves_every_release_as_far_as_is_charged(tmp_path: Path, plan: str) -> None:
    pair = worst_pair(*toy(tmp_path, **PLANS[plan]))
    kinds = set(pair.blueprint.participant_counts(1))
    for number, file in enumerate(pair.files):
        seen = play(pair, number, file)
        assert set(seen.ratios) == kinds
        least = BY_INPUTS if "centred" in plan else LEAST
        for kind, ratio in seen.ratios.items():
            assert least.get(kind, 0.99) < ratio <= 1 + 1e-9, kind
        assert seen.faults == []
        assert 0 < seen.charged <= pair.blueprint.budget.mu_squared * (1 + 1e-9)


@pytest.mark.parametrize("noise", [{}, CENTRAL, SHARED], ids=["client", "server", "shared"])
@pytest.mark.parametrize("at", [[0, 0, 0, 1.3], [0, 0, 0, -1.3], [0.65] * 4, [-0.65] * 4])
def test_the_worst_pair_of_a_centred_plan_is_the_worst_wherever_the_centre_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: dict[str, Any], at: list[float]
) -> None:
    monkeypatch.setattr("sottovoce.training.server.centre", lambda *_: torch.tensor(at))
    pair = worst_pair(*toy(tmp_path, **{**noise, **CENTRED}))
    seen = play(pair, 0, pair.files[0])
    assert seen.ratios["gradient"] == pytest.approx(1.0, abs=0.01)
    assert seen.ratios["centre"] == pytest.approx(1.0, abs=1e-6)
    assert seen.faults == []


def test_a_given_pair_of_a_centred_plan_is_looked_for_where_inputs_are_measured_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blueprint, federation = toy(tmp_path, **CENTRED)
    seen, statistic = list[Asked](), Client.statistic
    monkeypatch.setattr(Client, "statistic", lambda *given: [seen.append(given[1]), statistic(*given)][1])
    given_pair(blueprint, federation)
    held = federation.participants[busiest(blueprint)]
    for one in seen:
        if one.kind == "gradient":
            assert one.coefficients is not None
            at = one.coefficients[blueprint.coefficients :]
            # Of its 24 records the first may be another, which moves their mean by 2.6/24 at most.
            assert (at - cut(held.train.x.double(), blueprint.recipe.longest).mean(dim=0)).norm() <= 2.6 / 24


@pytest.mark.parametrize(("task", "classes"), [("number", 1), ("labels", 3)])
def test_other_tasks_have_a_worst_pair_too(tmp_path: Path, task: str, classes: int) -> None:
    blueprint, federation = toy(tmp_path, seeded=True, calibration=0.0)
    facts = replace(blueprint.facts, task=task, classes=classes)
    other = worst_blueprint(replace(blueprint, facts=facts), 4)
    held = federation.participants[0]
    shape = (len(held.train), classes) if task == "labels" else (len(held.train),)
    train = replace(held.train, y=torch.ones(shape))
    held = replace(held, train=train, context=train[:0])
    first, second = (with_unit(held, one) for one in worst_records(other, torch.ones(1, 4)))
    seen = play(Pair("worst", other, "0", 0, (first, second)), 0, second)
    assert seen.ratios["gradient"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("plan", ["best", "central", "shared"])
def test_the_worst_pair_has_few_coordinates_and_all_else_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    monkeypatch.setattr("sottovoce.audit.pair.MOST_COORDINATES", 3)
    blueprint, federation = toy(tmp_path, **PLANS[plan])
    pair = worst_pair(blueprint, federation)
    assert pair.blueprint.facts.shape == (3,)
    assert {len(file.train) for file in pair.files} == {len(federation.participants[pair.participant].train)}
    assert (pair.blueprint.schedule == blueprint.schedule).all()
    played, planned = (one.releases_of(pair.participant) for one in (pair.blueprint, blueprint))
    # On the grid of shared noise what is charged for rounding grows with the coordinates, by 1 % at most.
    for kind in planned:
        assert played[kind].sigma == pytest.approx(planned[kind].sigma, rel=0.01)
        assert played[kind].sensitivity == pytest.approx(planned[kind].sensitivity, rel=0.01)
        assert played[kind].mu_squared == pytest.approx(planned[kind].mu_squared, rel=1e-9)
    for kind, ratio in play(pair, 0, pair.files[0]).ratios.items():
        assert LEAST.get(kind, 0.99) < ratio <= 1 + 1e-9, kind


def test_a_given_pair_is_of_given_records_and_moves_less_than_the_worst(tmp_path: Path) -> None:
    blueprint, federation = toy(tmp_path, **BEST)
    pair = given_pair(blueprint, federation)
    held = federation.participants[pair.participant]
    known = torch.cat([held.train.x, held.held_out.x])
    for file in pair.files:
        assert all(bool((known == x).all(dim=1).any()) for x in file.train.x)
    changed = (pair.files[0].train.x != pair.files[1].train.x).any(dim=1)
    assert int(changed.sum()) == 1
    assert torch.equal(pair.files[0].context.x, pair.files[0].train.x[: len(pair.files[0].context)])
    ratio = play(pair, 0, pair.files[0]).ratios["gradient"]
    assert 0.3 < ratio < 0.999


def test_a_unit_takes_the_place_of_a_unit_in_every_set(tmp_path: Path) -> None:
    train = Records(
        torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 2])
    )
    held = ClientRecords(train, train[:0], train[:5])
    other = Records(torch.full((1, 2), 99.0), torch.tensor([1]), torch.tensor([7]))
    changed = with_unit(held, other)
    assert changed.train.x[:3].tolist() == [[99.0, 99.0]] * 3
    assert torch.equal(changed.train.x[3:], train.x[3:])
    assert torch.equal(changed.train.unit, train.unit)
    assert changed.context.x[:3].tolist() == [[99.0, 99.0]] * 3
    assert train.x[0].tolist() == [0.0, 1.0], "the given records stay as they are"


def test_the_busiest_participant_is_played(tmp_path: Path) -> None:
    blueprint, _ = toy(tmp_path, **{**BEST, "clients_per_round": 1, "rounds": 4})
    counts = torch.bincount(torch.from_numpy(blueprint.schedule.ravel()), minlength=3)
    assert counts[busiest(blueprint)] == counts.max()
