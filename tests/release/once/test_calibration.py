"""Probabilities are calibrated by a release whose bound holds, and by nothing that noise alone says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.personal import PersonalModel
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.plan.recipes import V0_2
from sottovoce.privacy.accounting import mu_squared
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import build
from sottovoce.release.once.calibration import Derivatives, LastLayer, Scaling
from sottovoce.run.finished import GeneratorFile, open_server
from sottovoce.run.models import write_models
from sottovoce.run.training import train
from sottovoce.training.server import Server
from tests.run.test_folder import planned, sites

SLOPES, REACH, SHIFTED = V0_2.calibrating.slopes, V0_2.calibrating.reach, V0_2.calibrating.shifted


def derivatives(classes: int, task: str = "classes") -> Derivatives:
    return Derivatives(open_task(Facts((4,), classes, task=task)), V0_2.calibrating)


@pytest.mark.parametrize(
    ("classes", "task"), [(2, "classes"), (3, "classes"), (10, "classes"), (3, "labels")]
)
def test_no_two_records_are_further_apart_than_is_charged(classes: int, task: str) -> None:
    statistic, generator = derivatives(classes, task), torch.Generator().manual_seed(1)
    near = torch.randn(600, classes, generator=generator)
    z = torch.cat([near * scale for scale in (0.1, 1.0, 3.0, 10.0, 1e4)])
    z = torch.cat([z, torch.eye(classes).repeat(2, 1) * 1e30, -torch.eye(classes) * 60])
    y = torch.randint(classes, (len(z),), generator=generator)
    if task == "labels":
        y = torch.randint(2, (len(z), classes), generator=generator).float()
        y[-classes:], y[:600] = 1 - (z[-classes:] > 0).float(), 1 - (z[:600] > 0).float()
    else:  # the worst: sure of anything else
        y[-3 * classes :] = z[-3 * classes :].argmin(dim=1)
    vectors = statistic.per_record(z, y, z)
    assert vectors.isfinite().all()
    furthest = float(torch.cdist(vectors, vectors).max())
    assert furthest <= statistic.spread * (1 + 1e-12)
    assert float(vectors.norm(dim=1).max()) <= statistic.radius * (1 + 1e-12)
    parts = [part for one in vectors.split(classes + 1, dim=1) for part in (one[:, :1], one[:, 1:])]
    apart = sum(float(torch.cdist(part, part).max()) ** 2 for part in parts)
    assert apart <= statistic.spread**2 * (1 + 1e-12)  # bounded one by one, whichever records reach them
    if task == "classes" and classes == 2:
        assert furthest > 0.85 * statistic.spread  # and not many times less


@pytest.mark.parametrize("task", ["classes", "labels"])
def test_a_record_gives_the_derivatives_that_autograd_finds_at_every_slope(task: str) -> None:
    statistic, generator = derivatives(3, task), torch.Generator().manual_seed(3)
    z = 0.4 * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    z = z - z.mean(dim=1, keepdim=True)  # a softmax does not see it
    assert float(z.norm(dim=1).max()) < REACH
    y = torch.randint(3, (20,), generator=generator)
    if task == "labels":
        y = torch.randint(2, (20, 3), generator=generator).double()
    found = statistic.per_record(z, y, z).view(20, len(SLOPES), 4)
    across = torch.tensor([1.0 / (math.sqrt(2.0) * REACH), SHIFTED, SHIFTED, SHIFTED], dtype=torch.float64)
    for record, target, gradients in zip(z, y, found, strict=True):

        def loss(at: Tensor, record: Tensor = record, target: Tensor = target) -> Tensor:
            outputs = at[0] * record + at[1:]
            if task == "classes":
                return nn.functional.cross_entropy(outputs, target)
            both = nn.functional.binary_cross_entropy_with_logits(outputs, target, reduction="sum")
            return both / math.sqrt(3.0)

        for slope, gradient in zip(SLOPES, gradients, strict=True):
            start = torch.tensor([slope, 0.0, 0.0, 0.0], dtype=torch.float64)
            assert torch.allclose(gradient, across * torch.func.grad(loss)(start), atol=1e-9)


def test_a_record_or_model_that_is_not_finite_contributes_nothing_and_the_denominator_stays() -> None:
    statistic = derivatives(2)
    x, y = torch.zeros(3, 4), torch.tensor([0, 1, 1])
    z = torch.tensor([[1.0, 0.0], [math.nan, 0.0], [math.inf, 0.0]])
    found = statistic.mean(x, y, 3, z)
    assert torch.allclose(found, statistic.per_record(x[:1], y[:1], z[:1])[0] / 3)


def drawn(clients: int, records: int, shifts: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """True logits (clients, records, 2), and classes drawn by them."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(clients, records, 2, generator=generator) + shifts[:, None, :]
    y = (torch.rand(clients, records, generator=generator) < torch.softmax(z, dim=2)[..., 1]).long()
    return z, y


