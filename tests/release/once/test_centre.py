"""A centre is released within its bound; whatever it is, gradients keep theirs, and models are of inputs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import Facts, Records
from sottovoce.data.tables import schema
from sottovoce.errors import SottovoceError
from sottovoce.models.architectures import given_name
from sottovoce.models.parameters import logits
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.plan.recipes import V0_2
from sottovoce.privacy.accounting import mu_squared
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import Blueprint, build
from sottovoce.release.once.calibration import LastLayer
from sottovoce.release.once.centre import Inputs, as_published, centre, measured_from
from sottovoce.run.finished import GeneratorFile, open_server
from sottovoce.run.prepare import _with_task
from sottovoce.run.training import train
from sottovoce.training.server import Server
from tests.release.test_recipe import TABLE, TARGETS
from tests.run.test_folder import planned, sites

FACTS = Facts((5,), 3)
LONGEST = V0_2.longest


def made(module: torch.nn.Module | None = None, **changes: object) -> Blueprint:
    given = {
        "preset": "best",
        "dataset": "mine.npz",
        "participants": 2,
        "features": "none",
        "bias_scale": 0.5,
    }
    given |= {"context_records": 8, "gradient_records": 8, "clip": 0.3, "counted_records": 8}
    return build(Plan.load(overrides={**given, **changes}), FACTS, module)


def some(records: int, far: float = 1.0, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = far * torch.randn(records, 5, generator=generator)
    return Records(x, torch.randint(0, 3, (records,), generator=generator))


def test_no_two_records_are_further_apart_in_a_mean_than_is_charged() -> None:
    statistic = Inputs(5, LONGEST)
    ends = torch.tensor([[9.0, 0, 0, 0, 0], [-1e30, 0, 0, 0, 0], [0, 0, 0.1, 0, 0]])
    x = torch.cat([ends, some(50, far=3.0).x])
    of_each = statistic.per_record(x, torch.zeros(len(x)), None)
    furthest = max(float((one - other).norm()) for one, other in itertools.combinations(of_each, 2))
    assert furthest == pytest.approx(2 * LONGEST)
    assert statistic.sensitivity(8) == pytest.approx(2 * LONGEST / 8, rel=1e-5)
    assert statistic.sensitivity(8) >= furthest / 8


def test_a_record_that_is_not_finite_contributes_nothing_and_the_denominator_stays() -> None:
    release, records = made().releases_of(0)["centre"], some(8, far=0.1)
    spoilt = replace(records, x=records.x.clone())
    spoilt.x[3, 1], spoilt.x[5, 0] = float("nan"), float("inf")
    wanted = records.x[[0, 1, 2, 4, 6, 7]].double().sum(dim=0) / 8
    assert torch.allclose(release.statistic(spoilt, None).double(), wanted)


@pytest.mark.parametrize("where", [0.0, 0.7, 1e6, 1e38, float("inf"), float("nan")])
def test_whatever_centre_a_server_sends_one_record_moves_a_gradient_by_what_is_charged_at_most(
    where: float,
) -> None:
    blueprint, records = made(), some(8)
    release = blueprint.releases_of(0)["gradient"]
    sent = torch.cat([torch.randn(blueprint.coefficients), torch.full((5,), where)])
    first, moved = release.statistic(records, sent), []
    for seed, far in itertools.product(range(4), (0.1, 1.0, 1e8)):
        other = some(1, far=far, seed=seed)
        near = replace(records, x=torch.cat([other.x, records.x[1:]]), y=torch.cat([other.y, records.y[1:]]))
        moved.append(float((release.statistic(near, sent) - first).norm()))
    assert max(moved) <= release.sensitivity * (1 + 1e-6)
    # What is further away than any centre is cut, and what is none takes no record with it.
    assert max(moved) > 0.3 * release.sensitivity if np.isfinite(where) else max(moved) == 0.0


def test_the_centre_is_the_mean_as_far_as_noise_alone_does_not_explain_it() -> None:
    rng = np.random.default_rng(0)
    true, records = np.full(40, 0.9 / 40**0.5), torch.tensor([300, 200, 100])
    lost = []
    for sigma in (0.001, 0.05, 0.3, 3.0):
        drawn = torch.tensor(true + sigma * rng.normal(size=(200, 3, 40)))
        found = torch.stack([centre(one, torch.full((3,), sigma), records, LONGEST) for one in drawn])
        lost.append(float((found - torch.tensor(true)).square().sum(dim=1).mean()))
    # Where there is only noise it is cut: not much worse than a centre of 0, whose distance is 0.81.
    assert lost == sorted(lost)
    assert lost[0] < 1e-4
    assert lost[-1] < 1.6
    absent = torch.tensor([[0.5, 0.0], [9.0, 9.0]])
    assert centre(absent, torch.zeros(2), torch.tensor([10, 0]), LONGEST).tolist() == [0.5, 0.0]


def test_a_published_model_says_of_inputs_what_a_trained_one_says_of_inputs_from_the_centre() -> None:
    weight, at, x = torch.randn(2, 3, 5), torch.randn(5), torch.randn(7, 5)
    theta = torch.cat([weight.flatten(1), torch.randn(2, 3)], dim=1)
    moved = as_published(theta, LastLayer(slice(0, 15), slice(15, 18), 3), at)
    for one, other in zip(theta, moved, strict=True):
        told, wanted = (t[:15].view(3, 5) @ v.T + t[15:, None] for t, v in ((other, x), (one, x - at)))
        assert torch.allclose(told, wanted, atol=1e-5)


def test_a_server_sends_a_centre_behind_coefficients_and_publishes_models_of_inputs_as_they_are() -> None:
    blueprint, x = made(epsilon=1e4), torch.randn(7, 5)
    server = Server(blueprint)
    assert server.sent([0, 1])[:, blueprint.coefficients :].abs().max() == 0.0
    [phase] = [phase for phase in blueprint.once if phase.kind == "centre"]
    assert not server.has(phase)
    for participant in range(2):
        server.receive("centre", participant, np.array([0.5, 0.2, 0.0, 0.0, participant / 2]))
    server.close(phase)
    assert server.has(phase)
    for number in range(3):
        rng = np.random.default_rng(number)
        server.receive_round({i: 0.1 * rng.normal(size=blueprint.coefficients) for i in range(2)})
    sent, at = server.sent([0, 1]), server.centre()
    sigma = blueprint.releases_of(0)["centre"].sigma
    expected = centre(server._centres, torch.full((2,), sigma), torch.tensor([8, 8]), LONGEST)
    assert torch.allclose(at, expected)
    assert 0 < float(at.norm()) < 0.6
    assert torch.equal(sent[:, -5:], at.expand(2, -1))
    for mine, published in zip(sent, server.coefficients([0, 1]), strict=True):
        seen = measured_from(Records(x, x), at, LONGEST).x
        trained = logits(blueprint.module, blueprint.theta(mine[:-5]), seen)
        told = logits(blueprint.module, blueprint.theta(published), x)
        assert torch.allclose(told, trained, atol=1e-5)
        assert not torch.allclose(told, logits(blueprint.module, blueprint.theta(mine[:-5]), x), atol=1e-3)
    server.receive("centre", 1, np.full(5, -1.0))  # too late: coefficients were trained at what is there
    assert torch.equal(server.centre(), at)
    other = Server(blueprint)
    other.load_state(server.state())
    assert torch.equal(other.sent([1, 0]), server.sent([1, 0]))
    assert torch.equal(other.shared_coefficients(), server.shared_coefficients())


def test_who_sets_nothing_has_it_for_linear_models_of_tables_whose_spreads_nobody_states() -> None:
    def share(**given: object) -> float:
        return Plan.load(overrides={"dataset": "mine.npz", **given}).centring

    assert share() == share(preset="central") == share(preset="shared") == 0.08
    assert share(dataset="cifar10") == share(preset="paper") == share(coefficients=64) == 0.0
    assert share(model="mine:net") == share(context="moments") == share(downlink_bits=4) == 0.0
    for bad in (
        {"centring": 1.0},
        {"centring": 0.9, "calibration": 0.2},
        {"context": "moments", "centring": 0.1},
        {"centring": 0.1, "downlink_bits": 4},
    ):
        with pytest.raises(PlanError, match="centring"):
            share(**bad)

    def told(facts: Facts, **given: object) -> tuple[float, int]:
        own = {"preset": "best", "dataset": "mine", "participants": 3, "gradient_records": 400, **given}
        plan = _with_task(Plan.load(overrides=own), facts)
        return plan.centring, plan.rounds

    def table(task: str, more: str = "") -> Facts:
        return schema.Description.parse(TABLE.format(task, TARGETS[task]) + more).facts()

    assert told(table("classes")) == (0.08, 100)
    assert told(table("classes"), centring=0, rounds=30) == (0.0, 30)
    assert told(table("classes"), learning_rate=0.5)[1] == 40
    assert told(table("classes", "mean = 50\nstd = 20\n"))[0] == 0.0
    for facts in (table("number"), table("labels"), Facts((20,), 2)):
        assert told(facts) == (0.0, 40)
    assert told(table("classes"), model="mlp")[0] == 0.0


class Curved(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.tanh())


def zeros(module: torch.nn.Linear) -> torch.nn.Linear:
    torch.nn.init.zeros_(module.weight)
    return module


@pytest.mark.parametrize(
    "module",
    [
        zeros(Curved(5, 3)),
        torch.nn.Linear(5, 3),
        torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.Linear(2, 3)),
        torch.nn.Sequential(torch.nn.Linear(5, 1, bias=False), torch.nn.Linear(1, 3)),
    ],
    ids=["not linear", "trained before", "two layers", "two of one's size"],
)
def test_a_model_that_could_not_be_published_is_refused_before_anything_is_charged(
    module: torch.nn.Module,
) -> None:
    given = {"bias_scale": 1.0, "calibration": 0.0, "centring": 0.1, "model": given_name(module)}
    with pytest.raises(SottovoceError, match="model=linear, or centring=0"):
        made(module, **given)
    assert made(zeros(torch.nn.Linear(5, 3)), **given).inputs is not None
    with pytest.raises(SottovoceError, match="centring=0"):
        made(model="mlp", centring=0.1)
    with pytest.raises(SottovoceError, match="centring=0"):
        made(coefficients=3, bias_scale=1.0, calibration=0.0, centring=0.1)


@pytest.mark.parametrize("noise", ["client", "server"])
def test_a_run_is_charged_for_its_centre_once_within_its_epsilon(tmp_path: Path, noise: str) -> None:
    folder, out = sites(tmp_path / "sites"), tmp_path / "run"
    train(planned(folder, noise=noise, rounds=3, seeded=False), out)
    file = GeneratorFile.read(out / "model.safetensors")
    budget = mu_squared(file.plan.epsilon, file.plan.delta, file.plan.accounting)
    with Ledger.open(folder / "ledger.sqlite", scope=None) as book:
        entries = [entry.charge for entry in book.charges() if entry.charge.kind == "centre"]
        assert [entry.mu_squared for entry in entries] == pytest.approx([0.08 * budget] * len(file.names))
        for name in file.names:
            spent = book.epsilon(name, file.plan.delta, file.plan.accounting)
            assert spent == pytest.approx(file.plan.epsilon)
    assert open_server(file).centre().shape == file.facts.shape
    with pytest.raises(SottovoceError, match="centre is not"):
        open_server(replace(file, state={**file.state, "centre": torch.zeros(1)}))
