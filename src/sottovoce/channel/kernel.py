"""Compiled kernels: functions that numba compiles at their first call and keeps in its own cache.

Numba keeps machine code beside the sources, in `__pycache__`; where it may not write there, in the user's
cache folder; or in `NUMBA_CACHE_DIR`. It compiles a kernel anew when the file that holds it changes (its time
or size), not when a kernel or constant of another file that it uses does. An installed version replaces all
files, so it never runs code of the one before. Whoever edits kernels, or updates a checkout in place, removes
`src/sottovoce/channel/**/*.nbi`; tests keep a cache for each state of the sources.

Kernels that both ends run never use fast-math: both must round alike.

Integer tables that both ends share: made by tools/channel_tables.py, shipped with the package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Tables:
    """Weights out of 2^16 and other integers of the entropy codes."""

    accepts: NDArray[np.int64]  # lrsuq: P(u within the ball) by signed distance from its edge
    hazards: NDArray[np.int64]  # polar: P(this candidate | none before), by information of the block
    mean_squares: NDArray[np.int64]  # polar: E[bias²]·2^32 by scale number, folds, plane
    surprises: NDArray[np.int64]  # polar: P(surprise) by class of the leaf and bin of the dither


@functools.cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    with np.load(Path(__file__).parent / "tables.npz") as stored:
        return Tables(**{name: stored[name].astype(np.int64) for name in stored.files})
