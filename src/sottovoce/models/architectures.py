"""Personal models: the built-in ones, and any `nn.Module` evaluated at a flat parameter vector.

A client's model is θ_ref + P a (Eq. 3). Trainable parameters are one flat vector in the order of
`module.parameters()`, tied ones once and frozen ones not at all; the reference θ_ref is the module's own
initialization under a public seed, the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError, nearest, shown
from sottovoce.machine.determinism import seeded
from sottovoce.machine.documents import ForeignError
from sottovoce.models.imports import ModelError, imported, reason
from sottovoce.plan import Plan
from sottovoce.plan.catalog import MODELS, function

ModelFactory = Callable[..., nn.Module]
"""From the shape of a record, the number of outputs, and the plan keys in `OPTIONS`."""
MOST_LAYERS, WIDEST = 16, 2**14
GIVEN = "python:"


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
            "set model=linear, mlp or 'package.module:function' (gray pictures of numbers: save x[:, None])"
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


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer on the flattened record, starting at zero: all classes alike."""
    return nn.Sequential(nn.Flatten(), _zero_layer(math.prod(shape), classes))


def mlp(
    shape: tuple[int, ...], classes: int, *, mlp_sizes: str = "64", mlp_activation: str = "tanh"
) -> nn.Module:
    """Linear layers of the given widths on the flattened record, an activation after each but the last.

    The last layer starts at zero: all classes alike.

    >>> mlp((20,), 4, mlp_sizes="32,16")[-1]
    Linear(in_features=16, out_features=4, bias=True)
    """
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[mlp_activation]
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for wanted in widths(mlp_sizes):
        layers += [nn.Linear(width, wanted), activation()]
        width = wanted
    return nn.Sequential(*layers, _zero_layer(width, classes))


class Bag(nn.Module):
    """Tokens (n, L), int64, by the mean of their embeddings, then a linear layer.

    Embeddings are 2,048 rows of 16 numbers, which tokens share by their remainder.

    >>> Bag((20,), 4)(torch.zeros(2, 20).long()).shape
    torch.Size([2, 4])
    """

    ROWS, WIDTH = 2048, 16

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        if len(shape) != 1:
            raise ModelError(f"bag takes tokens (L,), not records of shape {shape}: set model=linear or mlp")
        super().__init__()
        self.embedding = nn.Embedding(self.ROWS, self.WIDTH)
        self.head = _zero_layer(self.WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.int64:
            raise ModelError(
                'model=bag takes tokens: say kind = "tokens" in records.toml, or set model=linear'
            )
        output: Tensor = self.head(self.embedding(x.remainder(self.ROWS)).mean(dim=1))
        return output


def _zero_layer(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def widths(text: str) -> list[int]:
    """The widths of hidden layers in a plan's text.

    >>> widths("64, 32")
    [64, 32]
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise ModelError(f"mlp_sizes={shown(text)} are the widths of hidden layers: give such as 64 or 64,32")
    found = [int(word) for word in words]
    if len(found) > MOST_LAYERS or not all(1 <= width <= WIDEST for width in found):
        raise ModelError(
            f"mlp_sizes={shown(text)}: give 1 to {MOST_LAYERS} widths of 1 to {WIDEST} hidden units"
        )
    return found


def given_name(module: nn.Module) -> str:
    """Returns what a plan calls a module that was given from Python, which no name can bring back."""
    return GIVEN + type(module).__name__


def model_options(plan: Plan) -> dict[str, Any]:
    """Returns what a plan says about the inside of its model: the keys that a built-in one takes as options.

    >>> model_options(Plan(model="mlp"))
    {'mlp_sizes': '64', 'mlp_activation': 'tanh'}
    """
    if plan.model not in MODELS:
        return {}
    taken = signature(function(MODELS[plan.model])).parameters.values()
    return {option.name: getattr(plan, option.name) for option in taken if option.default is not option.empty}


def open_model(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    *,
    trusted: bool = False,
) -> nn.Module:
    """The model of that name at its reference parameters; `seed` is public.

    No name makes this import anything: it may come from another party. Only one that this machine's owner
    gave is `trusted`: 'package.module:function' is then imported, also from the current folder, and called.
    The draw is made on the CPU in float32, so that every machine starts from the same θ_ref.
    """
    if name.startswith(GIVEN):
        raise ModelError(f"model={shown(name)} was given from Python: pass it again, as module=…")
    if name in MODELS:
        factory = function(MODELS[name])
    elif ":" not in name:
        known = "known" if trusted else "a built-in one"
        more = " or use 'package.module:function'" if trusted else ""
        raise ModelError(f"model={shown(name)} is not {known}: {nearest(name, MODELS)}{more}")
    elif not trusted:
        raise ModelError(f"model={shown(name)} is not a built-in one: name it yourself", "model")
    else:
        factory = imported("model", name)
    try:
        with seeded(seed):
            module = factory(shape, classes, **(options or {}))
    except SottovoceError:
        raise
    except Exception as error:
        raise ModelError(
            f"model={name} fails for records of shape {shape} and {classes} outputs: {reason(error)}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"model={name} returned {type(module).__name__}: it must return a torch.nn.Module")
    return module.float().eval()


import_model = partial(open_model, trusted=True)
"""Never call this with a name that came in a message or in another's file."""


MOST_BYTES = 2**26
"""Memory that a stranger's description may make us use: 64 MB."""
BYTES_A_PARAMETER = 60
"""Reference, basis and what is needed while they are drawn."""
MOST_PARAMETERS = MOST_BYTES // BYTES_A_PARAMETER // 2
MOST_MOMENTS = MOST_BYTES // 4
MOST_PICTURE = 2**18
"""Numbers of a picture that a feature map describes."""


def check_sizes(plan: Plan, facts: Facts, *, model: nn.Module | str | None = None) -> None:
    """Refuses a plan whose blueprint would need more memory than a stranger may ask for.

    A model that this machine's owner has named may be of any size.
    """
    numbers = math.prod(facts.shape)
    channels = facts.shape[0] if len(facts.shape) > 1 else 1
    groups = channels * plan.context_groups**2
    of_classes = plan.context_traits.uses_labels or plan.context_traits.uses_model
    moments = 0 if of_classes else 8 * numbers * (groups + 8)
    if moments > MOST_MOMENTS:
        raise ForeignError(
            f"{groups} groups of moments over records of {numbers} numbers need too much memory: ask for "
            "fewer context_groups, or for context=labels"
        )
    check_model(plan, facts, model=model)


def check_model(plan: Plan, facts: Facts, *, model: nn.Module | str | None = None) -> None:
    """Refuses a model, or a picture before its feature map, that is larger than a stranger may ask for."""
    source = facts.source
    if source is not None and math.prod(source.shape) > MOST_PICTURE:
        raise ForeignError(
            f"pictures of shape {source.shape} are larger than a map from elsewhere may describe "
            f"({MOST_PICTURE:,} numbers): ask for the file again"
        )
    if model is not None:
        return
    try:
        with torch.device("meta"):
            module = function(MODELS[plan.model])(facts.shape, facts.classes, **model_options(plan))
        parameters: float = sum(parameter.numel() for parameter in module.parameters())
    except RuntimeError:  # sizes beyond what a tensor can have
        parameters = math.inf
    if parameters > MOST_PARAMETERS:
        raise ForeignError(
            f"model={plan.model} for records of shape {facts.shape} has {parameters:,} parameters, more than "
            f"a plan from elsewhere may ask for ({MOST_PARAMETERS:,}): if that is right, name it yourself "
            f'(at a node: model="{plan.model}" in its config)',
            "model",
        )
