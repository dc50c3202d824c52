"""Compiled kernels: numba with the machine code cached on disk, so that compilation is paid once.

The cache lies beside the package, or in the user's cache folder where the package cannot be written. It
notices changes of a kernel's own file only: after editing a kernel that others call, delete the *.nbi files.
Kernels that both ends run never use fast-math: both must round alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile `function` at its first call and keep the machine code for later processes."""
    compiled: Any = numba.njit(cache=True, error_model="numpy")(function)
    return cast(Function, compiled)


def inlined(function: Function) -> Function:
    """Make `function`, which also runs as plain Python, callable from kernels."""
    jitable: Function = numba.extending.register_jitable(function)
    return jitable


def summing_kernel(function: Function) -> Function:
    """A kernel whose sums may be reordered: for bounds with slack that only the encoder uses."""
    compiled: Any = numba.njit(cache=True, error_model="numpy", fastmath={"reassoc"})(function)
    return cast(Function, compiled)
