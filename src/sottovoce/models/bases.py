"""Adaptation subspaces: the public bases P in which clients' models differ from the reference.

A signed partition (Appendix A of the paper) puts the d model parameters into k disjoint non-empty groups
with public random signs, so that PᵀP = I, ‖P a‖ = ‖a‖, and lifting or projecting costs one pass over d
numbers. The structured variant keeps every group within one row of one layer, so that per-record gradients
can be clipped in the subspace without ever being written out. Every basis follows from its seed alone,
alike on every machine.

The structured variant divides its k groups among the layers. Every weight is a set of rows over inputs (an
output unit of a linear layer, one tap of one filter of a convolution), and no group spans two rows; biases,
norms' parameters and the smallest weights stay unshared. The others get groups in proportion to their size,
each row nearly the same number; the total is exactly k whenever k reaches one group per row.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sottovoce.errors import SottovoceError, nearest
from sottovoce.models.parameters import trainable

BasisKind = Literal["structured", "unstructured", "identity"]
BASIS_KINDS: tuple[BasisKind, ...] = ("structured", "unstructured", "identity")

Role = Literal["linear", "conv", "unshared"]

log = logging.getLogger("sottovoce.subspace")


@dataclass(frozen=True, eq=False)
class SignedPartition:
    """P with one signed entry per row: parameter q belongs to group `index[q]` with weight s_q/√|I_j|.

    >>> basis = open_basis("unstructured", nn.Linear(4, 3), coefficients=5, seed=0)
    >>> a = torch.randn(2, 5)
    >>> torch.allclose(basis.project(basis.lift(a)), a, atol=1e-6)
    True
    """

    kind: ClassVar[BasisKind] = "unstructured"
    coefficients: int
    index: Tensor  # int64 (d,)
    weight: Tensor  # float32 (d,)

    @property
    def size(self) -> int:
        return self.index.numel()

    def lift(self, a: Tensor) -> Tensor:
        """P a, from (..., k) to (..., d), in the precision of `a`; ‖P a‖ = ‖a‖."""
        return a.index_select(-1, self.index) * self.weight.to(a.dtype)

    def project(self, g: Tensor) -> Tensor:
        """Pᵀ g, from (..., d) to (..., k), in the precision of `g`; ‖Pᵀ g‖ ≤ ‖g‖."""
        out = g.new_zeros(*g.shape[:-1], self.coefficients)
        return out.index_add_(-1, self.index, g * self.weight.to(g.dtype))

    def coordinates(self, v: Tensor) -> Tensor:
        """The a with P a = v, of a v (..., d) that P reaches: Pᵀ v, since PᵀP = I."""
        return self.project(v)

    def to(self, device: torch.device | str) -> Self:
        return replace(self, index=self.index.to(device), weight=self.weight.to(device))


@dataclass(frozen=True)
class Share:
    """The groups of one parameter: `groups` over `rows` rows, the first rows having one more when uneven."""

    role: Role
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
        """(rows,), each at least one, differing by at most one, summing to `groups`; the first have more."""
        each, more = divmod(self.groups, self.rows)
        return each + (np.arange(self.rows) < more)

    def flatten(self, by_row: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows, inputs) to the flat order of the parameter; rows of convolutions are (taps, filters)."""
        if self.role == "conv":
            filters, inputs, *window = self.shape
            by_row = by_row.reshape(*window, filters, inputs).transpose(2, 3, 0, 1)
        return by_row.reshape(-1)


@dataclass(frozen=True, eq=False)
class StructuredPartition(SignedPartition):
    """A signed partition whose groups stay within one row of one weight.

    A row of a linear weight has a partition of its inputs of its own; all taps of a convolution share one
    or two partitions of its input channels; every other parameter is a group by itself.
    """

    kind: ClassVar[BasisKind] = "structured"
    shares: tuple[Share, ...]  # in the order of the parameters


@dataclass(frozen=True)
class Identity:
    """k = d: the whole model adapts (methods `global` and `full`).

    The columns of P are unit vectors, but for those of the last `biases` parameters, which have the length
    `bias_scale`: beside inputs of norm 1 a bias would take half of what a clip bound leaves to a record.

    >>> Identity(3, biases=1, bias_scale=0.5).lift(torch.ones(3))
    tensor([1.0000, 1.0000, 0.5000])
    """

    kind: ClassVar[BasisKind] = "identity"
    size: int
    biases: int = 0
    bias_scale: float = 1.0

    @property
    def coefficients(self) -> int:
        return self.size

    def lift(self, a: Tensor) -> Tensor:
        """P a."""
        return self._scaled(a, self.bias_scale)

    def project(self, g: Tensor) -> Tensor:
        """Pᵀ g."""
        return self._scaled(g, self.bias_scale)

    def coordinates(self, v: Tensor) -> Tensor:
        """P⁻¹ v."""
        return self._scaled(v, 1.0 / self.bias_scale)

    def to(self, device: torch.device | str) -> Self:
        return self

    def _scaled(self, values: Tensor, factor: float) -> Tensor:
        if factor == 1.0:
            return values
        rest = self.size - self.biases
        return torch.cat([values[..., :rest], factor * values[..., rest:]], dim=-1)


Basis = SignedPartition | Identity
"""P ∈ ℝ^{d×k}, d = `size` and k = `coefficients`, whose columns are orthogonal."""


