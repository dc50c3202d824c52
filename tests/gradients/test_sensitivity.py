"""What one record can do to a clipped mean, whatever the record is: the claims that privacy rests on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sottovoce.gradients import clipped_mean, clipped_means, recordwise_logits, sensitivity
from sottovoce.gradients.clipping import sum_clipped
from sottovoce.models.bases import Basis, Identity, open_basis

from . import models

KINDS = ("structured", "unstructured", "identity", "scaled")
CLIP = 0.7
FLOAT32_MAX = torch.finfo(torch.float32).max


def opened(kind: str, module: nn.Module, k: int, seed: int) -> Basis:
    """A basis by its kind; `scaled` is an identity whose last biases count half."""
    if kind != "scaled":
        return open_basis(kind, module, k, seed)
    sizes = [parameter.numel() for parameter in module.parameters()]
    return Identity(sum(sizes), biases=sizes[-1], bias_scale=0.5)


def adversarial(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Records of every temper: ordinary, zero, tiny, huge, at the edge of float32, with NaN and with ∞."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=generator)
    scale = torch.tensor([1.0, 1.0, 0.0, 1e-30, 1e3, 1e10, 1e19, 1e30])
    x *= scale[torch.randint(len(scale), (count,), generator=generator)].reshape(-1, *[1] * len(shape))
    flat = x.flatten(1)
    for i, value in enumerate((torch.nan, torch.inf, -torch.inf, FLOAT32_MAX, -FLOAT32_MAX)):
        flat[i::40, i % flat.shape[1]] = value
        flat[i + 5 :: 40] = value
    return flat.view_as(x)


@pytest.mark.parametrize("cases", [1000, pytest.param(3334, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_replacing_one_record_moves_the_mean_by_at_most_the_sensitivity(kind: str, cases: int) -> None:
    """Replacements of each kind, random and adversarial, at three scales of the parameters."""
    m, shape = 3, (1, 6, 6)
    module = models.tiny()
    generator = torch.Generator().manual_seed(1)
    thetas = torch.randn(cases, sum(p.numel() for p in module.parameters()), generator=generator)
    thetas *= torch.tensor([0.3, 3.0, 300.0])[torch.arange(cases) % 3, None]
    basis = opened(kind, module, 60, seed=2)
    x = torch.randn(cases, m, *shape, generator=generator)
    y = torch.randint(3, (cases, m), generator=generator)
    # A third of the data sets repeat one record, where contributions line up and rounding adds up.
    x[::3], y[::3] = x[::3, :1], y[::3, :1]
    x[:, 1] = adversarial(cases, shape, seed=3)
    other_x, other_y = x.clone(), y.clone()
    other_x[:, 0] = adversarial(cases, shape, seed=4).roll(7, 0)
    other_y[:, 0] = torch.randint(3, (cases,), generator=generator)
    # And a third flip only the label, which turns a confident gradient around.
    other_x[1::3, 0] = x[1::3, 0]
    one, other = (
        clipped_means(module, thetas, [basis] * cases, *data, clip=CLIP, denominator=m)
        for data in ((x, y), (other_x, other_y))
    )
    moved = (one - other).norm(dim=1)
    assert moved.isfinite().all()
    assert moved.max() <= sensitivity(CLIP, m)
    assert moved.max() > 0.9 * sensitivity(CLIP, m)  # the cases reach for the bound


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [models.lenet, models.Residual])
def test_no_contribution_exceeds_the_clip_in_float64(kind: str, build: Callable[[], nn.Module]) -> None:
    shape, classes, k = ((3, 32, 32), 10, 16384) if build is models.lenet else ((5,), 3, 20)
    module = models.seeded(build)
    x, y = models.records(shape, classes, 40)
    x[::4] *= 1e4
    basis = opened(kind, module, max(k, 20), seed=0)
    theta = models.flat(module)
    norms = torch.stack(
        [
            clipped_mean(module, theta, basis, x[i : i + 1], y[i : i + 1], clip=0.01, denominator=1)
            for i in range(40)
        ]
    ).norm(dim=1)
    assert norms.max() <= 0.01
    assert norms.median() > 0.01 * (1 - 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [models.tiny, models.Residual])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, FLOAT32_MAX])
def test_non_finite_records_contribute_zero_and_spoil_nothing(
    kind: str, build: Callable[[], nn.Module], poison: float
) -> None:
    module = models.seeded(build)
    shape = (1, 6, 6) if build is models.tiny else (5,)
    theta, basis = models.flat(module), opened(kind, module, 40, seed=0)
    x, y = models.records(shape, 3, 9)
    clean = clipped_mean(module, theta, basis, x[3:], y[3:], clip=CLIP, denominator=9)
    x[0], x[1, ..., 0], x[2] = poison, poison, poison
    y[2] = (y[2] + 1) % 3
    spoiled = clipped_mean(module, theta, basis, x, y, clip=CLIP, denominator=9)
    assert spoiled.isfinite().all()
    if poison == FLOAT32_MAX:  # such a record may have a finite gradient, which is then clipped as any other
        assert (spoiled - clean).norm() <= 3 * CLIP / 9
    else:
        assert torch.allclose(spoiled, clean, rtol=0, atol=1e-6)


class AcrossTheBatch(nn.Sequential):
    """Subtracts the batch's mean: given a batch, each record's gradient would depend on all others."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x - x.mean(0, keepdim=True) + 1)
        return logits


