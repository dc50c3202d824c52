"""Place and company decide nothing: what a record does to a release is a function of it and of coefficients.

Coefficients are an adversary's, who has no bound to keep to. Whatever order records stand in and whoever is
beside them, a statistic moves by rounding in float64 and nothing else: by 1e-6 of its charge at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sottovoce.audit.hostile import EXPONENTS, Hostile
from sottovoce.data import Facts
from sottovoce.gradients import clipped_mean, clipped_means, recordwise_logits, sensitivity
from sottovoce.models import architectures, tiles
from sottovoce.models.bases import open_basis
from sottovoce.models.tasks import open_task
from sottovoce.plan.recipes import V0_2
from sottovoce.release.once import Statistic
from sottovoce.release.once.calibration import Derivatives
from sottovoce.release.once.centre import Inputs
from sottovoce.release.once.context import Confusion, MeanPrediction, MeanProbability, Moments, block_groups
from tests import hostile

from . import models

MOST = 1e-6
CLIP = 0.5


class Narrow(nn.Module):
    """An own residual network with eight hidden units; inputs (12,)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.head(h + torch.relu(self.inner(h)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Model:
    """A model and the records that it takes."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = 3

    def records(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        x, y = models.records(self.shape, self.classes, count, seed)
        return ((100 * x).abs().long() if self.build is bag else x), y


def bag() -> nn.Module:
    return architectures.Bag((20,), 4)


def mlp(inputs: int, sizes: str, classes: int, activation: str = "tanh") -> Model:
    def build() -> nn.Module:
        return architectures.mlp((inputs,), classes, mlp_sizes=sizes, mlp_activation=activation)

    return Model(build, (inputs,), classes)


def linear(*shape: int, classes: int = 3) -> Model:
    return Model(lambda: architectures.linear(shape, classes), shape, classes)


FLAT = {"table": linear(30, classes=10), "two columns": linear(2), "one class": linear(50, classes=1)}
AXES = {
    "series": linear(50, 1),
    "short series": linear(10, 5),
    "picture": linear(1, 8, 8),
    "film": linear(2, 3, 4, 4),
}
NARROW = {
    "ten": mlp(20, "10", 10),
    "six": mlp(20, "6", 7),
    "deep": mlp(9, "7,13,5", 20, "relu"),
    "one unit": mlp(33, "1", 4),
    "wide, then narrow": mlp(20, "64,9", 12),
}
STACKS = {"tiny": Model(models.tiny, (1, 6, 6)), "mixed": Model(models.mixed, (4, 9, 8), 4)}
OWN = {
    "narrow": Model(Narrow, (12,)),
    "residual": Model(models.Residual, (5,)),
    "tied": Model(models.tied, (5,)),
    "sequence": Model(models.sequence, (3, 5)),
    "depthwise": Model(models.depthwise, (4, 5, 5)),
}
BAG = {"bag": Model(bag, (20,), 4)}
LENET = {"lenet": Model(lambda: architectures.lenet((1, 28, 28), 10), (1, 28, 28), 10)}
QUICK = {**FLAT, **AXES, **NARROW, **STACKS, **OWN}

GRADIENTS = ("identity", "structured", "unstructured")
WITH_MODEL = ("confusion", "calibration", "predictions", "probabilities")
WITHOUT = ("moments", "centre")
KINDS = (*GRADIENTS, *WITH_MODEL, *WITHOUT)


def statistic_of(model: Model, kind: str) -> Statistic:
    """A statistic that is released once."""
    facts = Facts(model.shape, model.classes)
    made: dict[str, Callable[[], Statistic]] = {
        "confusion": lambda: Confusion(model.classes),
        "calibration": lambda: Derivatives(open_task(facts), V0_2.calibrating),
        "predictions": lambda: MeanPrediction(model.classes),
        "probabilities": lambda: MeanProbability(model.classes),
        "moments": lambda: Moments(block_groups(model.shape)),
        "centre": lambda: Inputs(torch.Size(model.shape).numel(), V0_2.longest),
    }
    return made[kind]()


class Setting:
    """A kind of release of so many records of a model, with units of three records each or without."""

    def __init__(self, model: Model, kind: str, count: int, *, units: bool = False, seed: int = 0) -> None:
        self.module, self.kind, self.count = models.seeded(model.build), kind, count
        self.x, self.y = model.records(count, seed)
        self.unit = torch.arange(count) // 3 if units else None
        self.denominator = -(-count // 3) if units else count
        if kind in GRADIENTS:
            size = sum(parameter.numel() for parameter in self.module.parameters())
            self.basis = open_basis(kind, self.module, max(1, size // 2), seed=0)
            self.charge = sensitivity(CLIP, self.denominator)
        else:
            self.statistic = statistic_of(model, kind)
            self.charge = self.statistic.sensitivity(self.denominator)

    def __call__(self, theta: Tensor, order: Tensor) -> Tensor:
        """Of the records of these numbers, in this order, with a denominator that stays."""
        x, y = self.x[order], self.y[order]
        unit = None if self.unit is None else self.unit[order]
        if self.kind in GRADIENTS:
            options = {"clip": CLIP, "denominator": self.denominator, "unit": unit}
            return clipped_mean(self.module, theta, self.basis, x, y, **options)  # type: ignore[arg-type]
        output = recordwise_logits(self.module, theta, x) if self.kind in WITH_MODEL else None
        found = len(order) if unit is None else len(unit.unique())
        return self.statistic.mean(x, y, found, output, unit) * (found / self.denominator)

    def ratio(self, theta: Tensor) -> float:
        """How far place and company move it, in parts of its charge."""
        whole = self.unit is None  # records of a unit stay together
        return hostile.moved(
            lambda order: self(theta, order), self.count, self.charge, Random(0), apart=1 if whole else 3
        )

    def worst(self, seeds: int = 3) -> float:
        return max(self.ratio(hostile.ties(self.module, seed)) for seed in range(seeds))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_hidden_layer_sends_back_to_a_record_what_is_its_own(name: str, kind: str) -> None:
    assert Setting(NARROW[name], kind, 320).worst() < MOST


@pytest.mark.parametrize("kind", ["confusion", "calibration", "predictions", "probabilities"])
@pytest.mark.parametrize("name", AXES)
def test_a_record_of_several_axes_is_predicted_alike_in_every_place(name: str, kind: str) -> None:
    assert Setting(AXES[name], kind, 97).worst() < MOST


@pytest.mark.parametrize("name", {**AXES, **STACKS})
def test_a_unit_counts_alike_in_every_place(name: str) -> None:
    assert Setting({**AXES, **STACKS}[name], "identity", 97, units=True).worst() < MOST


@pytest.mark.parametrize("kind", ["identity", "confusion"])
@pytest.mark.parametrize("name", {**OWN, **STACKS})
@pytest.mark.parametrize("count", [2, 3, 65])
def test_a_rest_of_a_few_records_is_rounded_as_all_others_are(name: str, kind: str, count: int) -> None:
    assert Setting({**OWN, **STACKS}[name], kind, count).worst() < MOST


@pytest.mark.parametrize(("name", "count"), [("bag", 33), ("bag", 70), ("lenet", 33), ("lenet", 66)])
def test_a_rest_of_one_two_or_six_records_of_a_larger_model_is_no_exception(name: str, count: int) -> None:
    assert Setting({**BAG, **LENET}[name], "unstructured", count).worst(seeds=2) < MOST


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(QUICK)),
    kind=st.sampled_from(KINDS),
    count=st.one_of(st.integers(1, 100), st.integers(1, 1000)),
    units=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_no_coefficients_make_place_or_company_decide(
    name: str, kind: str, count: int, units: bool, random: Random
) -> None:
    tried = Setting(QUICK[name], kind, count, units=units, seed=random.getrandbits(20))
    if kind in WITHOUT:
        tried.x *= 10.0 ** random.choice(EXPONENTS)
        assert tried.ratio(torch.zeros(0)) < MOST
        return
    for _ in range(3):
        assert tried.ratio(Hostile.drawn(tried.module, random).theta(tried.module)) < MOST


@pytest.mark.parametrize("name", ["table", "picture", "ten", "narrow"])
def test_any_number_of_records_is_the_sum_of_what_each_does_alone(name: str) -> None:
    tried = Setting(QUICK[name], "identity", 200 if name == "narrow" else 1000)
    theta = hostile.ties(tried.module, seed=1)
    alone = torch.stack([tried(theta, torch.tensor([place])) for place in range(tried.count)]).cumsum(0)
    for count in [*range(1, 101), *Random(0).sample(range(101, tried.count + 1), 30), tried.count]:
        found = tried(theta, torch.arange(count))
        assert float((found - alone[count - 1]).norm()) < MOST * tried.charge


@pytest.mark.parametrize("kind", ["structured", "confusion"])
@pytest.mark.parametrize("name", ["table", "tiny", "deep", "narrow"])
def test_two_threads_compute_what_one_does(name: str, kind: str) -> None:
    tried = Setting(QUICK[name], kind, 150)
    theta, everybody = hostile.ties(tried.module, seed=2), torch.arange(150)
    with threads(1):
        one = tried(theta, everybody)
    with threads(2):
        assert torch.equal(tried(theta, everybody), one)
        assert tried.ratio(theta) < MOST


@pytest.mark.parametrize("name", ["ten", "tiny"])
def test_many_clients_at_once_get_what_each_gets_in_another_order(name: str) -> None:
    tried = Setting(QUICK[name], "identity", 66)
    theta, order = hostile.ties(tried.module, seed=3), torch.arange(66).roll(1)
    x, y = torch.stack([tried.x, tried.x[order]]), torch.stack([tried.y, tried.y[order]])
    options = {"clip": CLIP, "denominator": 66}
    both = clipped_means(tried.module, theta.expand(2, -1), [tried.basis] * 2, x, y, **options)  # type: ignore[arg-type]
    assert float((both[0] - both[1]).norm()) < MOST * tried.charge


def test_gradients_of_a_unit_that_cancel_leave_nothing_to_the_order_of_its_records() -> None:
    """Sums of huge numbers and their opposites keep of small ones what the order leaves of them."""
    module, basis = nn.Linear(3, 2), open_basis("identity", nn.Linear(3, 2), 0, 0)
    x = torch.tensor([[1e20, 0, 0], [-1e20, 0, 0], [0, 1, 0]])
    y, unit = torch.tensor([0, 0, 1]), torch.zeros(3).long()
    found = [
        clipped_mean(module, torch.zeros(8), basis, x[order], y[order], clip=CLIP, denominator=1, unit=unit)
        for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1])
    ]
    assert all(float((one - found[0]).norm()) < MOST * sensitivity(CLIP, 1) for one in found)
    assert float(found[0].norm()) > 0.1


@pytest.mark.parametrize("shape", [(12,), (50, 1), (3, 6, 6), (2, 3, 4, 4)])
@pytest.mark.parametrize("exponent", [0, 9, 20])
def test_moments_of_values_that_cancel_are_alike_in_every_place(
    shape: tuple[int, ...], exponent: int
) -> None:
    tried = Setting(linear(*shape), "moments", 97)
    flat = tried.x.view(97, -1)
    flat += 10.0**exponent * (1 - 2 * (torch.arange(flat.shape[1]) % 2))
    assert tried.ratio(torch.zeros(0)) < MOST


@pytest.mark.parametrize("kind", ["identity", "structured", "confusion", "moments"])
@pytest.mark.parametrize("name", ["ten", "tiny", "narrow"])
def test_where_places_are_rounded_differently_each_record_is_computed_alone(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, theta = Setting(QUICK[name], kind, 40), torch.empty(0)
    if kind != "moments":
        theta = 0.1 * torch.randn(sum(parameter.numel() for parameter in usual.module.parameters()))
    expected = usual(theta, torch.arange(40))
    monkeypatch.setattr(tiles, "even", lambda function, records: False)
    alone = Setting(QUICK[name], kind, 40)
    assert torch.allclose(alone(theta, torch.arange(40)), expected, atol=1e-6)
    assert alone.ratio(theta) < MOST
    owner = alone.statistic if kind == "moments" else alone.module
    assert set(tiles._known[owner].values()) == {1}