def open_basis(kind: str, module: nn.Module, coefficients: int, seed: int) -> Basis:
    """The basis of `kind` with `coefficients` columns for the parameters of `module`, from a public seed.

    The parameters are taken in the order of `torch.nn.utils.parameters_to_vector`. `identity` ignores
    `coefficients`. Where k is too small (or a weight too unusual) for the structure, `structured` falls
    back to `unstructured` with a warning, and the `kind` of what is returned tells the truth.

    >>> open_basis("identity", nn.Linear(4, 3), coefficients=0, seed=0).coefficients
    15
    """
    size = sum(parameter.numel() for parameter in trainable(module))
    if kind == "identity":
        return Identity(size)
    if kind not in BASIS_KINDS:
        raise SottovoceError(f"unknown basis '{kind}': {nearest(kind, BASIS_KINDS)}")
    if not 1 <= coefficients <= size:
        raise SottovoceError(
            f"coefficients={coefficients} does not fit a model of {size} parameters: "
            f"set coefficients to at most {size}"
        )
    bits = _PublicBits(seed)
    if kind == "structured":
        shares = allocate(module, coefficients)
        if shares is not None:
            return _structured(shares, coefficients, bits)
        log.warning(
            "no structured basis with %d coefficients for this model: using the unstructured one",
            coefficients,
        )
    order = bits.permutation((size,))
    index = np.empty(size, np.int64)
    index[order] = np.arange(size) % coefficients
    return SignedPartition(coefficients, *_signed(index, bits.signs((size,)), coefficients))


class _PublicBits:
    """A stream of public random bits; Philox's raw stream is the same for every release of numpy."""

    def __init__(self, seed: int) -> None:
        self._raw = np.random.Philox(key=seed)

    def permutation(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Independent uniform permutations of the last axis."""
        keys = self._raw.random_raw(int(np.prod(shape))).reshape(shape)
        return np.argsort(keys, axis=-1, kind="stable")

    def signs(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        top = self._raw.random_raw(int(np.prod(shape))).reshape(shape) >> np.uint64(63)
        return 2 * top.astype(np.int64) - 1


def _signed(index: NDArray[np.int64], signs: NDArray[np.int64], groups: int) -> tuple[Tensor, Tensor]:
    sizes = np.bincount(index, minlength=groups)
    weight = signs / np.sqrt(sizes[index])
    return torch.from_numpy(index), torch.from_numpy(weight.astype(np.float32))


def _structured(shares: tuple[Share, ...], coefficients: int, bits: _PublicBits) -> StructuredPartition:
    index, signs, first = [], [], 0
    for share in shares:
        # A convolution draws once for all its taps, which then see one and the same sketch of its input.
        drawn = (share.rows if share.role == "linear" else 1, share.inputs)
        local = bits.permutation(drawn) % share.groups_per_row()[:, None]
        # Group g of row r is number g·rows + r: the order in which gradients come out of a layer.
        index.append(share.flatten(first + local * share.rows + np.arange(share.rows)[:, None]))
        signs.append(share.flatten(np.broadcast_to(bits.signs(drawn), (share.rows, share.inputs))))
        first += share.groups
    parts = _signed(np.concatenate(index), np.concatenate(signs), coefficients)
    return StructuredPartition(coefficients, *parts, shares)


def allocate(module: nn.Module, coefficients: int) -> tuple[Share, ...] | None:
    """Shares of the parameters of `module`, in their order, with exactly `coefficients` groups.

    None where that cannot be: fewer coefficients than rows, or a weight that is neither linear nor
    convolution.

    >>> [share.groups for share in allocate(nn.Linear(8, 3), 13)]
    [10, 3]
    """
    bare = _bare_shares(module)
    if bare is None:
        return None
    if not sum(share.rows for share in bare) <= coefficients <= sum(share.size for share in bare):
        return None
    least = _least(bare, coefficients)

    def groups_at(ratio: float) -> list[int]:
        # Whole multiples of the rows keep a convolution at one partition of its channels.
        steps = [share.rows if share.role == "conv" else 1 for share in bare]
        wanted = [step * round(ratio * share.size / step) for share, step in zip(bare, steps, strict=True)]
        return [max(fewest, n) for fewest, n in zip(least, wanted, strict=True)]

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(groups_at(middle)) <= coefficients else (low, middle)
    groups = groups_at(low)
    linear_first = sorted(range(len(bare)), key=lambda i: (bare[i].role != "linear", -bare[i].size))
    for i in linear_first:
        groups[i] += min(bare[i].size - groups[i], coefficients - sum(groups))
    return tuple(
        replace(share, groups=n, role="unshared" if n == share.size else share.role)
        for share, n in zip(bare, groups, strict=True)
    )


def _least(shares: list[Share], coefficients: int) -> list[int]:
    """The fewest groups of each parameter: one a row, and for the smallest weights all, up to a quarter of
    k.

    Sharing within the first convolution and the last layer costs a LeNet two to three points of accuracy
    on CIFAR-10 and frees next to nothing.
    """
    least = [share.rows for share in shares]
    small = 0
    for i in sorted(range(len(shares)), key=lambda i: shares[i].size):
        if shares[i].role == "unshared":
            continue
        small += shares[i].size
        if 4 * small > coefficients or sum(least) - least[i] + shares[i].size > coefficients:
            break
        least[i] = shares[i].size
    return least


def _bare_shares(module: nn.Module) -> list[Share] | None:
    """The parameters with their roles, and no groups yet; None where a weight has no role."""
    owners = {id(p): m for m in module.modules() for p in m.parameters(recurse=False)}
    shares = []
    for parameter in trainable(module):
        owner, shape = owners[id(parameter)], tuple(parameter.shape)
        if isinstance(owner, nn.Linear) and parameter is owner.weight:
            shares.append(Share("linear", shape, 0))
        elif isinstance(owner, nn.Conv2d) and parameter is owner.weight:
            shares.append(Share("conv", shape, 0))
        elif parameter.ndim <= 1 or isinstance(owner, nn.LayerNorm | nn.GroupNorm):
            shares.append(Share("unshared", shape, 0))
        else:
            return None
    return shares
