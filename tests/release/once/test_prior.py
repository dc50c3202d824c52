"""Class priors: what released class shares do to a model, and how shares are had without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.models.parameters import logits
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import build
from sottovoce.release.once.context import Confusion, MeanProbability
from sottovoce.release.once.prior import LabelShift, shares
from sottovoce.run.training import train
from sottovoce.training.server import class_priors
from tests.small import small_plan

SHARES = {
    "preset": "tuned",
    "model": "linear",
    "method": "blend",
    "coefficients": 7850,
    "context": "shares",
    "context_share": 0.05,
    "prior": "context",
    "learning_rate": 0.0,
    "clip": 0.5,
    "momentum": 0.9,
    "averaging": 0.3,
}


def test_shares_are_the_nearest_point_of_the_simplex() -> None:
    rng = np.random.default_rng(0)
    released = torch.from_numpy(rng.normal(0.1, 0.4, size=(20, 5))).float()
    nearest = (shares(released, 0.0, 0.02) - 0.02 / 5) / 0.98
    assert torch.allclose(nearest.sum(dim=1), torch.ones(20), atol=1e-5)
    assert (nearest > -1e-6).all()
    corners = torch.from_numpy(rng.dirichlet(np.ones(5), size=4000)).float()
    distance = (released - nearest).norm(dim=1)
    assert (torch.cdist(released, corners).min(dim=1).values >= distance - 1e-5).all()


def test_the_noisier_the_shares_the_less_they_say() -> None:
    released = torch.tensor([[0.7, 0.2, 0.1]])
    said = [float(shares(released, noise, 0.02).max()) for noise in (0.0, 0.05, 0.5, 50.0)]
    assert said == sorted(said, reverse=True)
    assert said[-1] == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_prior_adds_log_shares_to_the_logits_and_nothing_else(scale: float) -> None:
    records = {"gradient_records": 40, "context_records": 40}
    plan = Plan.load(overrides={**SHARES, **records, "bias_scale": scale})
    blueprint = build(plan, Facts((1, 28, 28), 10))
    priors = class_priors(blueprint, torch.device("cpu"))
    released = torch.softmax(torch.randn(1, 10), dim=1)
    x, a = torch.randn(4, 1, 28, 28), torch.randn(7850)
    without = logits(blueprint.module, blueprint.theta(a), x)
    with_prior = logits(
        blueprint.module, blueprint.theta(a + priors.coefficients(released, torch.tensor([0]))[0]), x
    )
    expected = shares(released, priors.noise[:1, None], 0.02).log().expand(4, 10)
    assert torch.allclose(with_prior - without, expected, atol=1e-4)


def test_a_basis_that_shares_the_last_biases_is_refused() -> None:
    plan = Plan.load(
        overrides={**SHARES, "gradient_records": 40, "context_records": 40, "basis": "unstructured"}
    ).replace(coefficients=500)
    with pytest.raises(SottovoceError, match="basis=structured"):
        class_priors(build(plan, Facts((1, 28, 28), 10)), torch.device("cpu"))


def test_a_prior_without_class_shares_is_refused() -> None:
    with pytest.raises(PlanError, match="context of class shares"):
        Plan.load(overrides={"prior": "context", "context": "moments"})


@pytest.mark.parametrize("statistic", [Confusion(4), MeanProbability(4)])
def test_replacing_one_record_moves_the_statistic_by_at_most_its_sensitivity(statistic) -> None:
    generator = torch.Generator().manual_seed(1)
    largest = 0.0
    for _ in range(300):
        scores = 30 * torch.randn(6, 4, generator=generator)
        y = torch.randint(4, (6,), generator=generator)
        other, label = scores.clone(), y.clone()
        other[2], label[2] = (
            30 * torch.randn(4, generator=generator),
            torch.randint(4, (), generator=generator),
        )
        x = torch.zeros(6, 1)
        moved = statistic.mean(x, y, 6, scores) - statistic.mean(x, label, 6, other)
        largest = max(largest, float(moved.norm()))
    assert 0.95 * statistic.sensitivity(6) < largest <= statistic.sensitivity(6) * (1 + 1e-12)


def test_records_without_finite_probabilities_vanish_and_the_denominator_stays() -> None:
    scores = torch.tensor([[0.0, 0.0], [torch.nan, 0.0]])
    mean = MeanProbability(2).mean(torch.zeros(2, 1), torch.zeros(2).long(), 2, scores)
    assert mean.tolist() == [0.25, 0.25]


def made_up(noise: float, confusion_noise: float, clients: int = 40) -> tuple[LabelShift, torch.Tensor]:
    rng = np.random.default_rng(5)
    truth = torch.from_numpy(rng.dirichlet(np.full(5, 0.5), size=clients + 10)).float()
    matrix = 0.7 * torch.eye(5) + 0.06
    released = truth[:clients] + noise * torch.from_numpy(rng.normal(size=(clients, 5))).float()
    joint = truth[:clients].mean(dim=0)[:, None] * matrix
    joint = joint + confusion_noise * torch.from_numpy(rng.normal(size=(5, 5))).float()
    return LabelShift.of(released, noise, joint, confusion_noise, 0.02), truth[clients:]


def test_mean_predictions_corrected_by_the_confusion_are_class_shares() -> None:
    shift, truth = made_up(noise=0.01, confusion_noise=0.001)
    predicted = truth @ (0.7 * torch.eye(5) + 0.06)
    corrected = torch.stack([shift.estimate(row, 0.005)[0] for row in predicted])
    assert float((corrected - truth).abs().sum(dim=1).mean()) < 0.08
    assert float((predicted - truth).abs().sum(dim=1).mean()) > 0.25


def test_where_the_confusion_says_nothing_the_estimate_is_the_participants_mean() -> None:
    shift, truth = made_up(noise=0.01, confusion_noise=5.0)
    estimate, deviation = shift.estimate(truth[0], 0.005)
    assert float((estimate - shift.mean).norm()) < 0.5 * float((truth[0] - shift.mean).norm())
    assert deviation == pytest.approx(shift.spread**0.5, rel=0.2)


def test_every_release_of_class_shares_is_paid_for(tmp_path) -> None:
    result = train(small_plan(**SHARES, epsilon=4.0), tmp_path / "run")
    assert 3.99 < result["epsilon"]["spent_max"] <= 4.0
    assert result["epsilon"]["future_context"] == pytest.approx(4.0)
    assert result["uses_future_labels"] is False


def test_the_bytes_of_a_confusion_are_counted_in_the_uplink(tmp_path) -> None:
    uplink = train(small_plan(**SHARES), tmp_path / "run")["uplink"]
    message = 6 * 4 * 100  # participants, bytes, pairs of classes
    assert message < uplink["confusion_bytes"] < 1.1 * message
    assert uplink["total_bytes"] == uplink["bytes"] + uplink["context_bytes"] + uplink["confusion_bytes"]


@pytest.mark.parametrize("context", ["shares", "labels"])
@pytest.mark.parametrize("method", ["blend", "factorized", "direct", "global", "mean-regularized"])
def test_every_method_takes_a_prior_and_pays_for_all_of_its_releases(tmp_path, method, context) -> None:
    rate = {"learning_rate": 0.5} if method == "factorized" else {}
    plan = small_plan(**{**SHARES, **rate, "method": method, "context": context, "rounds": 2, "epsilon": 4.0})
    result = train(plan, tmp_path / "run")
    assert 3.99 < result["epsilon"]["spent_max"] <= 4.0
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", scope=None) as book:
        kinds = {entry.charge.kind for entry in book.charges()}
    assert kinds == {"gradient", "context"} | ({"confusion"} if context == "shares" else set())


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.3, 0.8])
def test_a_prior_costs_nothing_where_the_confusion_is_nearly_singular(strength: float) -> None:
    """Made-up classes that a shared model hardly tells apart: the weaker it is, the less a prior may do."""
    rng = np.random.default_rng(7)
    classes, clients, each, noise, confusion_noise = 6, 60, 500, 0.01, 0.004
    centers = strength * rng.normal(size=(classes, 8))
    truth = rng.dirichlet(np.full(classes, 0.5), size=clients)
    y = np.stack([rng.choice(classes, each, p=p) for p in truth])
    x = centers[y] + rng.normal(size=(clients, each, 8))
    scores = torch.from_numpy(x @ centers.T - (centers**2).sum(1) / 2).float()
    probabilities = scores.softmax(-1)
    hot = torch.nn.functional.one_hot(torch.from_numpy(y), classes).float()
    seen = 40
    joint = torch.einsum("cnk,cnj->kj", hot[:seen], probabilities[:seen]) / (seen * each)
    joint = joint + confusion_noise * torch.from_numpy(rng.normal(size=joint.shape)).float()
    released = hot[:seen].mean(1) + noise * torch.from_numpy(rng.normal(size=(seen, classes))).float()
    shift = LabelShift.of(released, noise, joint, confusion_noise, 0.02)
    gained = []
    for i in range(seen, clients):
        predicted = probabilities[i].mean(0) + noise * torch.from_numpy(rng.normal(size=classes)).float()
        estimate, deviation = shift.estimate(predicted, noise)
        prior = shares(estimate[None], deviation, 0.02)[0].log()
        right = [float((s.argmax(-1).numpy() == y[i]).mean()) for s in (scores[i] + prior, scores[i])]
        gained.append(100 * (right[0] - right[1]))
    assert np.mean(gained) > -1.0
    if strength == 0.8:
        assert np.mean(gained) > 1.0
