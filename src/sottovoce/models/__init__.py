"""Public functions of a record; `Model` is θ_ref + P a, in which personal models differ."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sottovoce.models.bases import Basis
from sottovoce.models.parameters import flat_parameters
from sottovoce.models.tasks import Losses, cross_entropy


@dataclass(frozen=True, eq=False)
class Model:
    """The public half of every personal model: a module at θ_ref, and the basis P in which models differ."""

    module: nn.Module
    basis: Basis
    reference: Tensor
    losses: Losses
    """The loss of each record, from outputs and targets."""

    @classmethod
    def of(cls, module: nn.Module, basis: Basis, losses: Losses = cross_entropy) -> Model:
        return cls(module, basis, flat_parameters(module), losses)

    def theta(self, coefficients: Tensor) -> Tensor:
        """Model parameters θ_ref + P a, (…, d)."""
        return self.reference + self.basis.lift(coefficients)
