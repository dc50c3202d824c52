"""Optimizers: how the server steps along the gradients that releases leave, ω ← ω − η v (Eq. 6).

All of them keep the mean of the parameters over the last rounds. What they do is post-processing of releases
and costs no privacy. torch's own optimizers load its compiler when they are first used, which costs every
server process 70 MB and more than a second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn

from sottovoce.plan.catalog import OPTIMIZERS, entry, function


class Optimizer(ABC):
    """Steps along the gradients that lie in a module's parameters.

    A parameter's mean is brought up to date only before it moves, and at the end: it has had the same value
    in all rounds since. So parameters that stay cost nothing; one that came into being late was zero before.
    """

    def __init__(self, module: nn.Module, learning_rate: float, momentum: float) -> None:
        self._module = module
        self.momentum = momentum
        self.learning_rate = learning_rate
        self.state: dict[str, Tensor] = {}
        """What it remembers from step to step, by names of its own; a checkpoint keeps it."""
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
            parameter.add_(self.direction(name, gradient), alpha=-self.learning_rate)

    @abstractmethod
    def direction(self, name: str, gradient: Tensor) -> Tensor:
        """v, along which a parameter moves by −η v, from its name and its gradient of this round."""

    @torch.no_grad()
    def final_means(self) -> dict[str, Tensor]:
        """Returns the means of all parameters over all rounds that count."""
        for name, parameter in self._module.named_parameters():
            self._catch_up(name, parameter)
        return self.means

    def _catch_up(self, name: str, parameter: Tensor) -> None:
        missing = self.averaged - self.rounds.get(name, 0)
        if missing > 0:
            mean = self.means.setdefault(name, torch.zeros_like(parameter))
            mean += (parameter - mean) * missing / self.averaged
            self.rounds[name] = self.averaged


class Descent(Optimizer):
    """Gradient descent with momentum, v ← momentum · v + gradient: bit for bit what torch.optim.SGD does."""

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        if not self.momentum:
            return gradient
        if name in self.state:
            self.state[name].mul_(self.momentum).add_(gradient)
        else:
            self.state[name] = gradient.clone()
        return self.state[name]


def open_optimizer(name: str, module: nn.Module, learning_rate: float, momentum: float) -> Optimizer:
    """The optimizer of a plan, for the parameters of a module.

    >>> open_optimizer("sgd", nn.Linear(2, 1), 0.1, momentum=0.9).momentum
    0.9
    """
    opened = function(entry("optimizer", name, OPTIMIZERS).opened)
    return cast(Optimizer, opened(module, learning_rate, momentum))
