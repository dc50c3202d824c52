"""What another party's file or message may say: checked here before anything is built from it.

A plan that came over the wire or in somebody's file names built-in models only, has the types and keys of a
plan, and stays within sizes whose blueprint fits into `MOST_BYTES`. Code (`package.module:function`) is named
by this machine's owner, on the command line or in local configuration, and by nobody else.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError, shown
from sottovoce.models import MODELS, model_options
from sottovoce.plan import LARGEST, RETIRED, Plan

MOST_BYTES = 2**26
"""Memory that a stranger's description may make us use: 64 MB."""
MOST_TEXT = 2**20
"""Bytes of an agreement or a specification."""
MOST_LETTERS = 200
"""Letters of a text in a plan."""
MOST_CALLS = 2**20
"""Entries of a schedule."""
BYTES_A_PARAMETER = 60
"""Reference, basis and what is needed while they are drawn."""
MOST_PARAMETERS = MOST_BYTES // BYTES_A_PARAMETER // 2
MOST_MOMENTS = MOST_BYTES // 4
MOST_PICTURE = 2**18
"""Numbers of a picture that a feature map describes."""

SMALLEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e9
"""Of the numbers of a plan that are not whole; 0 is allowed, and ε = inf, which is refused elsewhere."""


class ForeignError(SottovoceError):
    """Something of another party's that is not what it must be; nothing was built from it."""


def foreign_plan(
    values: object, *, model: nn.Module | str | None = None, features: str | None = None
) -> Plan:
    """The plan in another party's file or message: known keys, their types, bounded sizes, built-in models.

    `model` and `features` are what this machine's owner has named, which the plan may name too, or the module
    itself, in whose stead nothing is imported.

    >>> foreign_plan({"model": "subprocess:call"})
    Traceback (most recent call last):
    sottovoce.foreign.ForeignError: a plan from elsewhere names model=subprocess:call, which is no built-in \
one: if you trust that code, name it yourself (at a node: model="…" in its config)
    """
    if not isinstance(values, Mapping):
        raise ForeignError("that holds no plan: ask for the file again")
    fields = {field.name: field.default for field in dataclasses.fields(Plan)}
    values = {name: value for name, value in values.items() if (name, value) not in RETIRED.items()}
    for name, value in values.items():
        if name not in fields:
            raise ForeignError(
                f"unknown plan key '{shown(name)}': update sottovoce, or ask for the file again"
            )
        _check_value(name, value, type(fields[name]))
    plan = Plan.load(overrides=values)
    if plan.rounds * plan.clients_per_round > MOST_CALLS:
        raise ForeignError(
            f"{plan.rounds} rounds of {plan.clients_per_round} clients are more than {MOST_CALLS} releases: "
            "ask for a smaller plan"
        )
    if plan.model not in MODELS and plan.model != model and not isinstance(model, nn.Module):
        raise ForeignError(
            f"a plan from elsewhere names model={plan.model}, which is no built-in one: if you trust that "
            'code, name it yourself (at a node: model="…" in its config)',
            "model",
        )
    if plan.features == "auto":
        raise ForeignError("a plan from elsewhere says features=auto, which its author completes: ask again")
    if ":" in plan.features and plan.features != features:
        raise ForeignError(
            f"a plan from elsewhere names features={plan.features}, which is no built-in map: if you trust "
            "that code, name it yourself",
            "features",
        )
    return plan


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
            module = MODELS[plan.model](facts.shape, facts.classes, **model_options(plan))
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


def foreign_name(text: object) -> str:
    """A run's name, fit to be part of a file's name.

    >>> foreign_name("../../etc")
    Traceback (most recent call last):
    sottovoce.foreign.ForeignError: '../../etc' cannot name a run: ask for the file again
    """
    if not isinstance(text, str) or re.fullmatch(r"[0-9A-Za-z_-]{1,64}", text) is None:
        raise ForeignError(f"'{shown(text)}' cannot name a run: ask for the file again")
    return text


def _check_value(name: str, value: object, kind: type) -> None:
    """The type of a key exactly, and its bounds: strings are for the command line."""
    if kind is int:
        fits = type(value) is int and 0 <= value <= LARGEST[name]
    elif kind is float:
        fits = type(value) in (int, float) and _bounded(name, value)
    elif kind is str:
        fits = isinstance(value, str) and len(value) <= MOST_LETTERS and value.isprintable()
    else:
        fits = type(value) is kind
    if not fits:
        raise ForeignError(f"{name}={shown(value)} cannot be in a plan: ask for the file again")


def _bounded(name: str, value: Any) -> bool:
    if (name, value) in (("epsilon", math.inf), ("individual", -1)):
        return True
    return bool(value == 0 or SMALLEST_NUMBER <= value <= LARGEST_NUMBER)
