"""A unit of several records moves a clipped sum no further than one record could."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_mean, sensitivity, vmap
from sottovoce.gradients.vmap import record_gradients
from sottovoce.models.bases import Identity, open_basis
from sottovoce.release.once.context import LabelHistogram, Moments

NET, BASIS = nn.Linear(3, 2), Identity(8)
THETA = torch.tensor([0.3, -0.2, 0.5, 0.1, 0.4, -0.6, 0.2, -0.1])


class Own(nn.Module):
    """The same by a way of its own, which is no stack."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "basis", [BASIS, Identity(8, biases=2, bias_scale=0.5), open_basis("structured", NET, 6, 0)]
)
def test_a_stack_and_any_other_module_have_the_same_units(basis: Any) -> None:
    x, y = _records(50)
    options = {"clip": 0.5, "denominator": 9, "unit": torch.arange(50) // 6}
    one, other = (clipped_mean(net, THETA, basis, x, y, **options) for net in (NET, Own()))
    assert torch.allclose(one, other, atol=1e-7)
    assert one.norm() > 0.01


def _records(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator), torch.randint(2, (count,), generator=generator)


def _mean(x: torch.Tensor, y: torch.Tensor, unit: torch.Tensor, denominator: int, clip: float = 0.5):
    return clipped_mean(NET, THETA, BASIS, x, y, clip=clip, denominator=denominator, unit=unit)


def test_a_unit_of_one_record_each_is_the_mean_over_records() -> None:
    x, y = _records(7)
    alone = clipped_mean(NET, THETA, BASIS, x, y, clip=0.5, denominator=7)
    assert torch.allclose(_mean(x, y, torch.arange(7), 7), alone, atol=1e-7)


def test_gradients_are_averaged_within_a_unit_and_then_clipped() -> None:
    # Two large gradients that cancel: averaged first they are nearly nothing; clipped first they are not,
    # because they are of different norms.
    x = torch.tensor([[100.0, 0, 0], [-99.0, 0, 0]])
    y = torch.tensor([0, 0])
    (gradients, _), *_ = record_gradients(NET, torch.zeros(8), BASIS, x, y)
    mean = gradients.double().mean(dim=0)
    assert 0 < mean.norm() < 1
    found = clipped_mean(NET, torch.zeros(8), BASIS, x, y, clip=2.0, denominator=1, unit=torch.tensor([4, 4]))
    assert torch.allclose(found, mean, atol=1e-6)
    clipped_before = sum(g.double() * min(1.0, 2.0 / float(g.norm())) for g in gradients) / 2
    assert not torch.allclose(found, clipped_before, atol=0.05)


@pytest.mark.parametrize("worth", [torch.inf, torch.nan])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_record_of_which_loss_or_gradient_is_not_finite_is_left_out_of_its_unit(
    worth: float, what: str
) -> None:
    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bad = torch.where(y == 1, worth, 0.0)
        fine = outputs.square().sum(dim=1)
        # A loss that is not finite and whose gradient is, or a gradient that is not and whose loss is.
        return fine + bad if what == "loss" else fine + (outputs[:, 0] - outputs[:, 0].detach()) * bad

    x, _ = _records(4)
    y, unit = torch.tensor([0, 1, 0, 0]), torch.tensor([5, 5, 5, 8])
    keep = torch.tensor([0, 2, 3])
    options = {"clip": 0.5, "denominator": 2, "loss": loss}
    found = clipped_mean(NET, THETA, BASIS, x, y, unit=unit, **options)
    without = clipped_mean(NET, THETA, BASIS, x[keep], y[keep], unit=unit[keep], **options)
    assert torch.allclose(found, without)


def test_units_are_refused_what_records_are_refused() -> None:
    x, y = _records(4)
    unit = torch.tensor([0, 0, 1, 1])
    with pytest.raises(SottovoceError, match="positive"):
        _mean(x, y, unit, 0)
    with pytest.raises(SottovoceError, match="positive"):
        _mean(x, y, unit, 2, clip=0.0)
    with pytest.raises(SottovoceError, match="does not fit"):
        clipped_mean(NET, THETA, Identity(9), x, y, clip=0.5, denominator=2, unit=unit)
    mixing = nn.Sequential(NET, nn.BatchNorm1d(2)).train()
    with pytest.raises(SottovoceError, match="mixes records"):
        clipped_mean(mixing, torch.zeros(12), Identity(12), x, y, clip=0.5, denominator=2, unit=unit)


@pytest.mark.parametrize("rows", [1, 2, 50])
def test_replacing_a_unit_of_any_number_of_records_moves_the_mean_by_at_most_the_sensitivity(
    rows: int,
) -> None:
    x, y = _records(12)
    unit = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4])
    others = unit != 1
    before = _mean(x, y, unit, 5)
    direction = torch.full((rows, 3), 1e4) * torch.tensor([1.0, -1.0, 1.0])
    for label in (0, 1):
        theirs = torch.full((rows,), label)
        after = _mean(
            torch.cat([x[others], direction]),
            torch.cat([y[others], theirs]),
            torch.cat([unit[others], torch.ones(rows).long()]),
            5,
        )
        assert (after - before).norm() <= sensitivity(0.5, 5)


