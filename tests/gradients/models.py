"""Models that the fast paths must get right, and models that they must leave to the oracle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sottovoce.models import architectures as models


def lenet(channels: int = 3, side: int = 32) -> nn.Module:
    return models.lenet((channels, side, side), 10)


def tiny() -> nn.Sequential:
    """For claims that need thousands of cases; inputs (1, 6, 6), 3 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def mixed() -> nn.Sequential:
    """Strides, padding, dilation, norms, nesting, in-place activations, no biases; inputs (4, 9, 8)."""
    return nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False),
        nn.GroupNorm(2, 6),
        nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Conv2d(6, 5, 2), nn.LayerNorm((4, 9))),
        nn.ReLU(inplace=True), nn.MaxPool2d(2, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(10, 7, bias=False), nn.LayerNorm(7), nn.GELU(), nn.Dropout(0.5), nn.Linear(7, 4),
    ).eval()  # fmt: skip


def convolutional() -> nn.Sequential:
    """No linear layer to take up the remainder, so that taps differ in their groups; inputs (6, 7, 7)."""
    return nn.Sequential(
        nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def perceptron() -> nn.Sequential:
    activation = nn.ReLU()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 9), activation, nn.Linear(9, 8), activation, nn.Linear(8, 4)
    )


class Residual(nn.Module):
    """A forward of its own, with a layer used twice; inputs (5,)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x)) + x
        h = h + torch.tanh(self.inner(h))
        return self.head(h)


def tied() -> nn.Sequential:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(5, 3))


def hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return model


def sequence() -> nn.Sequential:
    """A linear layer over several positions of a record; inputs (3, 5)."""
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


def depthwise() -> nn.Sequential:
    """Grouped convolution; inputs (4, 5, 5)."""
    return nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Flatten(), nn.Linear(72, 3))


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def records(shape: tuple[int, ...], classes: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator), torch.randint(
        classes, (count,), generator=generator
    )
