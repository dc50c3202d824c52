"""Feature maps by name: unit norm, one record at a time, mirror images, projections, errors that help."""

from __future__ import annotations

import pytest
import torch

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.models.features import open_features, pretrained, projection
from sottovoce.models.features.cache import feature_map
from sottovoce.plan import Plan
from sottovoce.plan.catalog import DESCRIBED

MAPS = [name for name, (_, axes) in DESCRIBED.items() if axes == 3]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 17, 30)])
def test_features_have_unit_norm_and_the_stated_size(name: str, shape: tuple[int, int, int]) -> None:
    features = open_features(name, shape)
    out = features(torch.rand(3, *shape))
    assert out.shape == (3, features.size)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("mirror", [False, True])
def test_features_are_a_function_of_one_record(mirror: bool) -> None:
    features = open_features("scattering+patterns", (3, 32, 32), size=300, mirror=mirror)
    x = torch.rand(260, 3, 32, 32)
    torch.testing.assert_close(features(x)[[0, 259]], features(x[[0, 259]]), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("width", [24, 25])
def test_a_picture_and_its_mirror_image_have_the_same_features_when_asked_for(name: str, width: int) -> None:
    x = torch.rand(2, 3, 24, width)
    both, plain = open_features(name, (3, 24, width), mirror=True), open_features(name, (3, 24, width))
    torch.testing.assert_close(both(x), both(x.flip(-1)), atol=1e-5, rtol=1e-3)
    assert not torch.allclose(plain(x), plain(x.flip(-1)), atol=1e-3)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_flat_picture_has_features_too(value: float) -> None:
    out = open_features("scattering+patterns", (1, 28, 28))(torch.full((1, 1, 28, 28), value))
    torch.testing.assert_close(out.norm(dim=1), torch.ones(1))


def test_a_projection_is_public_and_keeps_inner_products_on_average() -> None:
    rng = torch.Generator().manual_seed(1)
    a, b = torch.nn.functional.normalize(torch.randn(2, 1, 500, generator=rng), dim=2)
    b = torch.nn.functional.normalize(a + b)
    seeds = [projection(500, 64, seed) for seed in range(400)]
    products = torch.stack([(p(a) * p(b)).sum() for p in seeds])
    assert abs(products.mean() - (a * b).sum()) < 4 * products.std() / 20
    assert torch.equal(projection(500, 64, 3)(a), seeds[3](a))


def test_none_is_no_map() -> None:
    assert feature_map(Plan(features="none"), Facts((3, 32, 32), 10)) is None
    with pytest.raises(SottovoceError, match="'none'"):
        open_features("none", (3, 32, 32))


def test_the_maps_contain_no_public_pretraining() -> None:
    assert not any(pretrained(name) for name in MAPS)


def test_mistakes_are_answered_with_what_to_do() -> None:
    with pytest.raises(SottovoceError, match="did you mean 'scattering'"):
        open_features("scatering", (3, 32, 32))
    with pytest.raises(SottovoceError, match="use none"):
        open_features("patterns", (20,))
    with pytest.raises(SottovoceError, match=r"describes series \(T, F\)"):
        open_features("spectrum", (3, 32, 32))
    with pytest.raises(SottovoceError, match="set mirror=false"):
        open_features("spectrum", (32, 3), mirror=True)
    with pytest.raises(SottovoceError, match="describes tokens"):
        open_features("ngrams", (5,))(torch.rand(1, 5))
    with pytest.raises(SottovoceError, match="choose at most"):
        open_features("scattering", (1, 8, 8), size=10_000)
    with pytest.raises(SottovoceError, match="open it for their shape"):
        open_features("scattering", (1, 8, 8))(torch.rand(1, 3, 8, 8))
