"""Gradient descent with momentum, the server's step ω ← ω − η v (Eq. 6), v ← momentum · v + gradient.

Bit for bit what torch.optim.SGD does on dense parameters. That class loads torch's compiler when it is first
used, which costs every server process 70 MB and more than a second.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Descent:
    """Steps along the gradients that lie in a module's parameters."""

    def __init__(self, module: nn.Module, learning_rate: float, momentum: float) -> None:
        self._module = module
        self._momentum = momentum
        self.learning_rate = learning_rate
        self.velocity: dict[str, Tensor] = {}
        """v by parameter name; empty before the first step, and without momentum for ever."""

    def zero(self) -> None:
        """Forgets the gradients."""
        for parameter in self._module.parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step; parameters without a gradient stay."""
        for name, parameter in self._module.named_parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            if self._momentum:
                if name in self.velocity:
                    self.velocity[name].mul_(self._momentum).add_(gradient)
                else:
                    self.velocity[name] = gradient.clone()
                gradient = self.velocity[name]
            parameter.add_(gradient, alpha=-self.learning_rate)
