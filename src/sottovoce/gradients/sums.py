"""Signed sums of rows for several clients at once: the product Pᵀ·table as one kernel on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class Sums:
    """Group j of a client is the sum of weight·row over the group's entries in the client's table."""

    rows: Tensor  # int32 (clients, entries): which row of the table, sorted by group
    weights: Tensor  # (clients, entries)
    starts: Tensor  # int32 (groups,): the first entry of each group, the same for all clients
    size: int  # rows of one client's table

    @classmethod
    def of(cls, groups: Tensor, weights: Tensor, rows: Tensor, count: int, size: int) -> Sums:
        """Entry e of a client adds weights[e]·table[rows[e]] to group groups[e] < count.

        `groups` and `weights` are (clients, entries), `rows` (entries,). Group sizes agree between clients.
        """
        order = groups.argsort(dim=1, stable=True)
        sizes = torch.bincount(groups[0], minlength=count)
        starts = sizes.cumsum(0) - sizes
        return cls(rows[order].int(), weights.gather(1, order), starts.int(), size)

    def __call__(self, table: Tensor, clients: slice) -> Tensor:
        """From (clients, size, records) to (clients, groups, records)."""
        rows, weights, starts = self.rows[clients], self.weights[clients], self.starts
        count, entries = rows.shape
        if count > 1:
            client = torch.arange(count, device=rows.device, dtype=torch.int32)[:, None]
            rows, starts = rows + client * self.size, starts + client * entries
        # A bag of embeddings is a weighted sum of rows: vectorized over records, one launch for all clients.
        sums = F.embedding_bag(
            rows.reshape(-1),
            table.reshape(count * self.size, -1),
            starts.reshape(-1),
            mode="sum",
            per_sample_weights=weights.reshape(-1).to(table.dtype),
        )
        return sums.reshape(count, -1, table.shape[2])
