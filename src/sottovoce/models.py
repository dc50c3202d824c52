"""Personal models: the built-in ones, and any `nn.Module` evaluated at a flat parameter vector.

A client's model is θ_ref + P a (Eq. 3). Trainable parameters are one flat vector in the order of
`module.parameters()`, tied ones once and frozen ones not at all; the reference θ_ref is the module's own
initialization under a public seed, the same on every machine.
"""

from __future__ import annotations

import copy
import importlib
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sottovoce.cores import beside_others, seeded
from sottovoce.errors import SottovoceError, nearest, shown
from sottovoce.plan import Plan

ModelFactory = Callable[..., nn.Module]
"""From the shape of a record, the number of outputs, and the plan keys in `OPTIONS`."""
MOST_LAYERS, WIDEST = 16, 2**14
GIVEN = "python:"


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


MODELS: dict[str, ModelFactory] = {"lenet": lenet, "linear": linear, "mlp": mlp, "bag": Bag}
"""Built-in models by name."""


def model_options(plan: Plan) -> dict[str, Any]:
    """Returns what a plan says about the inside of its model: the keys that a built-in one takes as options.

    >>> model_options(Plan(model="mlp"))
    {'mlp_sizes': '64', 'mlp_activation': 'tanh'}
    """
    made = MODELS.get(plan.model)
    if made is None:
        return {}
    taken = signature(made).parameters.values()
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
        factory = MODELS[name]
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


def reason(error: BaseException) -> str:
    """Returns what an error of somebody else's code says, on one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return shown(f"{type(error).__name__}: {first}" if first else type(error).__name__)


@dataclass(frozen=True)
class Place:
    """A trainable parameter's shape, its slice of θ, and its number among them."""

    number: int
    span: slice
    shape: torch.Size


def places(module: nn.Module) -> dict[str, Place]:
    """Returns the place of each trainable parameter in θ, by first name, as `module.parameters()` go.

    A tied parameter has one place; one that is frozen (`requires_grad=False`) has none: it is part of the
    public reference.

    >>> places(nn.Linear(4, 3))["bias"].span
    slice(12, 15, None)
    """
    found, start = {}, 0
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for number, (name, parameter) in enumerate(trainable):
        found[name] = Place(number, slice(start, start + parameter.numel()), parameter.shape)
        start += parameter.numel()
    return found


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that θ is made of, in its order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def flat_parameters(module: nn.Module) -> Tensor:
    """All trainable parameters as one vector θ (d,)."""
    parameters = trainable(module)
    if not parameters:
        raise ModelError("every parameter of the model is frozen: leave at least one to be trained")
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def parameters_at(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """The one view of θ (..., d): parameters (..., *shape) by name, tied ones under all their names.

    Tied by us, because the way of `functional_call` leaves a layer that is used twice with tensors in the
    place of its parameters (torch 2.13).
    """
    by_parameter = dict(zip(map(id, trainable(module)), places(module).values(), strict=True))
    views = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) in by_parameter:
                place = by_parameter[id(parameter)]
                shape = (*theta.shape[:-1], *place.shape)
                views[f"{prefix}.{name}" if prefix else name] = theta[..., place.span].reshape(shape)
    return views


def state_dict_at(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """The state dict of the model at θ (d,): trainable parameters read from it, all else the module's own."""
    return {**module.state_dict(), **parameters_at(module, theta)}


def logits(module: nn.Module, theta: Tensor, x: Tensor) -> Tensor:
    """The module's output (m, classes) on records x (m, …) at the flat parameters `theta`."""
    return output_at(module, parameters_at(module, theta), x)


def output_at(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The module's output on records x with these parameters (of `parameters_at`) in the place of its own."""
    # While it runs the module holds them as its own: a thread beside others needs a module for itself.
    if beside_others():
        if module not in _copies.of:
            _copies.of[module] = copy.deepcopy(module)
        module = _copies.of[module]
    output: Tensor = functional_call(module, dict(parameters), (x,), tie_weights=False)
    return output


class _Copies(threading.local):
    """A thread's own copies of modules, for as long as those live."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


_copies = _Copies()


_MARK, _EMPTY = "made_at_home", CellType()


def keep_at_home(module: nn.Module) -> None:
    """Marks a module whose parameters are made of records without noise."""
    for part in (*module.modules(), *module.parameters(), *module.buffers()):
        setattr(part, _MARK, True)


def made_at_home(thing: object) -> bool:
    """Returns whether a module, or what a function or an object holds, is made of records without noise.

    No run may begin with it, and no feature map use it. A copy of its numbers made by hand is not seen.
    """
    seen, waiting = set[int](), [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module | Tensor) and getattr(one, _MARK, False):
            return True
        waiting += _held_by(one)
    return False


def _held_by(one: object) -> list[object]:
    """Returns what an object holds where a model could be: items, closures, bound arguments, attributes."""
    if isinstance(one, Mapping):
        return list(one.values())
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)
    if isinstance(one, partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, type | ModuleType | Tensor):
        return []
    cells = one.__closure__ or () if isinstance(one, FunctionType) else ()
    return [vars(one) if hasattr(one, "__dict__") else None, *(c.cell_contents for c in cells if c != _EMPTY)]


def imported(what: str, name: str) -> Any:
    """Returns what 'package.module:function' names, for a plan key `what`, by this machine's owner."""
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: nothing that is installed is shadowed
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise ModelError(
            f"{what}={name} cannot be imported: {reason(error)}; it is looked for among installed packages "
            "and in the current folder"
        ) from None
