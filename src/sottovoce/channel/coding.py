"""Compiled coding: kernels that numba compiles at their first call, integer tables, and a range coder.

Numba keeps machine code beside the sources, in `__pycache__`; where it may not write there, in the user's
cache folder; or in `NUMBA_CACHE_DIR`. It compiles a kernel anew when the file that holds it changes (its
time or size), not when a kernel or constant of another file that it uses does. An installed version
replaces all files, so it never runs code of the one before. Whoever edits kernels, or updates a checkout
in place, removes `src/sottovoce/channel/**/*.nbi`; tests keep a cache for each state of the sources.
Kernels that both ends run never use fast-math: both must round alike. Integer tables that both ends share
are made by tools/channel_tables.py and shipped with the package.

The range coder turns decisions with known integer probabilities into nearly their information in bytes.
Probabilities are integers out of 2^bits and all arithmetic is on 64-bit integers, so both ends agree bit
for bit. With a range of at least 2⁴⁸ the rounding loss is below 2⁻¹⁶ even for 32-bit probabilities, and a
decision of probability near one costs nearly nothing. The decoder reads zeros past the end of its bytes,
so a truncated or forged payload decodes to something, never to a crash.
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
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Reals = NDArray[np.float64]
Integers = NDArray[np.int64]


def kernel(function: Function, **options: Any) -> Function:
    """Compile `function` at its first call, or load it if an earlier process has compiled it."""
    compile_ = numba.njit(cache=True, nogil=True, error_model="numpy", **options)
    try:
        return cast(Function, compile_(function))
    except RuntimeError:  # a message would take half a minute in each process
        raise ChannelError(
            "compiled kernels can be kept nowhere: set NUMBA_CACHE_DIR to a folder that only you can write to"
        ) from None


def summing_kernel(function: Function) -> Function:
    """A kernel whose sums may be reordered: for bounds with slack that only the encoder uses."""
    return kernel(function, fastmath={"reassoc"})


@dataclass(frozen=True)
class Tables:
    """Weights out of 2^16 and other integers of the entropy codes."""

    accepts: Integers  # lrsuq: P(u within the ball) by signed distance from its edge
    hazards: Integers  # polar: P(this candidate | none before), by information of the block
    mean_squares: Integers  # polar: E[bias²]·2^32 by scale number, folds, plane
    surprises: Integers  # polar: P(surprise) by class of the leaf and bin of the dither


@functools.cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    with np.load(Path(__file__).parent / "tables.npz") as stored:
        return Tables(**{name: stored[name].astype(np.int64) for name in stored.files})


_TOP = np.uint64(1 << 56)
_BOTTOM = np.uint64(1 << 48)
_LOW_MASK = np.uint64((1 << 48) - 1)
_EIGHT = np.uint64(8)
_SHIFT = np.uint64(48)


def new_encoder() -> Words:
    """Encoder state: low end of the interval, its range, bytes written."""
    return np.array([0, 1 << 56, 0], np.uint64)


def new_decoder(payload: bytes) -> tuple[Words, Bytes]:
    """Decoder state (offset of the code in the interval, range, bytes read) and the payload as an array."""
    code = int.from_bytes(payload[:7].ljust(7, b"\0"), "big")
    return np.array([code, 1 << 56, 7], np.uint64), np.frombuffer(payload, np.uint8)


def with_room(state: Words, out: Bytes, extra: int) -> Bytes:
    """`out` itself, or a larger copy, so that `extra` more bytes fit."""
    used = int(state[2])
    if out.size >= used + extra + 8:
        return out
    larger = np.empty(used + 2 * extra + 8, np.uint8)
    larger[:used] = out[:used]
    return larger


@kernel
def _carry(state: Words, out: Bytes) -> None:
    state[0] -= _TOP
    at = np.int64(state[2]) - 1
    while out[at] == 255:
        out[at] = 0
        at -= 1
    out[at] += 1


@kernel
def put(state: Words, out: Bytes, start: int, width: int, bits: int) -> None:
    """Codes the symbol that owns [start, start + width) out of 2^bits; 1 ≤ width, bits ≤ 32."""
    unit = state[1] >> np.uint64(bits)
    state[0] += unit * np.uint64(start)
    state[1] = unit * np.uint64(width)
    if state[0] >= _TOP:
        _carry(state, out)
    while state[1] < _BOTTOM:
        out[np.int64(state[2])] = np.uint8(state[0] >> _SHIFT)
        state[2] += np.uint64(1)
        state[0] = (state[0] & _LOW_MASK) << _EIGHT
        state[1] <<= _EIGHT


@kernel
def peek(state: Words, bits: int) -> int:
    """The point of [0, 2^bits) that the next symbol owns; `take` that symbol next."""
    point = int(np.int64(state[0] // (state[1] >> np.uint64(bits))))
    return min(point, (1 << bits) - 1)


@kernel
def take(state: Words, data: Bytes, start: int, width: int, bits: int) -> None:
    """Consume the symbol that owns [start, start + width) out of 2^bits."""
    unit = state[1] >> np.uint64(bits)
    state[0] -= unit * np.uint64(start)
    state[1] = unit * np.uint64(width)
    while state[1] < _BOTTOM:
        at = np.int64(state[2])
        state[0] <<= _EIGHT
        if at < data.size:
            state[0] |= np.uint64(data[at])
        state[2] += np.uint64(1)
        state[1] <<= _EIGHT


@kernel
def put_bit(state: Words, out: Bytes, bit: int, ones: int, bits: int) -> None:
    """Codes one bit whose probability of being 1 is ones / 2^bits, 0 < ones < 2^bits."""
    # Zeros, the usual decisions, keep the low end: a message of zeros only ends without a byte.
    if bit:
        put(state, out, (1 << bits) - ones, ones, bits)
    else:
        put(state, out, 0, (1 << bits) - ones, bits)


@kernel
def take_bit(state: Words, data: Bytes, ones: int, bits: int) -> int:
    """The next bit, coded by `put_bit` with the same probability."""
    unit = state[1] >> np.uint64(bits)
    if state[0] < unit * np.uint64((1 << bits) - ones):
        take(state, data, 0, (1 << bits) - ones, bits)
        return 0
    take(state, data, (1 << bits) - ones, ones, bits)
    return 1


@kernel
def put_number(state: Words, out: Bytes, value: int, shift: int) -> None:
    """Codes any 0 ≤ value < 2⁶¹ in about 2·log₂(value / 2^shift) + shift bits (Exp-Golomb)."""
    head = (value >> shift) + 1
    length = 0
    while head >> (length + 1):
        length += 1
    for _ in range(length):
        put_bit(state, out, 1, 1, 1)
    put_bit(state, out, 0, 1, 1)
    for at in range(length - 1, -1, -1):
        put_bit(state, out, (head >> at) & 1, 1, 1)
    for at in range(shift - 1, -1, -1):
        put_bit(state, out, (value >> at) & 1, 1, 1)


@kernel
def take_number(state: Words, data: Bytes, shift: int) -> int:
    """The next number, coded by `put_number`; −1 where a forged payload holds none below 2⁶¹."""
    length = 0
    while take_bit(state, data, 1, 1):
        length += 1
        if length + shift > 61:
            return -1
    head = 1
    for _ in range(length):
        head = head << 1 | take_bit(state, data, 1, 1)
    value = head - 1
    for _ in range(shift):
        value = value << 1 | take_bit(state, data, 1, 1)
    return value


@kernel
def _finish(state: Words, out: Bytes) -> None:
    end = state[0] + state[1]
    for count in range(8):
        mask = (np.uint64(1) << np.uint64(56 - 8 * count)) - np.uint64(1)
        value = (state[0] + mask) & ~mask
        if value < end:
            break
    state[0] = value
    if value >= _TOP:
        _carry(state, out)
    for at in range(count):
        out[np.int64(state[2])] = np.uint8((state[0] >> np.uint64(48 - 8 * at)) & np.uint64(255))
        state[2] += np.uint64(1)


def finish(state: Words, out: Bytes) -> bytes:
    """The shortest bytes that decode to everything put so far."""
    _finish(state, out)
    return out[: int(state[2])].tobytes().rstrip(b"\0")
