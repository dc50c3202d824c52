"""Recipes of an adversary: any model has finite ones, and climbing never goes down."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from sottovoce.audit.hostile import Hostile, worst
from sottovoce.release.blueprint import Blueprint
from tests.small import small_plan

from .toys import opened, toy


@pytest.fixture(scope="module")
def subspace() -> Blueprint:
    return opened(small_plan(model="lenet", participants=2, future_clients=0, clients_per_round=2))[0]


def test_coefficients_are_finite_in_a_subspace_and_exact_where_there_is_none(
    tmp_path: Path, subspace: Blueprint
) -> None:
    random = Random(0)
    whole = toy(tmp_path, model="mlp", mlp_sizes="5")[0]
    for blueprint in (whole, subspace):
        for _ in range(20):
            at = Hostile.drawn(blueprint.module, random).coefficients(blueprint.model)
            assert at.shape == (blueprint.coefficients,)
            assert at.dtype == torch.float32
            assert bool(at.isfinite().all())
    recipe = Hostile.drawn(whole.module, random)
    for _ in range(9):
        recipe = recipe.changed(random)
    wanted = recipe.theta(whole.module)
    assert torch.allclose(whole.theta(recipe.coefficients(whole.model)), wanted, rtol=1e-4, atol=1e-3)


def test_climbing_ends_at_the_largest_of_what_was_seen(subspace: Blueprint) -> None:
    seen = list[float]()

    def ratio(recipe: Hostile) -> float:
        seen.append(float(recipe.coefficients(subspace.model).double().norm()))
        return seen[-1]

    best, recipe = worst(subspace.module, ratio, Random(1), draws=6, steps=40)
    assert len(seen) == 46
    assert best == max(seen) == pytest.approx(float(recipe.coefficients(subspace.model).double().norm()))
    assert best > max(seen[:6])
