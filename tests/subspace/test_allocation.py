"""Groups of a structured basis: exactly k, at least one a row, none across rows."""

from __future__ import annotations

import pytest
from torch import nn

from sottovoce.models import lenet
from sottovoce.subspace.allocation import allocate


@pytest.mark.parametrize("coefficients", [1700, 4096, 16384, 50_000, 85_822])
def test_a_lenet_gets_exactly_k_groups_with_every_row_served(coefficients: int) -> None:
    shares = allocate(lenet((1, 28, 28), 10), coefficients)
    assert shares is not None
    assert sum(share.groups for share in shares) == coefficients
    for share in shares:
        per_row = share.groups_per_row()
        assert per_row.sum() == share.groups
        assert 1 <= per_row.min() <= per_row.max() <= share.inputs
        assert per_row.max() - per_row.min() <= 1


def test_biases_stay_unshared() -> None:
    shares = allocate(lenet((1, 28, 28), 10), 4096) or ()
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
