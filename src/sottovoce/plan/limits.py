"""What another party's file or message may say: checked here before anything is built from it.

A plan that came over the wire or in somebody's file names built-in models only, has the types and keys of a
plan, and stays within sizes whose blueprint fits into `MOST_BYTES`. Code (`package.module:function`) is named
by this machine's owner, on the command line or in local configuration, and by nobody else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sottovoce.errors import shown
from sottovoce.machine.documents import MOST_LETTERS, ForeignError
from sottovoce.plan import LARGEST, RETIRED, Plan, recipes
from sottovoce.plan.catalog import MODELS

MOST_CALLS = 2**20
"""Entries of a schedule."""

SMALLEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e9
"""Of the numbers of a plan that are not whole; 0 is allowed, and ε = inf, which is refused elsewhere."""


def foreign_plan(values: object, *, model: object = None, features: str | None = None) -> Plan:
    """The plan in another party's file or message: known keys, their types, bounded sizes, built-in models.

    `model` and `features` are what this machine's owner has named, which the plan may name too, or the module
    itself, in whose stead nothing is imported.

    >>> foreign_plan({"model": "subprocess:call"})
    Traceback (most recent call last):
    sottovoce.machine.documents.ForeignError: a plan from elsewhere names model=subprocess:call, which is no \
built-in one: if you trust that code, name it yourself (at a node: model="…" in its config)
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
    plan = Plan.load(overrides={"recipe": recipes.FIRST, **values})
    if plan.rounds * plan.clients_per_round > MOST_CALLS:
        raise ForeignError(
            f"{plan.rounds} rounds of {plan.clients_per_round} clients are more than {MOST_CALLS} releases: "
            "ask for a smaller plan"
        )
    given = not isinstance(model, str | None)  # the module itself
    if plan.model not in MODELS and plan.model != model and not given:
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
