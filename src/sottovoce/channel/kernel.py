"""Compiled kernels: functions that numba compiles at their first call and keeps in its own cache.

Numba keeps machine code beside the sources, in `__pycache__`; where it may not write there, in the user's
cache folder; or in `NUMBA_CACHE_DIR`. It compiles a kernel anew when the file that holds it changes (its time
or size), not when a kernel or constant of another file that it uses does. An installed version replaces all
files, so it never runs code of the one before. Whoever edits kernels, or updates a checkout in place, removes
`src/sottovoce/channel/**/*.nbi`; tests keep a cache for each state of the sources.

Kernels that both ends run never use fast-math: both must round alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from sottovoce.channel.wire import ChannelError

try:
    import numba
except ImportError as error:
    raise ChannelError(
        f"this channel needs the package 'numba': install it, or use channel=direct ({error})"
    ) from None

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile `function` at its first call, or load it if an earlier process has compiled it."""
    return _compiled(function)


def summing_kernel(function: Function) -> Function:
    """A kernel whose sums may be reordered: for bounds with slack that only the encoder uses."""
    return _compiled(function, fastmath={"reassoc"})


def _compiled(function: Function, **options: Any) -> Function:
    compile_ = numba.njit(cache=True, nogil=True, error_model="numpy", **options)
    try:
        return cast(Function, compile_(function))
    except RuntimeError:  # a message would take half a minute in each process
        raise ChannelError(
            "compiled kernels can be kept nowhere: set NUMBA_CACHE_DIR to a folder that only you can write to"
        ) from None
