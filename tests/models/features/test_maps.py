"""Feature maps by name: unit norm, one record at a time, mirror images, projections, errors that help."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.models import features as module
from sottovoce.models.features import FeatureMap, open_features, projection
from sottovoce.models.features.cache import feature_map
from sottovoce.models.features.local import pretrained
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


def hostile(name: str, shape: tuple[int, ...], count: int) -> Tensor:
    """Records of which some are all that a neighbour can be: empty, far away, tiny, holed."""
    generator = torch.Generator().manual_seed(5)
    if name == "ngrams":
        x = torch.randint(50_000, (count, *shape), generator=generator)
        x[::7] = -1
        return x
    x = torch.rand(count, *shape, generator=generator)
    for place, value in enumerate((0.0, 1e30, -1e30, 1e-42, torch.nan, torch.inf)):
        x[7 + place :: 41] = value
    return x


CASES = [
    ("scattering", (1, 8, 8), False),
    ("scattering", (3, 9, 12), True),
    ("patterns", (1, 8, 8), True),
    ("scattering+patterns", (3, 8, 7), False),
    ("spectrum", (33, 7), False),
    ("spectrum", (9, 1), False),
    ("spectrum", (17, 70), False),
    ("ngrams", (9,), False),
]
WHOLE = [("scattering", (1, 28, 28), False), ("patterns", (3, 32, 32), False)]


@pytest.mark.parametrize(("name", "shape", "mirror"), CASES)
def test_neither_place_nor_company_changes_a_bit_of_a_records_features(
    name: str, shape: tuple[int, ...], mirror: bool
) -> None:
    features, tile = open_features(name, shape, size=20, mirror=mirror), 256 if len(shape) < 3 else 32
    every = range(1, tile + 1, tile // 8 - 1)
    check_company(features, hostile(name, shape, 2 * tile + 1), [*every, tile, tile + 1, 2 * tile + 1])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "shape", "mirror"),
    [*CASES, ("scattering", (1, 28, 28), False), ("patterns", (3, 32, 32), False)],
)
def test_so_it_is_for_all_numbers_of_records(name: str, shape: tuple[int, ...], mirror: bool) -> None:
    features = open_features(name, shape, size=20, mirror=mirror)
    check_company(features, hostile(name, shape, 600), range(1, 601))


def check_company(features: FeatureMap, x: Tensor, counts: Iterable[int]) -> None:
    """Each record of all, then some of them in another order, with one core and with two."""
    random, before = torch.Generator().manual_seed(6), torch.get_num_threads()
    together = features(x)
    try:
        for count in counts:
            torch.set_num_threads(1 + count % 2)
            chosen = torch.randperm(len(x), generator=random)[:count]
            found = features(x[chosen])
            same = (found == together[chosen]) | (found.isnan() & together[chosen].isnan())
            assert same.all(), f"{count} records"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "shape"), [("patterns", (1, 8, 8)), ("spectrum", (33, 7))])
def test_where_places_decide_how_a_map_is_rounded_it_sees_one_record_at_a_time(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_even", {})
    seen, real = list[int](), FeatureMap._described

    def uneven(self: FeatureMap, x: Tensor) -> Tensor:
        seen.append(len(x))
        return real(self, x) * (1 + 1e-6 * torch.arange(len(x)))[:, None]

    monkeypatch.setattr(FeatureMap, "_described", uneven)
    features, x = open_features(name, shape), torch.rand(5, *shape)
    features(x)
    assert seen[-5:] == [1] * 5
    assert torch.equal(features(x.flip(0)), features(x).flip(0))


def test_large_pictures_are_described_one_by_one_and_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "even", None)
    assert open_features("scattering", (3, 128, 128), size=9)(torch.rand(2, 3, 128, 128)).shape == (2, 9)


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
