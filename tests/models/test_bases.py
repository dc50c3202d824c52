"""The bases are what the paper says: disjoint non-empty signed groups, orthonormal, public."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from sottovoce.errors import SottovoceError
from sottovoce.models import architectures as models
from sottovoce.models.bases import Identity, SignedPartition, StructuredPartition, allocate, open_basis


def lenet(channels: int, side: int) -> nn.Module:
    return models.lenet((channels, side, side), 10)


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, (3, 2), bias=False), nn.GroupNorm(2, 8), nn.Conv2d(8, 6, 1), nn.Flatten(),
        nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 4),
    )  # fmt: skip


def convolutions_only() -> nn.Module:
    return nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 10, 3), nn.Flatten())


PARTITIONS = [
    ("unstructured", lenet(3, 32), 16384),
    ("structured", lenet(3, 32), 16384),
    ("structured", lenet(3, 32), 1676),
    ("structured", lenet(1, 28), 4096),
    ("structured", lenet(1, 28), 85822),
    *[("structured", normed(), k) for k in (121, 122, 150, 183, 200)],
    *[("structured", convolutions_only(), k) for k in (180, 181, 500, 777, 1169)],
    *[("unstructured", normed(), k) for k in (1, 2, 100)],
]


@pytest.mark.parametrize(("kind", "module", "k"), PARTITIONS)
def test_columns_are_orthonormal_disjoint_and_exactly_k(kind: str, module: nn.Module, k: int) -> None:
    basis = open_basis(kind, module, k, seed=7)
    assert isinstance(basis, SignedPartition)
    assert (basis.kind, basis.coefficients) == (kind, k)
    assert basis.size == sum(p.numel() for p in module.parameters())
    assert torch.bincount(basis.index, minlength=k).min() >= 1
    assert basis.index.max() == k - 1
    squares = torch.zeros(k, dtype=torch.float64).index_add_(0, basis.index, basis.weight.double() ** 2)
    assert (squares - 1).abs().max() < 1e-6


@pytest.mark.parametrize(("kind", "module", "k"), PARTITIONS[:5])
def test_lift_keeps_norms_and_project_is_its_transpose(kind: str, module: nn.Module, k: int) -> None:
    basis = open_basis(kind, module, k, seed=3)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, k, generator=generator, dtype=torch.float64)
    g = torch.randn(2, 3, basis.size, generator=generator, dtype=torch.float64)
    lifted = basis.lift(a)
    assert lifted.shape == (2, 3, basis.size)
    assert torch.allclose(lifted.norm(dim=-1), a.norm(dim=-1), rtol=1e-6)
    assert torch.allclose(basis.project(lifted), a, atol=1e-6)
    assert torch.allclose((lifted * g).sum(-1), (a * basis.project(g)).sum(-1), rtol=1e-6)


def test_every_group_of_a_structured_basis_stays_within_one_row_of_one_layer() -> None:
    module = normed()
    basis = open_basis("structured", module, 150, seed=1)
    assert isinstance(basis, StructuredPartition)
    owners: dict[int, set[tuple[str, int]]] = {}
    start = 0
    for name, p in module.named_parameters():
        groups = basis.index[start : start + p.numel()].reshape(p.shape)
        start += p.numel()
        rows = groups if p.ndim < 2 else groups.movedim(1, -1).reshape(-1, p.shape[1])
        for row, members in enumerate(rows):
            for group in members.reshape(-1).tolist():
                owners.setdefault(group, set()).add((name, row))
    assert all(len(owner) == 1 for owner in owners.values())


def test_rows_of_a_linear_layer_have_partitions_of_their_own() -> None:
    basis = open_basis("structured", lenet(3, 32), 16384, seed=0)
    rows = basis.index[16 * 76 + 32 * 401 :][:96000].reshape(120, 800)
    first, second = rows[0] - rows[0].min(), rows[1] - rows[1].min()
    assert (first == second).float().mean() < 0.05


def test_the_same_seed_gives_the_same_basis_and_another_seed_another() -> None:
    for kind in ("structured", "unstructured"):
        one, same, other = (open_basis(kind, lenet(1, 28), 4096, seed=s) for s in (5, 5, 6))
        assert torch.equal(one.index, same.index)
        assert torch.equal(one.weight, same.weight)
        assert not torch.equal(one.index, other.index)


def test_the_basis_of_a_seed_never_changes() -> None:
    """Golden values: a model file stores the seed alone, so the construction is part of its format."""
    linear = nn.Linear(5, 2)
    unstructured, structured = (
        open_basis(kind, linear, 6, seed=11) for kind in ("unstructured", "structured")
    )
    assert "".join(map(str, unstructured.index.tolist())) == "253211400345"
    assert "".join(map(str, structured.index.tolist())) == "002023111345"
    assert "".join("-+"[w > 0] for w in structured.weight) == "-----+--+-++"


def test_too_few_coefficients_fall_back_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        basis = open_basis("structured", lenet(3, 32), 1675, seed=0)
    assert basis.kind == "unstructured"
    assert basis.coefficients == 1675
    assert "unstructured" in caplog.text


def test_weights_without_rows_fall_back() -> None:
    assert open_basis("structured", nn.Conv1d(2, 3, 4), 20, seed=0).kind == "unstructured"


def test_identity_lifts_and_projects_to_itself() -> None:
    basis = open_basis("identity", nn.Linear(3, 2), 0, seed=0)
    assert isinstance(basis, Identity)
    g = torch.arange(8.0)
    assert torch.equal(basis.project(g), g)
    assert torch.equal(basis.lift(g), g)
    assert basis.coefficients == 8


def test_an_identity_that_scales_biases_is_symmetric_and_has_an_inverse() -> None:
    basis = Identity(8, biases=2, bias_scale=0.5)
    columns = basis.lift(torch.eye(8))
    assert torch.equal(columns, torch.diag(torch.tensor([1.0] * 6 + [0.5] * 2)))
    assert torch.equal(basis.project(torch.eye(8)), columns.T)
    v = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(basis.lift(basis.coordinates(v)), v)


@pytest.mark.parametrize("k", [0, 16, -1])
def test_impossible_sizes_are_refused_in_one_line(k: int) -> None:
    with pytest.raises(SottovoceError, match="at most 15"):
        open_basis("unstructured", nn.Linear(4, 3), k, seed=0)


# Groups of a structured basis: exactly k, at least one a row, none across rows.


@pytest.mark.parametrize("coefficients", [1700, 4096, 16384, 50_000, 85_822])
def test_a_lenet_gets_exactly_k_groups_with_every_row_served(coefficients: int) -> None:
    shares = allocate(lenet(1, 28), coefficients)
    assert shares is not None
    assert sum(share.groups for share in shares) == coefficients
    for share in shares:
        per_row = share.groups_per_row()
        assert per_row.sum() == share.groups
        assert 1 <= per_row.min() <= per_row.max() <= share.inputs
        assert per_row.max() - per_row.min() <= 1


def test_biases_stay_unshared() -> None:
    shares = allocate(lenet(1, 28), 4096) or ()
    assert {share.role for share in shares if len(share.shape) == 1} == {"unshared"}


@pytest.mark.parametrize(
    ("module", "coefficients"),
    [(nn.Linear(8, 3), 5), (nn.Linear(8, 3), 28), (nn.Embedding(4, 4), 8), (nn.Conv1d(2, 2, 3), 8)],
)
def test_where_there_is_no_such_structure_nothing_is_allocated(module: nn.Module, coefficients: int) -> None:
    assert allocate(module, coefficients) is None


def test_frozen_parameters_have_no_share() -> None:
    module = nn.Sequential(nn.Linear(8, 3).requires_grad_(False), nn.Linear(3, 2))
    shares = allocate(module, 6) or ()
    assert [share.shape for share in shares] == [(2, 3), (2,)]
