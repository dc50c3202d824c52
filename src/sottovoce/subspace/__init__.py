"""Where clients' models may differ from the reference: public orthonormal bases P, opened by `open_basis`."""

from sottovoce.subspace.allocation import Share
from sottovoce.subspace.bases import (
    KINDS,
    Basis,
    Identity,
    Kind,
    SignedPartition,
    StructuredPartition,
    open_basis,
)

__all__ = [
    "KINDS",
    "Basis",
    "Identity",
    "Kind",
    "Share",
    "SignedPartition",
    "StructuredPartition",
    "open_basis",
]
