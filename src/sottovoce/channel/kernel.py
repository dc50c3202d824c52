"""Compiled kernels: numba makes machine code once, later processes load it without importing numba.

A kernel that Python calls is compiled for the forms of its arguments, and its machine code is kept in the
user's cache folder (`native`); kernels that it calls become part of it. Calls that a C signature cannot
express (strided arrays, tuples returned) go through numba itself. Kernels that both ends run never use
fast-math: both must round alike.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from ctypes import addressof, c_char
from typing import Any, TypeVar, cast

import numpy as np

from sottovoce.channel import native

Function = TypeVar("Function", bound=Callable[..., object])


class Kernel:
    """A function that is compiled at its first call, or loaded if an earlier process has compiled it."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self._entries: dict[tuple[native.Form, ...], native.Entry | None] = {}

    def __call__(self, *arguments: Any) -> Any:
        forms: list[native.Form] = []
        words: list[Any] = []
        for argument in arguments:
            kind = type(argument)
            if kind is np.ndarray and _plain(argument):
                forms.append((argument.dtype.char, argument.ndim))
                # The first way takes a third of the time of the second.
                direct = argument.flags.writeable and argument.size
                data = addressof(c_char.from_buffer(argument)) if direct else argument.ctypes.data
                words += (data, *argument.shape)
            elif kind in _NUMBERS:
                forms.append((_NUMBERS[kind], 0))
                words.append(argument)
            else:
                return self.compiled(*arguments)
        key = tuple(forms)
        if key not in self._entries:
            with _LOADING:
                if key not in self._entries:
                    self._entries[key] = native.entry(self, key)
        entry = self._entries[key]
        return self.compiled(*arguments) if entry is None else entry(words)

    @functools.cached_property
    def compiled(self) -> Any:
        """The kernel as numba compiles it: what other kernels call."""
        from sottovoce.channel.compiling import compiled

        return compiled(self)


def _plain(array: np.ndarray) -> bool:
    """Whether machine code may read it as it lies in memory."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned and array.dtype.isnative


_LOADING = threading.Lock()
_NUMBERS = {int: "q", bool: "q", np.int64: "q", float: "d", np.float64: "d"}


def kernel(function: Function) -> Function:
    """Compile `function` at its first call and keep the machine code for later processes."""
    return cast(Function, Kernel(function))


def summing_kernel(function: Function) -> Function:
    """A kernel whose sums may be reordered: for bounds with slack that only the encoder uses."""
    return cast(Function, Kernel(function, fastmath={"reassoc"}))
