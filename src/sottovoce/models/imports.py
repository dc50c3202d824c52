"""Models of the user's own: imported by name, and kept at home where they say so."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from sottovoce.errors import SottovoceError, shown


class ModelError(SottovoceError):
    """A model that cannot be built or used with these records."""


def reason(error: BaseException) -> str:
    """Returns what an error of somebody else's code says, on one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return shown(f"{type(error).__name__}: {first}" if first else type(error).__name__)


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
