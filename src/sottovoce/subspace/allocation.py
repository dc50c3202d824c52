"""How a structured basis divides its k groups among the layers of a model.

Every weight is a set of rows over inputs (an output unit of a linear layer, one tap of one filter of a
convolution), and no group spans two rows; biases and norms' parameters stay unshared. Weights get groups in
proportion to their size, each row nearly the same number, and the total is exactly k whenever k reaches one
group per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn


@dataclass(frozen=True)
class Share:
    """The groups of one parameter: `groups` over `rows` rows, the first rows having one more when uneven."""

    role: Literal["linear", "conv", "unshared"]
    shape: tuple[int, ...]
    groups: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def inputs(self) -> int:
        """Numbers in one row: the inputs among which groups are shared."""
        return 1 if self.role == "unshared" else self.shape[1]

    @property
    def rows(self) -> int:
        return self.size // self.inputs

    def groups_per_row(self) -> NDArray[np.int64]:
        """(rows,), each at least one, differing by at most one, summing to `groups`."""
        each, extra = divmod(self.groups, self.rows)
        return each + (np.arange(self.rows) < extra)

    def flatten(self, by_row: NDArray[np.int64]) -> NDArray[np.int64]:
        """From (rows, inputs) to the flat order of the parameter."""
        if self.role == "conv":
            filters, inputs, *taps = self.shape
            by_row = np.moveaxis(by_row.reshape(filters, *taps, inputs), -1, 1)
        return np.ascontiguousarray(by_row).reshape(-1)


def allocate(module: nn.Module, coefficients: int) -> tuple[Share, ...] | None:
    """Shares of the parameters of `module`, in their order, with exactly `coefficients` groups.

    None where that cannot be: fewer coefficients than rows, or a weight that is neither linear nor
    convolution.

    >>> [share.groups for share in allocate(nn.Linear(8, 3), 13)]
    [10, 3]
    """
    roles = _roles(module)
    if roles is None:
        return None
    rows = [Share(role, shape, 0).rows for role, shape in roles]
    if sum(rows) > coefficients or sum(int(np.prod(shape)) for _, shape in roles) < coefficients:
        return None

    def groups_at(ratio: float) -> list[int]:
        counts = []
        for (role, shape), least in zip(roles, rows, strict=True):
            size = int(np.prod(shape))
            # Whole multiples of the rows keep a convolution at one partition of its channels.
            wanted = int(ratio * size) // (least if role == "conv" else 1) * (least if role == "conv" else 1)
            counts.append(min(size, max(least, wanted)))
        return counts

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(groups_at(middle)) <= coefficients else (low, middle)
    counts = groups_at(low)
    sizes = [int(np.prod(shape)) for _, shape in roles]
    by_room = sorted(range(len(roles)), key=lambda i: (roles[i][0] != "linear", -sizes[i]))
    for i in by_room:
        given = min(sizes[i] - counts[i], coefficients - sum(counts))
        counts[i] += given
    return tuple(Share(role, shape, n) for (role, shape), n in zip(roles, counts, strict=True))


def _roles(
    module: nn.Module,
) -> list[tuple[Literal["linear", "conv", "unshared"], tuple[int, ...]]] | None:
    weights = {id(m.weight): m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    roles: list[tuple[Literal["linear", "conv", "unshared"], tuple[int, ...]]] = []
    for parameter in module.parameters():
        owner = weights.get(id(parameter))
        if owner is None and parameter.ndim > 1:
            return None
        if owner is None:
            roles.append(("unshared", tuple(parameter.shape)))
        else:
            roles.append(("linear" if isinstance(owner, nn.Linear) else "conv", tuple(parameter.shape)))
    return roles
