from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.plan.catalog import CONTEXTS
from sottovoce.privacy.accounting import calibrate
from sottovoce.release.once import Statistic
from sottovoce.release.once.context import (
    Confusion,
    LabelHistogram,
    MeanPrediction,
    MeanProbability,
    Moments,
    block_groups,
    open_statistic,
)
from sottovoce.training.server import Server
from tests.small import SMALL, built, small_plan

CLASSES, RECORDS, SHAPE = 10, 25, (3, 4, 4)


def records(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ordinary, huge, constant, zero and broken records in turn."""
    x = torch.randn(count, *SHAPE, generator=generator)
    kind = torch.randint(8, (count,), generator=generator)
    x[kind == 1] *= 1e30
    x[kind == 2] = -1e30
    x[kind == 3] = 0.0
    x[kind == 4, 0, 0, 0] = math.nan
    x[kind == 5] = math.inf
    y = torch.randint(CLASSES, (count,), generator=generator)
    logits = torch.randn(count, CLASSES, generator=generator) * 10.0 ** torch.randint(
        -3, 4, (count, 1), generator=generator
    )
    logits[kind == 4] = math.nan
    logits[kind == 5, 3] = math.inf
    return x, y, logits


STATISTICS: list[Statistic] = [
    Moments(block_groups(SHAPE)),
    Moments(block_groups(SHAPE, 2)),
    Moments(torch.arange(math.prod(SHAPE)) % 7),
    LabelHistogram(CLASSES),
    MeanPrediction(CLASSES),
]


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda s: f"{type(s).__name__}-{s.size}")
def test_replacing_one_record_moves_the_context_by_at_most_its_sensitivity(statistic: Statistic) -> None:
    generator = torch.Generator().manual_seed(7)
    bound = statistic.sensitivity(RECORDS) * (1 + 1e-12)
    largest = 0.0
    for _ in range(1000):
        x, y, logits = records(generator, RECORDS + 1)
        before = statistic.mean(x[:-1], y[:-1], RECORDS, logits[:-1])
        place = int(torch.randint(RECORDS, (1,), generator=generator))
        for tensor in (x, y, logits):
            tensor[place] = tensor[-1]
        after = statistic.mean(x[:-1], y[:-1], RECORDS, logits[:-1])
        assert torch.isfinite(after).all()
        largest = max(largest, float((before - after).norm()))
    assert largest <= bound
    # The bound is not idle: shares of classes reach it, moments come to more than half of it.
    assert largest > 0.5 * bound


def test_every_moment_vector_lies_in_the_unit_ball() -> None:
    x, y, _ = records(torch.Generator().manual_seed(1), 500)
    vectors = Moments(block_groups(SHAPE)).per_record(x, y, None)
    finite = vectors[torch.isfinite(vectors).all(dim=1)]
    assert len(finite) > 200
    assert float(finite.norm(dim=1).max()) <= 1 + 1e-12


def test_moments_are_the_papers_formula() -> None:
    x = np.random.default_rng(0).normal(size=(5, *SHAPE)).astype(np.float32)
    expected = np.zeros(6)
    for image in x.astype(np.float64):
        mean, square = image.mean(axis=(1, 2)), (image**2).mean(axis=(1, 2))
        expected += np.concatenate([np.tanh(mean), np.tanh(square)]) / math.sqrt(6) / 5
    context = Moments(block_groups(SHAPE)).mean(torch.from_numpy(x), torch.zeros(5).long(), 5)
    assert np.allclose(context.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_record_contributes_zero_and_keeps_the_denominator(broken: float) -> None:
    x, y = torch.ones(4, *SHAPE), torch.zeros(4).long()
    whole = Moments(block_groups(SHAPE)).mean(x, y, 4)
    x[2, 0, 0, 0] = broken
    assert torch.allclose(Moments(block_groups(SHAPE)).mean(x, y, 4), whole * 3 / 4)
    assert LabelHistogram(CLASSES).mean(x, y, 4)[0] == 3 / 4


@pytest.mark.parametrize("statistic", [LabelHistogram(3), Moments(torch.tensor([0, 0]))])
def test_a_record_with_a_token_outside_the_vocabulary_contributes_zero(statistic: Statistic) -> None:
    x, y = torch.tensor([[1, 2], [-1, -1], [3, -1], [5, 4]]), torch.tensor([1, 0, 2, 1])
    whole = torch.tensor([0, 3])
    expected = statistic.mean(x[whole], y[whole], 2) / 2
    assert torch.allclose(statistic.mean(x, y, 4), expected)
    assert torch.allclose(statistic.mean(x, y, 4, unit=torch.arange(4)), expected)


def test_only_the_label_histogram_uses_labels_and_only_predictions_a_model() -> None:
    assert {name for name, traits in CONTEXTS.items() if traits.uses_labels} == {"labels", "shares"}
    assert {name for name, traits in CONTEXTS.items() if traits.uses_model} == {"predictions"}


def test_a_context_of_the_wrong_number_of_records_is_refused() -> None:
    with pytest.raises(SottovoceError, match="exactly 5"):
        LabelHistogram(3).mean(torch.zeros(4, 2), torch.zeros(4).long(), 5)


def test_groups_cover_every_coordinate_once() -> None:
    groups = block_groups((3, 5, 7), 2)
    assert len(groups) == 105
    assert groups.unique().tolist() == list(range(12))
    assert block_groups((8,)).tolist() == [0] * 8
    with pytest.raises(SottovoceError, match="needs a member"):
        Moments(torch.tensor([0, 2]))
    with pytest.raises(SottovoceError, match="lower it"):
        block_groups((1, 4, 4), 5)


def test_two_records_differ_in_their_moments_by_the_charged_spread_and_by_no_more() -> None:
    statistic = Moments(torch.arange(3).repeat_interleave(4))
    generator = torch.Generator().manual_seed(3)
    levels = torch.cat([torch.linspace(-4, 4, 161), torch.tensor([-1e30, -50.0, 50.0, 1e30])])
    constant = levels[:, None].expand(-1, 12)
    mixed = torch.randn(400, 12, generator=generator) * 10.0 ** torch.randint(
        -3, 3, (400, 1), generator=generator
    )
    vectors = statistic.per_record(torch.cat([constant, mixed]), torch.zeros(0), None)
    everything = torch.cat([vectors, torch.zeros(1, 6, dtype=torch.float64)])  # a missing record is zero
    farthest = float(torch.cdist(everything, everything).max())
    assert farthest <= statistic.spread * (1 + 1e-12)
    assert farthest == pytest.approx(math.sqrt(2.0), rel=1e-12)  # tight
    assert statistic.calibrated_sensitivity(1) == 2.0


def test_noise_is_calibrated_for_the_papers_bound_and_charged_by_the_tight_one() -> None:
    made = built(small_plan(gradient_records=40), Facts((1, 28, 28), 10), SMALL["model"])
    release, plan = made.releases["context"], made.plan
    assert release.sensitivity == pytest.approx(math.sqrt(2) / plan.context_records)
    gradient = made.releases["gradient"]
    squared = made.releases_max * gradient.sensitivity**2 + (2 / plan.context_records) ** 2
    expected = calibrate(epsilon=8.0, delta=plan.delta, accounting="exact", squared_sensitivity=squared)
    assert made.sigma == pytest.approx(expected, rel=1e-9)
    for spread in CONTEXTS:
        statistic = open_statistic(spread, SHAPE, CLASSES)
        assert statistic.calibrated_sensitivity(7) >= statistic.sensitivity(7)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_shares_under_a_model_count_records_whose_outputs_are_finite(broken: float) -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 1, 2])
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 1.0, 0.0], [9.0, 9.0, broken]])
    p = torch.softmax(logits[:3].double(), dim=1)
    assert MeanPrediction(3).mean(x, y, 4, logits).tolist() == [0.25, 0.25, 0.25]
    assert torch.allclose(MeanProbability(3).mean(x, y, 4, logits), p.sum(dim=0) / 4)
    confusion = Confusion(3)
    assert confusion.size == 9
    found = confusion.mean(x, y, 4, logits).reshape(3, 3)
    assert torch.allclose(found, torch.stack([p[0], p[1] + p[2], torch.zeros(3).double()]) / 4)
    for statistic in (MeanPrediction(3), MeanProbability(3), confusion):
        assert statistic.sensitivity(4) == pytest.approx(math.sqrt(2) / 4)
        with pytest.raises(SottovoceError, match="model"):
            statistic.mean(x, y, 4)


def test_the_vector_that_stands_in_for_a_context_is_as_long_as_contexts_are() -> None:
    moments, shares = Moments(block_groups(SHAPE)).neutral, LabelHistogram(CLASSES).neutral
    assert (moments.shape, moments.dtype) == ((6,), torch.float32)
    assert float(moments.norm()) == pytest.approx(1.0)
    assert (shares.shape, shares.dtype) == ((CLASSES,), torch.float32)
    assert float(shares.sum()) == pytest.approx(1.0)


def test_images_are_cut_into_tiles_row_by_row_and_other_records_into_their_first_index() -> None:
    assert block_groups((1, 2, 4), 2).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert block_groups((1, 4, 2), 2).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert block_groups((2, 1, 2)).tolist() == [0, 0, 1, 1]
    assert block_groups((2, 3, 3), 3).tolist() == list(range(18))
    assert block_groups((3, 2)).tolist() == [0, 0, 1, 1, 2, 2]
    assert block_groups((2, 2, 2, 2)).tolist() == [0] * 8 + [1] * 8
    for shape in ((8,), (3, 2)):
        with pytest.raises(SottovoceError, match="cuts images into tiles"):
            block_groups(shape, 2)
    for shape in ((1, 3, 2), (1, 2, 3)):
        with pytest.raises(SottovoceError, match="more than the image has"):
            block_groups(shape, 3)
    assert open_statistic("moments", SHAPE, CLASSES).size == 6
    assert open_statistic("moments", SHAPE, CLASSES, 2).size == 24


@pytest.mark.parametrize("name", ["standardized", "predictions"])
@pytest.mark.parametrize("count", [0, 1])
def test_contexts_closed_with_too_few_participants_stay_as_they_are(name: str, count: int) -> None:
    plan = small_plan(gradient_records=40, context=name, context_round=2)
    server = Server(built(plan, Facts((1, 28, 28), 10), SMALL["model"]))
    context = np.full(server.blueprint.statistic.size, 0.25)
    for participant in range(count):
        server.receive_context(participant, context)
    server.close_contexts()
    assert all(bool(torch.isfinite(value).all()) for value in server.state().values())
    assert bool(torch.isfinite(server.personalize(context)).all())
    if count:
        assert server.inputs([0])[0].tolist() == context.tolist()


@pytest.mark.parametrize(("first", "counted"), [(0, 4), (1, 4), (-1, 3)])
def test_the_first_token_of_a_vocabulary_counts_and_one_outside_it_does_not(first: int, counted: int) -> None:
    x, y = torch.full((4, 3), 7), torch.zeros(4, dtype=torch.int64)
    x[0, 0] = first
    mean = LabelHistogram(2).mean(x, y, 4)
    whole = LabelHistogram(2).mean(torch.full((4, 3), 7), y, 4)
    assert torch.allclose(mean, whole * counted / 4)