def test_the_number_of_a_units_records_does_not_move_the_share_of_another_unit() -> None:
    x, y = _records(3)
    alone = _mean(x[:1], y[:1], torch.tensor([0]), 2)
    many = _mean(
        torch.cat([x[:1], torch.full((9, 3), torch.nan)]),
        torch.cat([y[:1], torch.zeros(9).long()]),
        torch.tensor([0] + [1] * 9),
        2,
    )
    assert torch.equal(alone, many)


def test_units_whose_records_lie_apart_and_in_several_tiles_are_whole() -> None:
    x, y = _records(230)
    unit = torch.randint(4, (230,), generator=torch.Generator().manual_seed(1))
    each = [torch.cat([g for g, _ in record_gradients(NET, THETA, BASIS, x, y)])[unit == u] for u in range(4)]
    means = torch.stack([gradients.double().mean(dim=0) for gradients in each])
    clipped = means * (0.5 / means.norm(dim=1)).clamp_max(1.0)[:, None]
    assert torch.allclose(_mean(x, y, unit, 4), clipped.mean(dim=0), atol=1e-7)


def test_records_of_a_unit_are_added_in_their_order() -> None:
    x, y = _records(3_000)
    x = x * torch.logspace(-6, 6, 3_000)[:, None]  # so unlike that the order shows in the last bits
    unit = torch.randint(5, (3_000,), generator=torch.Generator().manual_seed(1))
    order = torch.from_numpy(np.argsort(unit.numpy(), kind="stable"))
    assert torch.equal(_mean(x, y, unit, 5), _mean(x[order], y[order], unit[order], 5))


@pytest.mark.parametrize("build", [lambda: NET, lambda: Own()])
def test_gradients_of_a_tile_are_held_and_no_more(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held, units = [], vmap.clipped_unit_sum

    def seen(rows: vmap.Rows, *given: Any) -> torch.Tensor:
        def noted(x: torch.Tensor, y: torch.Tensor) -> Any:
            for gradients, losses in rows(x, y):
                held.append(len(gradients))
                yield gradients, losses

        return units(noted, *given)

    monkeypatch.setattr(vmap, "clipped_unit_sum", seen)
    x, y = _records(70)
    clipped_mean(build(), THETA, BASIS, x, y, clip=0.5, denominator=2, unit=torch.arange(70) // 35)
    assert held == [32, 32, 6]


@pytest.mark.parametrize("statistic", [LabelHistogram(2), Moments(torch.tensor([0, 0, 1]))])
def test_a_context_averages_within_units_first(statistic: LabelHistogram | Moments) -> None:
    x, y = _records(6)
    unit = torch.tensor([0, 0, 0, 0, 0, 1])
    vectors = statistic.per_record(x, y, None)
    expected = (vectors[:5].mean(dim=0) + vectors[5]) / 2
    assert torch.allclose(statistic.mean(x, y, 2, unit=unit), expected)
    x[0] = torch.nan
    rest = (statistic.per_record(x[1:], y[1:], None)[:4].mean(dim=0) + vectors[5]) / 2
    assert torch.allclose(statistic.mean(x, y, 2, unit=unit), rest)
