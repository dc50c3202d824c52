"""Clipping: no record passes the bound, by however little, and none that is not finite takes part."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sottovoce.errors import SottovoceError
from sottovoce.gradients.clipping import blank, clip_scales, refuse_unclippable, sum_clipped


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(1e-6, 1e6))
def test_a_clipped_record_never_exceeds_the_bound(seed: int, clip: float, scale: float) -> None:
    g = scale * torch.randn(1, 50, 1, generator=torch.Generator().manual_seed(seed))
    clipped = sum_clipped([g], torch.zeros(1, 1), clip)
    assert float(clipped.norm()) <= clip
    if float(g.double().norm()) <= clip * (1 - 1e-9):
        assert torch.equal(clipped[0], g[0, :, 0].double())


def test_parts_are_clipped_together() -> None:
    g = torch.randn(2, 3000, 5)
    losses = torch.zeros(2, 5)
    whole = sum_clipped([g], losses, 1.0)
    assert torch.allclose(sum_clipped([g[:, :7], g[:, 7:]], losses, 1.0), whole, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_contributes_nothing(bad: float) -> None:
    g, losses = torch.randn(1, 4, 3), torch.zeros(1, 3)
    without = sum_clipped([g[:, :, 1:]], losses[:, 1:], 1.0)
    g[0, 2, 0] = bad
    assert torch.allclose(sum_clipped([g], losses, 1.0), without)
    losses[0, 1] = bad
    assert clip_scales(torch.ones(3).double(), losses[0], 1.0).tolist()[1] == 0.0


def test_a_sum_over_broken_records_alone_is_zero() -> None:
    g = torch.full((1, 4, 3), torch.nan)
    assert torch.equal(sum_clipped([g], torch.zeros(1, 3), 1.0), torch.zeros(1, 4).double())


def test_what_has_no_scale_is_zero_before_it_meets_a_product() -> None:
    values = torch.tensor([[torch.nan, 2.0, torch.inf], [3.0, 4.0, 5.0]])
    scales = torch.tensor([[0.0, 0.5, 0.0], [1.0, 0.25, 1.0]])
    assert blank(values, scales).tolist() == [[0.0, 2.0, 0.0], [3.0, 4.0, 5.0]]
    assert blank(values[1:], scales[1:]).tolist() == [[3.0, 4.0, 5.0]]


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.Dropout(0.5)])
def test_layers_that_mix_records_or_draw_at_random_are_refused(layer: nn.Module) -> None:
    with pytest.raises(SottovoceError, match="layer '0'"):
        refuse_unclippable(nn.Sequential(layer).train())
    refuse_unclippable(nn.Sequential(nn.Dropout(0.5), nn.GroupNorm(1, 3)).eval())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.0).train(),
        nn.InstanceNorm2d(3).train(),
        nn.InstanceNorm2d(3, track_running_stats=True).eval(),
    ],
)
def test_layers_that_draw_nothing_and_keep_records_apart_may_stay(layer: nn.Module) -> None:
    refuse_unclippable(nn.Sequential(layer))
