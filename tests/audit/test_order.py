"""At coefficients that an adversary looked for, another order of records moves nothing; a product that rounds
by place is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.audit.order import TOLERANCE, by_order, climbed
from sottovoce.audit.sensitivity import ratios
from sottovoce.data import FederatedDataset
from sottovoce.models.parameters import parameters_at
from sottovoce.plan import Plan
from sottovoce.release import blueprint as module
from sottovoce.release.blueprint import Blueprint

from .test_guessing import PLANS
from .toys import TOY, opened, quick, toy

NARROW = {**TOY, "model": "mlp", "mlp_sizes": "10", "channel": "direct"}


def many_classes(folder: Path) -> Plan:
    """A plan for a narrow network on two clients with forty records of ten classes each."""
    rng, path = np.random.default_rng(3), folder / "classes.npz"
    x, y = rng.normal(size=(80, 4)).astype("float32"), rng.integers(10, size=80)
    np.savez(path, x=x, y=y, client=np.repeat([0, 1], 40))
    return Plan.load(overrides={"dataset": str(path), **NARROW})


def found(blueprint: Blueprint, federation: FederatedDataset) -> tuple[float, list[str], Tensor]:
    """How far order moves a release, what is said of it, and at which coefficients."""
    at, random = climbed(blueprint, federation, Random(0)), Random(1)
    largest, faults = by_order(blueprint, federation, [torch.zeros_like(at), at], random)
    return max(largest.values()), faults, at


@pytest.mark.parametrize("plan", PLANS)
def test_order_moves_no_release_of_any_kind(tmp_path: Path, plan: str) -> None:
    blueprint, federation = toy(tmp_path, **quick(PLANS[plan]))
    largest, faults = by_order(blueprint, federation, [climbed(blueprint, federation, Random(0))], Random(1))
    assert faults == []
    assert max(largest.values()) < TOLERANCE
    kinds = {"gradient", *(phase.kind for phase in blueprint.once)}
    assert {kind.split()[0] for kind, _ in largest} == kinds


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows @ matrix, where every second row is summed from its other end: rounded by where it lies."""
    out = rows @ matrix
    out[1::2] = rows[1::2].flip(1) @ matrix.flip(0)
    return out


def by_place(
    net: nn.Module,
    theta: Tensor,
    basis: Any,
    x: Tensor,
    y: Tensor,
    *,
    clip: float,
    denominator: int,
    **_: Any,
) -> Tensor:
    """The clipped mean of an mlp with one hidden layer, all of whose products round a row by its place."""
    first, first_bias, last, last_bias = parameters_at(net, theta).values()
    x = x.flatten(1)
    hidden = torch.tanh(product(x, first.T) + first_bias)
    delta = torch.softmax(product(hidden, last.T) + last_bias, 1) - nn.functional.one_hot(y, len(last))
    back = product(delta, last) * (1 - hidden**2)
    layers = ((back, x), (delta, hidden))
    parts = [part for d, seen in layers for part in ((d[:, :, None] * seen[:, None]).flatten(1), d)]
    each = basis.project(torch.cat(parts, 1)).double()
    each = each * (clip / each.norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)
    return each.nan_to_num().sum(0) / denominator


def rounds_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are not computed in tiles of one shape."""
    monkeypatch.setattr(module, "clipped_mean", by_place)


def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take coefficients of any length."""
    monkeypatch.setattr(Blueprint, "cut", lambda self, sent: sent)


def test_the_product_of_these_tests_is_the_packages_own_but_for_its_rounding(tmp_path: Path) -> None:
    blueprint, federation = opened(many_classes(tmp_path))
    release, records = blueprint.releases_of(0)["gradient"], federation.participants[0].train
    at = 0.3 * torch.randn(blueprint.coefficients, generator=torch.Generator().manual_seed(0))
    given = blueprint.module, blueprint.theta(at), blueprint.basis, records.x, records.y
    mine = by_place(*given, clip=blueprint.plan.clip, denominator=len(records))
    assert torch.allclose(mine, release.statistic(records, at), atol=1e-6)


@pytest.mark.parametrize(("faults", "least"), [((), 1e-5), ((uncut,), 1.0)], ids=["cut", "uncut"])
def test_a_product_that_rounds_by_place_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: tuple[Callable[[pytest.MonkeyPatch], None], ...],
    least: float,
) -> None:
    """With it one record decided about all others, once a server sends what is long enough."""
    plan = many_classes(tmp_path)
    assert found(*opened(plan))[0] < TOLERANCE
    for fault in (rounds_by_place, *faults):
        fault(monkeypatch)
    blueprint, federation = opened(plan)
    far, said, at = found(blueprint, federation)
    assert far > least
    assert any("of what is charged when its records stand in another order" in line for line in said)
    if faults:  # nor are neighbours what they should be
        assert any(
            "of what is charged" in line for line in ratios(plan, families=2, size=4, also=[at]).faults
        )