def released(z: Tensor, y: Tensor, noise: float = 0.0) -> Tensor:
    statistic, generator = derivatives(2), torch.Generator().manual_seed(5)
    means = [statistic.mean(one, other, len(one), one) for one, other in zip(z, y, strict=True)]
    return torch.stack(means) + noise * torch.randn(len(z), statistic.size, generator=generator)


def scaling(z: Tensor, y: Tensor, noise: float = 1e-3) -> Scaling:
    counts = torch.full((len(z),), z.shape[1])
    return Scaling.of(derivatives(2), released(z, y, noise), torch.full((len(z),), noise), counts)


@pytest.mark.parametrize(
    ("sure", "off"), [(0.35, 0.2), (0.5, 0.2), (0.7, 0.4), (1.0, 0.4), (1.5, 0.4), (2.5, 0.4)]
)
def test_a_model_that_is_too_sure_or_not_sure_enough_is_set_right(sure: float, off: float) -> None:
    z, y = drawn(6, 2000, torch.zeros(6, 2))
    biased = sure * z + torch.tensor([off, -off])
    found = scaling(biased, y)
    right = found.slope * biased + found.shift
    loss = torch.nn.functional.cross_entropy
    flat = (biased.flatten(0, 1), y.flatten())
    best, before = float(loss(z.flatten(0, 1), flat[1])), float(loss(*flat))
    after = float(loss(right.flatten(0, 1).float(), flat[1]))
    assert after - best < 0.25 * (before - best) + 0.002
    assert found.slope > 1.3 if sure <= 0.5 else found.slope < 1.0


@pytest.mark.parametrize(("sure", "counts_less"), [(0.4, True), (2.0, False)])
def test_few_records_for_many_inputs_make_a_model_less_sure_than_they_look_and_never_surer(
    sure: float, counts_less: bool
) -> None:
    z, y = drawn(6, 2000, torch.zeros(6, 2))
    statistic, given, noise = derivatives(2), released(sure * z, y), torch.full((6,), 1e-3)
    many, few = (Scaling.of(statistic, given, noise, torch.full((6,), count)).slope for count in (10**9, 4))
    expected = many ** (1 / (1 + 6 * statistic.inputs / 24)) if counts_less else many
    assert few == pytest.approx(expected)
    assert (1 < few < many) if counts_less else few < 1


def test_where_there_is_only_noise_slopes_are_as_expected_and_nobody_gets_a_shift_of_their_own() -> None:
    z, y = drawn(5, 40, torch.zeros(5, 2))
    moved = [scaling(z, y, noise=30.0) for _ in range(3)]
    for found in moved:
        assert found.slope == pytest.approx(0.86, abs=0.05)  # the harmonic mean of what is likely before
        assert float(found.shift.abs().max()) < 0.1
        assert torch.allclose(found.shifts, found.shift.expand(5, -1))


def test_participants_that_differ_get_shifts_of_their_own_and_those_that_do_not_get_none() -> None:
    apart = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [0.5, -0.5]])
    z, y = drawn(4, 1000, apart)
    model = z - apart[:, None, :]  # it knows nothing of them
    own = scaling(model, y, noise=0.01)
    told = own.shifts - own.shift
    assert torch.allclose(told[0] - told[1], apart[0].double() - apart[1].double(), atol=0.7)
    _, same = drawn(4, 1000, torch.zeros(4, 2))
    z, _ = drawn(4, 1000, torch.zeros(4, 2))
    alike = scaling(z, same, noise=0.01)
    assert float((alike.shifts - alike.shift).abs().max()) < 0.1
    counts = torch.tensor([1000, 1000, 0, 1000])  # the third has released nothing
    absent = Scaling.of(derivatives(2), released(model, y, 0.01), torch.full((4,), 0.01), counts)
    assert torch.equal(absent.shifts[2], absent.shift)
    assert not torch.equal(absent.shifts[0], absent.shift)


@pytest.mark.parametrize(("model", "scale"), [("linear", 1.0), ("linear", 0.5), ("mlp", 0.5)])
def test_slope_and_shift_in_the_last_layer_are_slope_and_shift_of_outputs(model: str, scale: float) -> None:
    given = {"preset": "best", "dataset": "mine.npz", "model": model, "participants": 2, "calibration": 0.1}
    given |= {"bias_scale": scale, "centring": 0.0}
    plan = Plan.load(
        overrides={**given, "features": "none", "context_records": 8, "gradient_records": 8, "clip": 1.0}
    )
    made = build(plan, Facts((5,), 3), None)
    server = Server(made)
    start = server.coefficients([0, 1])
    for participant in range(2):
        vector = np.random.default_rng(participant).normal(size=made.releases_of(0)["calibration"].size)
        server.receive("calibration", participant, 0.1 * vector)
    found, x = server.scaling(), torch.randn(7, 5)
    assert found is not None
    both = [*zip(server.coefficients([0, 1]), start, found.shifts, strict=True)]
    both.append((server.personalize(None), server.shared_coefficients(), found.shift))
    for after, before, shift in both:
        wanted = found.slope * logits(made.module, made.theta(before), x) + shift
        assert torch.allclose(logits(made.module, made.theta(after), x), wanted.float(), atol=1e-5)
    other = Server(made)
    other.load_state(server.state())
    assert torch.equal(other.coefficients([1, 0]), server.coefficients([1, 0]))


