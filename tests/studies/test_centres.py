"""Descriptions measured from the centre of generated pictures."""

from __future__ import annotations

import torch
from studies.images import generate

from sottovoce.models.features.fixed import Scattering
from sottovoce.models.features.patterns import (
    Network,
    Patterns,
    by_kind,
    centred,
    paths,
    shipped,
    standardized,
)


def test_brightness_and_contrast_of_a_description_do_not_matter() -> None:
    values = torch.randn(4, 3, 5, 6)
    torch.testing.assert_close(standardized(3 * values + 2), standardized(values), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(centred(values, torch.randn(5)).norm(dim=1), torch.ones(4))


def test_generated_pictures_lie_around_the_shipped_centres() -> None:
    x = generate(96, 32, torch.Generator().manual_seed(99))
    patterns = Patterns(Network.shipped())
    described = {
        "scattering": paths(Scattering(32, 32)(x)),
        "patterns": patterns(x),
    }
    for name, values in described.items():
        mean, centre = standardized(values).mean((0, 1, 3)), shipped()[name]
        assert (mean - centre).norm() < 0.6 * centre.norm()  # of 96 pictures


def test_a_kind_of_coefficient_cannot_drown_another() -> None:
    coefficients = torch.rand(3, 1, 9, 9, 7, 7)
    louder = coefficients.clone()
    louder[:, :, 0, 0] *= 1000
    torch.testing.assert_close(by_kind(louder), by_kind(coefficients), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(by_kind(coefficients).norm(dim=1), torch.ones(3))
