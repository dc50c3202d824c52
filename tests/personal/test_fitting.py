"""Fits at home: as scikit-learn and closed forms have them; a proximal strength keeps them near a model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sottovoce.data import Facts, Records
from sottovoce.models.architectures import open_model
from sottovoce.models.parameters import flat_parameters
from sottovoce.models.tasks import open_task
from sottovoce.personal.fitting import (
    AS_PUBLISHED,
    BIAS_STRENGTH,
    Choice,
    LinearFamily,
    ModuleFamily,
    Spanned,
    open_family,
)

NOTHING = lambda share: None  # noqa: E731


def site(records: int, inputs: int, task: str, outputs: int = 3, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, inputs, generator=generator) + 0.5
    scores = x @ torch.randn(inputs, outputs, generator=generator)
    scores = scores + torch.randn(records, outputs, generator=generator)
    y = {"classes": scores.argmax(dim=1), "labels": (scores > 0).float(), "number": scores[:, 0] / 20}[task]
    return Records(x, y)


def family(records: Records, task: str, outputs: int = 3, published: Tensor | None = None) -> LinearFamily:
    facts = Facts(tuple(records.x.shape[1:]), outputs, task=task)
    module = open_model("linear", facts.shape, outputs, 0)
    if published is not None:
        with torch.no_grad():
            module[1].weight.copy_(published)
    start = flat_parameters(module)
    fits = open_family(module, start, records, open_task(facts), start)
    assert isinstance(fits, LinearFamily)
    return fits


@pytest.mark.parametrize(("records", "inputs"), [(150, 12), (40, 70)])
def test_a_fit_alone_is_scikit_learns_logistic_regression(records: int, inputs: int) -> None:
    # scikit-learn does not draw the intercept at all, so it gets a constant input that is drawn a tenth.
    mine = site(records, inputs, "classes")
    theta = family(mine, "classes").fit(Choice(0.0, 3.0))
    constant = np.full((records, 1), 1 / math.sqrt(BIAS_STRENGTH))
    model = LogisticRegression(C=1 / 3.0, fit_intercept=False, max_iter=5000, tol=1e-10)
    model.fit(np.hstack([mine.x.numpy(), constant]), mine.y.numpy())
    weight = theta[: 3 * inputs].reshape(3, inputs).numpy()
    assert np.abs(weight - model.coef_[:, :-1]).max() < 0.02 * np.abs(model.coef_).max()
    bias = theta[3 * inputs :].numpy()
    assert np.abs(bias - model.coef_[:, -1] / math.sqrt(BIAS_STRENGTH)).max() < 0.05


def test_a_fit_of_numbers_is_ridge_regression_around_its_center() -> None:
    mine, share, strength = site(80, 9, "number", 1), 0.6, 4.0
    published = torch.linspace(-0.1, 0.1, 9)[None]
    theta = family(mine, "number", 1, published).fit(Choice(share, strength)).double()
    inputs = torch.cat([mine.x, torch.ones(80, 1)], dim=1).double()
    center = torch.cat([share * published[0], torch.zeros(1)]).double()
    drawn = strength * torch.diag(torch.tensor([*[1.0] * 9, BIAS_STRENGTH], dtype=torch.float64))
    exact = center + torch.linalg.solve(
        inputs.T @ inputs + drawn, inputs.T @ (mine.y.double() - inputs @ center)
    )
    assert float((theta - exact).norm()) < 1e-2 * float(exact.norm())


def test_a_great_strength_gives_the_share_of_the_published_model_and_an_infinite_one_itself() -> None:
    mine = site(60, 5, "classes")
    published = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    fits = family(mine, "classes", published=published)
    near = fits.fit(Choice(0.6, 3.0e7))
    assert float((near[:15].reshape(3, 5) - 0.6 * published).norm()) < 1e-3
    assert torch.equal(fits.fit(AS_PUBLISHED)[:15].reshape(3, 5), published)


@pytest.mark.parametrize("task", ["classes", "labels", "number"])
def test_outputs_out_of_fold_are_those_of_fits_to_the_other_folds(task: str) -> None:
    outputs = 1 if task == "number" else 3
    mine = site(50, 6, task, outputs)
    folds = torch.arange(50) % 5
    choice = Choice(0.0, 9.0)
    tried = family(mine, task, outputs).out_of_fold(folds, NOTHING)[choice]
    others = mine[folds != 2]
    # Pull is stated for all records: λ/m weighs against a mean over fewer.
    theta = family(others, task, outputs).fit(Choice(0.0, 9.0 * len(others) / len(mine)))
    fits = family(mine, task, outputs)
    left_out = fits.outputs(theta, mine.x[folds == 2])
    assert float((tried[folds == 2] - left_out).abs().max()) < 0.05 * float(left_out.abs().max() + 0.1)


def test_a_record_that_is_left_out_does_not_change_what_it_is_told() -> None:
    mine, folds = site(50, 6, "classes"), torch.arange(50) % 5
    changed = Records(mine.x.clone(), mine.y.clone())
    changed.y[2] = (changed.y[2] + 1) % 3
    choice = Choice(0.0, 9.0)
    before = family(mine, "classes").out_of_fold(folds, NOTHING)[choice]
    after = family(changed, "classes").out_of_fold(folds, NOTHING)[choice]
    assert torch.allclose(before[2], after[2], atol=1e-5)
    assert not torch.allclose(before[3], after[3], atol=1e-5)


def test_directions_of_a_span_are_orthonormal_and_give_the_inputs_back() -> None:
    for shape in ((30, 8), (8, 30)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        spanned = Spanned.of(x)
        rank = len(spanned.directions)
        assert torch.allclose(spanned.directions @ spanned.directions.T, torch.eye(rank), atol=1e-4)
        assert torch.allclose(spanned.coordinates[:, :-1] @ spanned.directions, x, atol=1e-4)


def test_any_module_is_fitted_from_the_published_model_or_alone_from_its_beginning() -> None:
    mine = site(60, 4, "classes")
    facts = Facts((4,), 3)
    module = open_model("mlp", (4,), 3, 0, {"mlp_sizes": "8"})
    fresh = flat_parameters(module).clone()
    fits = open_family(module, fresh, mine, open_task(facts), fresh)
    assert isinstance(fits, ModuleFamily)
    tried = fits.out_of_fold(torch.arange(60) % 5, NOTHING)
    task = open_task(facts)
    losses = {choice: float(task.losses(out, mine.y).mean()) for choice, out in tried.items()}
    assert min(losses.values()) < 0.8 * losses[AS_PUBLISHED]
    best = min(losses, key=lambda choice: losses[choice])
    theta = fits.fit(best)
    assert float(task.losses(fits.outputs(theta, mine.x), mine.y).mean()) < losses[AS_PUBLISHED]
    assert torch.equal(fits.fit(AS_PUBLISHED), fresh)


def test_a_path_ends_only_when_every_center_has_had_its_best_strength() -> None:
    """A published model that is exact is best at great strength; a site alone needs little."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(400, 6, generator=generator)
    weight = 3 * torch.randn(3, 6, generator=generator)
    y = torch.distributions.Categorical(logits=x @ weight.T).sample()
    facts, folds = Facts((6,), 3), torch.arange(400) % 5
    task = open_task(facts)

    def best_alone(published: Tensor) -> float:
        tried = family(Records(x, y), "classes", published=published).out_of_fold(folds, NOTHING)
        return min(float(task.losses(out, y).mean()) for choice, out in tried.items() if choice.share == 0)

    assert best_alone(weight) == pytest.approx(best_alone(torch.zeros(3, 6)), rel=1e-3)
