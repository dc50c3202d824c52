"""Personal models: the paper's LeNet, and any `nn.Module` evaluated at a flat parameter vector.

A client's model is θ_ref + P a (Eq. 3). Parameters are one flat vector in the order of `module.parameters()`;
the reference θ_ref is the module's own initialization under a public seed, the same on every machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sottovoce.errors import SottovoceError
from sottovoce.seeding import seeded

ModelFactory = Callable[[tuple[int, ...], int], nn.Module]


class ModelError(SottovoceError):
    """A model that cannot be built or used with these records."""


def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's model: 85,822 parameters for 1×28×28 and 121,182 for 3×32×32 images of 10 classes.

    >>> sum(p.numel() for p in lenet((1, 28, 28), 10).parameters())
    85822
    >>> sum(p.numel() for p in lenet((3, 32, 32), 10).parameters())
    121182
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise ModelError(
            f"lenet takes images (channels, height, width) of at least 16×16, not records of shape {shape}: "
            "set model='package.module:function'"
        )
    channels, height, width = shape
    pooled = 32 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(pooled, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def open_model(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The named model at its reference parameters; `seed` is public.

    The draw is made on the CPU in float32, so that every machine starts from the same θ_ref.
    """
    factory = lenet if name == "lenet" else _imported(name)
    with seeded(seed):
        module = factory(shape, classes)
    if not isinstance(module, nn.Module):
        raise ModelError(f"model={name} returned {type(module).__name__}: it must return a torch.nn.Module")
    return module.float().eval()


def flat_parameters(module: nn.Module) -> Tensor:
    """All parameters as one vector (d,), in the order of `module.parameters()`."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def state_dict_at(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """The module's state dict with its parameters read from `theta` (d,), as views; buffers are kept."""
    state: dict[str, Tensor] = dict(module.named_buffers())
    offset = 0
    for name, parameter in module.named_parameters():
        state[name] = theta[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return state


def logits(module: nn.Module, theta: Tensor, x: Tensor) -> Tensor:
    """The module's output (m, classes) on records x (m, …) at the flat parameters `theta`."""
    # Tying, the default, leaves plain tensors behind in a layer that is used twice (torch 2.13).
    output: Tensor = functional_call(module, state_dict_at(module, theta), (x,), tie_weights=False)
    return output


def _imported(name: str) -> ModelFactory:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ModelError(f"model={name} is not known: use lenet or 'package.module:function'")
    try:
        factory: ModelFactory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"model={name} cannot be imported: {error}") from None
    return factory
