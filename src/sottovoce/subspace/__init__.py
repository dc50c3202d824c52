"""Where clients' models may differ from the reference: public orthonormal bases P, opened by `open_basis`."""

from sottovoce.subspace.allocation import Share
from sottovoce.subspace.bases import (
    BASIS_KINDS,
    Basis,
    BasisKind,
    Identity,
    SignedPartition,
    StructuredPartition,
    open_basis,
)

__all__ = [
    "BASIS_KINDS",
    "Basis",
    "BasisKind",
    "Identity",
    "Share",
    "SignedPartition",
    "StructuredPartition",
    "open_basis",
]
