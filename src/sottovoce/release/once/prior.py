"""Class priors: log shares of a client's classes on the last bias of its model, from its released context.

Clients that differ in class shares and in nothing else are served best by one model of likelihoods and their
own prior: θ_i gets log p̂_i on the bias of its last layer. p̂_i is post-processing of a release that was paid
for, so it costs nothing more. The basis keeps last biases as they are: a prior is a vector of coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sottovoce.errors import SottovoceError
from sottovoce.models.bases import Basis
from sottovoce.models.parameters import places


@dataclass(frozen=True)
class ClassPriors:
    """`directions` (classes, k) move one class's last bias each.

    `noise` (participants,) and `future_noise` are σ of the shares that participants and future clients
    release.
    """

    directions: Tensor
    noise: Tensor
    future_noise: float
    smoothing: float
    """Of class shares, the least."""

    @classmethod
    def of(
        cls,
        module: nn.Module,
        basis: Basis,
        classes: int,
        noise: Sequence[float],
        future_noise: float,
        smoothing: float,
        device: torch.device,
    ) -> ClassPriors:
        """For a model whose last trainable parameter is a bias for each class."""
        return cls(
            directions(module, basis, classes, device),
            torch.tensor(noise, device=device),
            future_noise,
            smoothing,
        )

    def coefficients(self, contexts: Tensor, participants: Tensor) -> Tensor:
        """Coefficients (n, k) of the log shares of contexts (n, classes) that participants (n,) released."""
        noise = self.noise[participants, None]
        return shares(contexts, noise, self.smoothing).log() @ self.directions

    def future(self, context: Tensor, shift: LabelShift | None) -> Tensor:
        """Coefficients (k,) for a future client's context (classes,)."""
        estimate, deviation = context, self.future_noise
        if shift is not None:
            estimate, deviation = shift.estimate(context, self.future_noise)
        return shares(estimate[None], deviation, self.smoothing)[0].log() @ self.directions


def directions(module: nn.Module, basis: Basis, classes: int, device: torch.device) -> Tensor:
    """Coefficients (classes, k) that each move one class's last bias, and nothing else."""
    *_, last = places(module).values()
    biases = torch.zeros(classes, basis.size, device=device)
    if last.shape == (classes,):
        biases[:, last.span] = torch.eye(classes, device=device)
    found = basis.coordinates(biases)
    if not torch.allclose(basis.lift(found), biases, atol=1e-6) or last.shape != (classes,):
        raise SottovoceError(
            "prior=context moves the last layer's biases, and this model or basis has none of their own: "
            "end the model with a linear layer, and use basis=structured"
        )
    return found


@dataclass(frozen=True)
class LabelShift:
    """What participants' releases say about class shares, for clients that cannot count their own.

    Shares p of a client vary around `mean` with variance `spread` a class; a client's mean prediction is p M
    with M (classes, classes) the chances that one class is taken for another. All are released, so the best
    linear estimate of p from a noised p M needs nothing else, and falls back to `mean` where M says little.
    """

    mean: Tensor
    spread: float
    matrix: Tensor
    matrix_noise: Tensor

    @classmethod
    def of(
        cls, released: Tensor, noise: float, confusion: Tensor, confusion_noise: float, smoothing: float
    ) -> LabelShift:
        """From released shares (n, K) and joint frequencies (true, predicted) (K, K), with their σ."""
        classes = released.shape[1]
        mean = shares(released.mean(dim=0)[None], noise / math.sqrt(len(released)), smoothing)[0]
        spread = max(float(released.var(dim=0).mean()) - noise**2, 1e-6) if len(released) > 1 else 1e-6
        joint = confusion.clamp_min(0.0)
        rows = joint.sum(dim=1).clamp_min(confusion_noise * math.sqrt(classes))
        matrix = (joint + 1e-9) / (joint + 1e-9).sum(dim=1, keepdim=True)
        return cls(mean, spread, matrix, confusion_noise / rows)

    def estimate(self, predicted: Tensor, noise: float) -> tuple[Tensor, float]:
        """Class shares (K,) from a released mean prediction (K,) with its σ, and their mean deviation."""
        matrix, mean = self.matrix.double().cpu(), self.mean.double().cpu()
        error = noise**2 + float((mean * self.matrix_noise.double().cpu()).square().sum())
        eye = torch.eye(len(matrix), dtype=torch.float64)
        gain = self.spread * matrix @ torch.linalg.inv(self.spread * matrix.T @ matrix + error * eye)
        estimate = mean + (predicted.double().cpu() - mean @ matrix) @ gain.T
        left = self.spread * (eye - gain @ matrix.T)
        deviation = math.sqrt(max(float(left.diagonal().mean()), 0.0))
        return estimate.float().to(predicted.device), deviation


def shares(released: Tensor, noise: float | Tensor, least: float) -> Tensor:
    """Positive class shares (n, K) from released ones: the nearest point of the simplex, smoothed.

    Each class gets the noise's standard deviation as a pseudo-share, at least so much in all, so that a share
    that noise alone explains moves a model little.

    >>> (100 * shares(torch.tensor([[0.9, 0.2, -0.1]]), 0.0, least=0.02)).round().tolist()
    [[84.0, 15.0, 1.0]]
    """
    classes = released.shape[1]
    ordered = released.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(dim=1) - 1.0) / torch.arange(1, classes + 1, device=released.device)
    last = (ordered > excess).sum(dim=1, keepdim=True) - 1
    nearest = (released - excess.gather(1, last)).clamp_min(0.0)
    pseudo = classes * torch.as_tensor(noise, dtype=released.dtype, device=released.device)
    smoothing = (pseudo / (1.0 + pseudo)).clamp_min(least)
    return (1.0 - smoothing) * nearest + smoothing / classes
