"""What a GPU does in its own way is the same function; its kernels are tested where there is a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sottovoce.gradients import clipped_means, gpu
from sottovoce.gradients.gpu import Window
from sottovoce.gradients.partitions import _products
from sottovoce.models.bases import open_basis

from . import models, reference_kernels

KINDS = ("structured", "unstructured", "identity")
STACKS = [
    (models.lenet, (3, 32, 32), 10, 16384),
    (models.mixed, (4, 9, 8), 4, 301),
    (models.convolutional, (6, 7, 7), 4, 333),
    (models.perceptron, (3, 4), 4, 77),
]
OPTIONS = {"clip": 0.5, "denominator": 7}
WINDOWS = [
    Window((5, 5), (1, 1), (0, 0), (1, 1)),
    Window((3, 2), (2, 1), (1, 0), (1, 2)),
    Window((2, 3), (1, 3), (0, 2), (3, 1)),
]


@contextmanager
def like_a_card(kernels: ModuleType | None) -> Iterator[None]:
    """The CPU works as a GPU does, without kernels of ours or with what they compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "on_gpu", lambda values: True)
        patch.setattr(gpu, "kernels", lambda device: kernels)
        yield
    _products.cache_clear()


with_and_without = pytest.mark.parametrize("kernels", [None, reference_kernels], ids=["torch", "kernels"])


def several(build: object, shape: tuple[int, ...], classes: int, k: int, kind: str) -> tuple[object, ...]:
    assert callable(build)
    module = models.seeded(build)
    thetas = models.flat(module).repeat(3, 1)
    thetas = thetas + 0.01 * torch.randn(thetas.shape, generator=torch.Generator().manual_seed(3))
    x, y = models.records(shape, classes, 21)
    bases = [open_basis(kind, module, k, seed) for seed in range(3)]
    return module, thetas, bases, x.unflatten(0, (3, 7)), y.unflatten(0, (3, 7))


@with_and_without
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("build", "shape", "classes", "k"), STACKS)
def test_clients_together_get_what_each_gets_alone(
    build: object, shape: tuple[int, ...], classes: int, k: int, kind: str, kernels: ModuleType | None
) -> None:
    module, thetas, bases, x, y = several(build, shape, classes, k, kind)
    assert isinstance(module, nn.Module)
    x[1, 2] = torch.nan  # contributes nothing
    alone = clipped_means(module, thetas, bases, x, y, **OPTIONS)  # type: ignore[arg-type]
    with like_a_card(kernels):
        together = clipped_means(module, thetas, bases, x, y, **OPTIONS)  # type: ignore[arg-type]
    assert together.dtype == torch.float64
    assert together.isfinite().all()
    assert (together - alone).norm(dim=1).max() <= 5e-7


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_in_float64_is_exact_although_kernels_are_not(kind: str) -> None:
    module, thetas, bases, x, y = several(models.mixed, (4, 9, 8), 4, 301, kind)
    assert isinstance(module, nn.Module)
    inputs: Any = (module.double(), thetas.double(), bases, x.double(), y)  # type: ignore[attr-defined]
    alone = clipped_means(*inputs, **OPTIONS)  # type: ignore[arg-type]
    with like_a_card(reference_kernels):
        together = clipped_means(*inputs, **OPTIONS)  # type: ignore[arg-type]
    assert (together - alone).norm(dim=1).max() <= 1e-12


def parts(device: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    values = torch.randn(3, 130, 45, generator=draw)
    scales = torch.rand(3, 45, generator=draw, dtype=torch.float64)
    scales[0, 7], values[0, :, 7] = 0.0, torch.inf
    return values.to(device), scales.to(device)


@with_and_without
def test_records_with_a_scale_of_zero_are_not_multiplied(kernels: ModuleType | None) -> None:
    values, scales = parts("cpu")
    with like_a_card(kernels):
        total = gpu.weighted_sum(values, scales)
    clean = torch.where(scales[:, None] > 0, values.double(), 0.0)
    assert torch.allclose(total, (clean * scales[:, None]).sum(2), rtol=1e-13)


@pytest.mark.parametrize("window", WINDOWS)
def test_patches_are_those_of_an_unfolded_image(window: Window) -> None:
    images = torch.randn(4, 3, 12, 11, generator=torch.Generator().manual_seed(2))
    found = window.patches(images)
    assert found.shape[2] == math.prod(window.places(12, 11))
    assert torch.equal(found, reference_kernels.patches(window, images))


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("transposed", [False, True])
def test_the_kernel_of_weighted_sums(transposed: bool) -> None:
    values, scales = parts("cuda")
    if transposed:
        values = values.mT.contiguous().mT
    found = gpu.kernels("cuda")
    assert found is not None
    want = reference_kernels.weighted_sum(*parts("cpu"))
    assert torch.allclose(found.weighted_sum(values, scales).cpu(), want, rtol=1e-12)


@needs_gpu
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_kernel_of_patches(window: Window, layout: torch.memory_format) -> None:
    images = torch.randn(70, 3, 12, 11, generator=torch.Generator().manual_seed(2))
    want = reference_kernels.patches(window, images)
    found = gpu.kernels("cuda")
    assert found is not None
    got = found.patches(window, images.cuda().contiguous(memory_format=layout))
    assert torch.equal(got.cpu(), want)


@needs_gpu
@pytest.mark.parametrize("window", WINDOWS)
def test_the_kernel_of_the_transpose_of_patches(window: Window) -> None:
    images = torch.randn(70, 3, 12, 11, generator=torch.Generator().manual_seed(2))
    values = reference_kernels.patches(window, images)
    found = gpu.kernels("cuda")
    assert found is not None
    got = found.fold(window, values.cuda(), images.shape)
    assert torch.allclose(got.cpu(), reference_kernels.fold(window, values, images.shape), atol=1e-5)


@needs_gpu
@pytest.mark.parametrize("side", [2, 3])
def test_the_kernel_of_pools(side: int) -> None:
    images = torch.randn(9, 3, 12, 11, generator=torch.Generator().manual_seed(2)).round()  # with ties
    images[0, 0, 0, 0] = torch.nan
    images.requires_grad_()
    wanted = nn.functional.max_pool2d(images, side)
    (back,) = torch.autograd.grad(wanted.square().sum(), images)
    here = images.detach().cuda().requires_grad_()
    got = gpu.pooled(nn.MaxPool2d(side), here)
    assert got is not None
    assert torch.equal(got.nan_to_num(9.0).cpu(), wanted.nan_to_num(9.0))
    (mine,) = torch.autograd.grad(got.square().sum(), here)
    assert torch.equal(mine.nan_to_num(9.0).cpu(), back.nan_to_num(9.0))


@needs_gpu
def test_the_kernel_of_group_sums() -> None:
    draw = torch.Generator().manual_seed(4)
    rows = torch.randn(2, 50, 64, generator=draw)
    counts = torch.randint(1, 9, (200,), generator=draw)
    entries, longest = int(counts.sum()), int(counts.max())
    first, second = (torch.randint(0, 50, (2, entries), generator=draw).int() for _ in range(2))
    weights = torch.randn(2, entries, generator=draw)
    starts = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
    tables = (rows, first, second, weights, starts)
    want = reference_kernels.group_sums(*tables, longest, 41)
    found = gpu.kernels("cuda")
    assert found is not None
    got = found.group_sums(*(table.cuda() for table in tables), longest, 41)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.allclose(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)
    assert torch.allclose(got[1], got[0].double().square().sum(1), rtol=1e-12)
