"""Class priors: log shares of a client's classes on the last bias of its model, from its released context.

Clients that differ in class shares and in nothing else are served best by one model of likelihoods and their
own prior: θ_i gets log p̂_i on the bias of its last layer. p̂_i is post-processing of a release that was paid
for, so it costs nothing more. The basis keeps last biases as they are: a prior is a vector of coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.blueprint import Blueprint
from sottovoce.errors import SottovoceError
from sottovoce.models import places

LEAST_SMOOTHING = 0.02


@dataclass(frozen=True)
class ClassPriors:
    """`directions` (classes, k) move one class's last bias each; `noise` is σ of the released shares."""

    directions: Tensor
    noise: float

    @classmethod
    def of(cls, blueprint: Blueprint, device: torch.device) -> ClassPriors:
        """For a model whose last trainable parameter is a bias for each class."""
        classes, basis = blueprint.facts.classes, blueprint.basis
        *_, last = places(blueprint.module).values()
        biases = torch.zeros(classes, basis.size, device=device)
        if last.shape == (classes,):
            biases[:, last.span] = torch.eye(classes, device=device)
        directions = basis.project(biases)
        if not torch.allclose(basis.lift(directions), biases, atol=1e-6) or last.shape != (classes,):
            raise SottovoceError(
                "prior=context moves the last layer's biases, and this model or basis has none of their own: "
                "end the model with a linear layer, and use basis=structured"
            )
        return cls(directions, blueprint.releases["context"].sigma)

    def coefficients(self, contexts: Tensor) -> Tensor:
        """Coefficients (n, k) of the log shares of released contexts (n, classes)."""
        return shares(contexts, self.noise).log() @ self.directions


def shares(released: Tensor, noise: float) -> Tensor:
    """Positive class shares (n, K) from released ones: the nearest point of the simplex, smoothed.

    Each class gets the noise's standard deviation as a pseudo-share, at least 2 % in all, so that a share
    that noise alone explains moves a model little.

    >>> (100 * shares(torch.tensor([[0.9, 0.2, -0.1]]), 0.0)).round().tolist()
    [[84.0, 15.0, 1.0]]
    """
    classes = released.shape[1]
    ordered = released.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(dim=1) - 1.0) / torch.arange(1, classes + 1, device=released.device)
    last = (ordered > excess).sum(dim=1, keepdim=True) - 1
    nearest = (released - excess.gather(1, last)).clamp_min(0.0)
    smoothing = max(LEAST_SMOOTHING, classes * noise / (1.0 + classes * noise))
    return (1.0 - smoothing) * nearest + smoothing / classes
