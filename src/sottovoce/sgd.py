"""Gradient descent with momentum, the server's step ω ← ω − η v (Eq. 6), v ← momentum · v + gradient; and
the mean of the parameters over its last rounds.

The step is bit for bit what torch.optim.SGD does on dense parameters. That class loads torch's compiler when
it is first used, which costs every server process 70 MB and more than a second.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Descent:
    """Steps along the gradients that lie in a module's parameters.

    A parameter's mean is brought up to date only before it moves, and at the end: it has had the same value
    in all rounds since. So parameters that stay cost nothing; one that came into being late was zero before.
    """

    def __init__(self, module: nn.Module, learning_rate: float, momentum: float) -> None:
        self._module = module
        self._momentum = momentum
        self.learning_rate = learning_rate
        self.velocity: dict[str, Tensor] = {}
        """v by parameter name; empty before the first step, and without momentum for ever."""
        self.averaged = 0
        """Rounds so far that count in the means."""
        self.means: dict[str, Tensor] = {}
        self.rounds: dict[str, int] = {}
        """How many rounds are in the mean of each parameter."""

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
            self._catch_up(name, parameter)
            if self._momentum:
                if name in self.velocity:
                    self.velocity[name].mul_(self._momentum).add_(gradient)
                else:
                    self.velocity[name] = gradient.clone()
                gradient = self.velocity[name]
            parameter.add_(gradient, alpha=-self.learning_rate)

    @torch.no_grad()
    def settle(self) -> dict[str, Tensor]:
        """The means of all parameters over all rounds that count."""
        for name, parameter in self._module.named_parameters():
            self._catch_up(name, parameter)
        return self.means

    def _catch_up(self, name: str, parameter: Tensor) -> None:
        missing = self.averaged - self.rounds.get(name, 0)
        if missing > 0:
            mean = self.means.setdefault(name, torch.zeros_like(parameter))
            mean += (parameter - mean) * missing / self.averaged
            self.rounds[name] = self.averaged