def test_a_model_whose_last_layer_decides_no_slope_is_refused_and_a_number_too() -> None:
    class Squashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(x))

    given = {"preset": "best", "dataset": "mine.npz", "participants": 2, "features": "none"}
    plan = Plan.load(
        overrides={**given, "calibration": 0.1, "context_records": 8, "gradient_records": 8, "clip": 1.0}
    ).replace(bias_scale=1.0)
    with pytest.raises(SottovoceError, match="set calibration=0"):
        build(plan, Facts((4,), 2), Squashed())
    with pytest.raises(SottovoceError, match="adapts as a whole"):
        build(plan.replace(coefficients=5), Facts((4,), 2))
    for scale in (0.5, 0.0):
        with pytest.raises(SottovoceError, match="bias_scale"):
            build(plan.replace(calibration=0.0, bias_scale=scale), Facts((4,), 2), Squashed())
    with pytest.raises(SottovoceError, match="about probabilities"):
        build(plan, Facts((4,), 1, task="number"))
    kept = LastLayer.of(nn.Linear(4, 2), build(plan, Facts((4,), 2)).basis, Facts((4,), 2))
    assert (kept.weight, kept.bias) == (slice(0, 8), slice(8, 10))


def test_who_sets_nothing_has_it_for_tables_and_not_for_pictures_methods_or_modules_it_was_not_made_for() -> (
    None
):
    def share(**given: object) -> float:
        return Plan.load(overrides={"dataset": "mine.npz", **given}).calibration

    assert share() == share(preset="central") == share(preset="shared") == 0.2
    assert share(dataset="cifar10") == share(dataset="mnist-small") == share(preset="paper") == 0.0
    assert share(coefficients=64) == share(model="mine:net") == share(context="moments") == 0.0
    assert share(context="moments", context_share=0.1) == share(model="mlp") == 0.2
    assert share(calibration=0) == 0.0
    for bad in ({"calibration": 1.0}, {"calibration": -0.1}, {"context": "moments", "calibration": 0.1}):
        with pytest.raises(PlanError):
            share(**bad)


def test_a_run_is_charged_for_its_calibration_once_within_its_epsilon_and_models_carry_it(
    tmp_path: Path,
) -> None:
    folder, out = sites(tmp_path / "sites"), tmp_path / "run"
    plan = planned(folder, calibration=0.1, seeded=False)
    result = train(plan, out)
    assert result["uplink"]["calibration_bytes"] > 0
    uplink = result["uplink"]
    once = ("context", "centre", "calibration")
    assert uplink["total_bytes"] == uplink["bytes"] + sum(uplink[f"{kind}_bytes"] for kind in once)
    assert uplink["context_bytes"] == 0 < uplink["centre_bytes"]
    downlink = result["downlink"]
    assert (downlink["bits_per_coefficient"], downlink["fp32_bytes"]) == (32, downlink["bytes"])
    file = GeneratorFile.read(out / "model.safetensors")
    server = open_server(file)
    with Ledger.open(folder / "ledger.sqlite", scope=None) as book:
        entries = [entry.charge for entry in book.charges() if entry.charge.kind == "calibration"]
        assert len(entries) == len(file.names)
        budget = mu_squared(file.plan.epsilon, file.plan.delta, file.plan.accounting)
        for name, charge in zip(file.names, entries, strict=True):
            assert charge.mu_squared == pytest.approx(0.1 * budget)
            spent = book.epsilon(name, file.plan.delta, file.plan.accounting)
            assert spent == pytest.approx(file.plan.epsilon)
    scaled = server.scaling()
    assert scaled is not None
    write_models(out, tmp_path / "models")
    first = PersonalModel.read(tmp_path / "models" / f"{file.names[0]}.safetensors")
    x = torch.randn(5, *file.facts.shape)
    theta = server.blueprint.theta(server._uncalibrated([0])[0])
    wanted = scaled.slope * logits(server.blueprint.module, theta, x) + scaled.shifts[0]
    assert torch.allclose(first.outputs(x), wanted.float(), atol=1e-5)
    with pytest.raises(SottovoceError, match="calibrations is not"):
        open_server(replace(file, state={**file.state, "calibrations": torch.zeros(1, 1)}))