def test_a_model_that_looks_across_the_batch_sees_one_record_at_a_time() -> None:
    module = models.seeded(lambda: AcrossTheBatch(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    theta, basis = models.flat(module), open_basis("structured", module, 30, seed=0)
    x, y = models.records((5,), 3, 6)
    mean, other = (
        clipped_mean(module, theta, basis, z, y, clip=CLIP, denominator=6) for z in (x, x.flip(0) + 1)
    )
    assert mean.any()
    # Alone, a record is its own mean and cancels: nothing of it is left.
    assert torch.allclose(mean, other, rtol=0, atol=1e-7)


def test_a_record_with_an_infinite_loss_is_left_out_even_if_its_gradient_is_finite() -> None:
    gradients, losses = torch.ones(1, 4, 3), torch.tensor([[0.5, torch.inf, torch.nan]])
    kept = sum_clipped([gradients], losses, clip=CLIP)
    assert torch.allclose(kept, sum_clipped([gradients[..., :1]], losses[:, :1], clip=CLIP), rtol=1e-12)


@pytest.mark.parametrize("outputs", [1, 2, 3, 10])
@pytest.mark.parametrize("inputs", [5, 13, 30, 300])
def test_no_place_in_a_batch_decides_about_a_record(inputs: int, outputs: int) -> None:
    """A server may send weights at which rounding decides: it must not follow from who lies beside a record.

    Sums in float32 that are rounded by place moved a clipped mean by four times what is charged, where one
    record of a thousand had come to stand before the others.
    """
    generator = torch.Generator().manual_seed(0)
    module, records = nn.Linear(inputs, outputs), 300
    x = torch.randn(records, inputs, generator=generator)
    y = torch.randint(outputs, (records,), generator=generator)
    close = torch.randn(outputs, inputs, generator=generator)
    weight = close + 1e8 * torch.randn(inputs, generator=generator)
    theta = torch.cat([weight.flatten(), torch.zeros(outputs)])
    basis, places = Identity(len(theta)), torch.arange(records).roll(1)
    for unit in (None, torch.arange(records)):
        before, after = (
            clipped_mean(
                module,
                theta,
                basis,
                x[order],
                y[order],
                clip=0.5,
                denominator=records,
                unit=unit,
            )
            for order in (torch.arange(records), places)
        )
        assert float((before - after).norm()) < 1e-9 * sensitivity(0.5, records)
    assert torch.equal(
        recordwise_logits(module, theta, x)[places], recordwise_logits(module, theta, x[places])
    )
