"""The hospitals' benchmark takes the steps that the package takes."""

from __future__ import annotations

import torch
from benchmarks.hospitals import LARGE, SIZES, accuracies, clipped_mean, hospitals

from sottovoce.gradients import clipped_mean as general
from sottovoce.models import linear
from sottovoce.subspace import Identity


def test_the_closed_form_is_the_packages_clipped_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 5, generator=generator), torch.randint(3, (50,), generator=generator)
    coefficients = torch.randn(18, generator=generator)
    found = clipped_mean(coefficients, x, y, 0.5)
    wanted = general(linear((5,), 3), coefficients, Identity(18), x, y, clip=0.5, denominator=50)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_twelve_sites_are_judged_by_fresh_records_of_their_own() -> None:
    sites = hospitals(1)
    assert [len(sites.records.x[sites.records.client == i]) for i in range(12)] == list(SIZES)
    assert sum(size > LARGE for size in SIZES) == 5
    found = accuracies(sites, {"epsilon": 8.0, "rounds": 4}, seed=1)
    assert found.shape == (12,)
    assert found.mean() > 35
