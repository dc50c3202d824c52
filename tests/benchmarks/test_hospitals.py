"""The hospitals' benchmark takes the steps that the package takes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from benchmarks.hospitals import LARGE, RESULTS, SIZES, accuracies, clipped_mean, hospitals, table

from sottovoce.gradients import clipped_mean as general
from sottovoce.models.architectures import linear
from sottovoce.models.bases import Identity


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


def test_the_documented_figures_are_the_measured_ones_and_keep_the_promise() -> None:
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = Path(__file__).parents[2] / "docs" / "benchmarks.md"
    assert table(figures) in page.read_text(encoding="utf-8")
    for row, gain, loss in zip(figures, (3.0, 1.0), (0.5, 1.5), strict=True):
        assert row["gain"] >= gain
        assert row["worst_large_site"] >= -loss
