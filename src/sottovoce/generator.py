"""Generators: the server-side map from a context to k coefficients (Eq. 3), and the controls of Sec. 3.3.

All are `nn.Module`s from contexts (n, c) to coefficients (n, k), and all start at zero coefficients, so
that training starts at the reference model. `gain` is ‖h‖², the isotropic part of the kernel
K_ji = ⟨h_j, h_i⟩ I + W H_j H_iᵀ Wᵀ (Eq. 9) by which a release of client i moves the coefficients of client j.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sottovoce.catalog import entry
from sottovoce.seeding import seeded


class Generator(nn.Module):
    """Coefficients a = W h(c), with `trunk` the map h from contexts (n, c) to (n, r)."""

    def __init__(self, trunk: nn.Module, hidden: int, coefficients: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.weight = nn.Parameter(torch.zeros(coefficients, hidden))

    def forward(self, contexts: Tensor) -> Tensor:
        coefficients: Tensor = self.trunk(contexts) @ self.weight.T
        return coefficients

    def gain(self, contexts: Tensor) -> Tensor:
        """‖h‖² of each context, (n,)."""
        gain: Tensor = self.trunk(contexts).square().sum(dim=1)
        return gain


class SharedCoefficients(nn.Module):
    """The coefficients themselves are the parameters, one vector for all clients; the gain is 1."""

    def __init__(self, coefficients: int) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.zeros(coefficients))

    def forward(self, contexts: Tensor) -> Tensor:
        return self.shared.expand(len(contexts), -1)

    def gain(self, contexts: Tensor) -> Tensor:
        return torch.ones(len(contexts), device=self.shared.device)


class RadialTrunk(nn.Module):
    """h = ‖h_ψ(c)‖ v: the hidden direction v stays what it was at the start, only the norm evolves."""

    direction: Tensor

    def __init__(self, trunk: nn.Module, start: Tensor) -> None:
        super().__init__()
        self.trunk = trunk
        with torch.no_grad():
            h = trunk(start)
        self.register_buffer("direction", h / h.norm())

    def forward(self, contexts: Tensor) -> Tensor:
        norms: Tensor = self.trunk(contexts).norm(dim=1, keepdim=True)
        return norms * self.direction


def _shared(start: Tensor, hidden: int, layers: int, coefficients: int) -> SharedCoefficients:
    return SharedCoefficients(coefficients)


def _linear(start: Tensor, hidden: int, layers: int, coefficients: int) -> Generator:
    return Generator(nn.Linear(len(start), hidden, bias=False), hidden, coefficients)


def _factorized(start: Tensor, hidden: int, layers: int, coefficients: int) -> Generator:
    return Generator(_trunk(start, hidden, layers), hidden, coefficients)


def _radial(start: Tensor, hidden: int, layers: int, coefficients: int) -> Generator:
    return Generator(RadialTrunk(_trunk(start, hidden, layers), start), hidden, coefficients)


def _trunk(start: Tensor, hidden: int, layers: int) -> nn.Module:
    """h_ψ: linear layers, each with a ReLU."""
    stack: list[nn.Module] = []
    for width in (len(start), *[hidden] * (layers - 1)):
        stack += [nn.Linear(width, hidden), nn.ReLU()]
    return nn.Sequential(*stack)


GENERATORS: dict[str, Callable[[Tensor, int, int, int], Generator | SharedCoefficients]] = {
    "global": _shared,
    "direct": _shared,
    "replay": _shared,
    "deep-linear": _linear,
    "full": _factorized,
    "factorized": _factorized,
    "radial": _radial,
}
"""What opens the generator of each method of the catalog, from (start, hidden, layers, coefficients)."""


def open_generator(
    method: str, start: Tensor, hidden: int, layers: int, coefficients: int, seed: int
) -> Generator | SharedCoefficients:
    """The generator of a plan's method, at its public initialization.

    `start` (c,) is the context that stands in before any is released; the radial control is frozen there.

    >>> generator = open_generator("factorized", torch.ones(6), 100, layers=2, coefficients=32, seed=0)
    >>> generator(torch.rand(3, 6)).shape
    torch.Size([3, 32])
    """
    with seeded(seed):
        return entry("method", method, GENERATORS)(start, hidden, layers, coefficients)
