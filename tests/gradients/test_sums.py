"""Signed sums of rows are what a loop over their entries gives, for one client and for several."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce.gradients.clipping import Sums


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_every_group_is_the_weighted_sum_of_its_clients_rows(clients: int) -> None:
    generator = torch.Generator().manual_seed(clients)
    count, size, records = 4, 6, 3
    rows = torch.tensor([0, 5, 2, 2, 1, 3, 4, 0])
    sizes = torch.tensor([0, 0, 1, 2, 2, 2, 3, 3])  # of every client, in an order of its own
    groups = torch.stack([sizes[torch.randperm(8, generator=generator)] for _ in range(clients)])
    weights = torch.randn(clients, 8, generator=generator).double()
    table = torch.randn(clients, size, records, generator=generator).double()
    sums = Sums.of(groups, weights, rows, count, size)
    expected = torch.zeros(clients, count, records).double()
    for client in range(clients):
        for entry, row in enumerate(rows):
            expected[client, groups[client, entry]] += weights[client, entry] * table[client, row]
    assert torch.allclose(sums(table, slice(None)), expected, atol=1e-12)
    for client in range(clients):  # and of some of the clients alone
        some = slice(client, client + 1)
        assert torch.allclose(sums(table[some], some), expected[some], atol=1e-12)


def test_entries_of_a_group_stay_in_their_order() -> None:
    groups = torch.randint(200, (1, 60_000), generator=torch.Generator().manual_seed(0))
    sums = Sums.of(groups, torch.ones(1, 60_000), torch.arange(60_000), 200, 60_000)
    assert sums.rows[0].tolist() == np.argsort(groups[0].numpy(), kind="stable").tolist()


def test_groups_without_entries_are_zero() -> None:
    groups, weights = torch.tensor([[2, 2]]), torch.ones(1, 2)
    sums = Sums.of(groups, weights, torch.tensor([0, 1]), 5, 2)
    table = torch.tensor([[[3.0], [4.0]]])
    assert sums(table, slice(None)).flatten().tolist() == [0.0, 0.0, 7.0, 0.0, 0.0]
