"""Downlink: how the coefficients that a client trains at travel to it, and how many bytes they take.

As float32, or coded: multiples q·s of one step s, the smallest at which their entropy fits into the bits that
the plan allows, then DEFLATE. One step for all is what loses least (reverse water-filling); a coefficient
too large for a symbol travels exactly. The server sends `encode(a)`. Client and simulator alike train at
`decode` of it, so engines agree bit for bit. Coefficients are made of what is private
already: coding them is post-processing.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import SottovoceError

FLOAT_BITS = 32
LARGEST = 127  # of a symbol, in steps
EXACT = -128  # the symbol of a coefficient beyond it, which follows as float32
LEAST_BYTES = 256  # a message may have them whatever its bits: few coefficients do not pay for a code's table
SPARE_BITS = 0.06  # what a Huffman code takes beyond the entropy
NOTHING = 1e-30  # no model feels less, and float32 has no steps below
HALVINGS = 12  # of the range in which the step is looked for: to 1 %


class BadCoefficients(SottovoceError):
    """A message that does not carry the coefficients it should."""


@dataclass(frozen=True)
class Downlink:
    """Coefficients (k,), k = `size`, as messages of at most `bits` a coefficient; 32: float32.

    >>> link = Downlink(1000, bits=4)
    >>> a = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    >>> message = link.encode(a)
    >>> len(message) <= 500, bool((link.decode(message) - a).norm() < 0.1 * a.norm())
    (True, True)
    """

    size: int
    bits: int = FLOAT_BITS

    def encode(self, coefficients: Tensor) -> bytes:
        """The message that carries coefficients (k,)."""
        values = coefficients.detach().cpu().numpy().astype("<f4")
        return values.tobytes() if self.bits == FLOAT_BITS else self._coded(values)

    def decode(self, message: bytes) -> Tensor:
        """The coefficients (k,) that a client trains at, float32 on the CPU."""
        values = self._floats(message) if self.bits == FLOAT_BITS else self._decoded(message)
        if values.shape != (self.size,) or not np.isfinite(values).all():
            raise BadCoefficients("the server sent coefficients of another size, or not finite: refused")
        return torch.from_numpy(values)

    def deliver(self, coefficients: Tensor) -> tuple[Tensor, int]:
        """Coefficients (clients, k) as their clients get them, on the same device, and the bytes of all."""
        if self.bits == FLOAT_BITS:
            return coefficients, coefficients.numel() * FLOAT_BITS // 8
        messages = [self.encode(each) for each in coefficients]
        received = torch.stack([self.decode(message) for message in messages])
        return received.to(coefficients.device), sum(map(len, messages))

    def _coded(self, values: np.ndarray) -> bytes:
        largest = float(np.abs(values).max(initial=0.0))
        if not math.isfinite(largest):
            raise BadCoefficients(
                "the coefficients have become infinite: lower learning_rate, or raise epsilon"
            )
        most = max(self.bits * self.size / 8, min(LEAST_BYTES, 4 * self.size))
        step = _step(values, largest, self.bits - SPARE_BITS)
        while len(message := _message(values, step)) > most and step < 2 * largest:
            step *= 1.02
        return message

    def _floats(self, message: bytes) -> np.ndarray:
        return np.frombuffer(message if len(message) % 4 == 0 else b"", "<f4").astype(np.float32)

    def _decoded(self, message: bytes) -> np.ndarray:
        most = 5 * self.size
        inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        try:
            body = inflate.decompress(message[4:], most + 1)
        except zlib.error:
            return np.empty(0, np.float32)
        symbols = np.frombuffer(body[: self.size], np.int8)
        exact = self._floats(body[self.size :])
        if (
            len(message) < 4
            or len(symbols) != self.size
            or len(body) != self.size + 4 * (symbols == EXACT).sum()
        ):
            return np.empty(0, np.float32)
        values: np.ndarray = np.multiply(symbols, self._floats(message[:4]), dtype=np.float32)
        values[symbols == EXACT] = exact
        return values


def _message(values: np.ndarray, step: float) -> bytes:
    symbols = _symbols(values, step)
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS, strategy=zlib.Z_RLE)  # symbols do not repeat in phrases
    body = symbols.astype(np.int8).tobytes() + values[symbols == EXACT].tobytes()
    return np.array(step, "<f4").tobytes() + deflate.compress(body) + deflate.flush()


def _symbols(values: np.ndarray, step: float) -> np.ndarray:
    steps = np.rint(values / np.float32(step))
    return np.where(np.abs(steps) <= LARGEST, steps, EXACT).astype(np.int16)


def _step(values: np.ndarray, largest: float, bits: float) -> float:
    """The smallest step, up to 1 %, at which the symbols' entropy is at most `bits` a coefficient."""
    if largest < NOTHING:
        return 1.0
    low, high = math.log2(largest) - 24, math.log2(largest) + 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _rate(values, 2**middle) <= bits else (middle, high)
    return float(2**high)


def _rate(values: np.ndarray, step: float) -> float:
    """Bits a coefficient: the symbols' entropy, and what travels exactly."""
    counts = np.bincount(_symbols(values, step) - EXACT)
    shares = counts[counts > 0] / len(values)
    return float(-(shares * np.log2(shares)).sum() + FLOAT_BITS * counts[0] / len(values))
