"""The noise-free ablation `epsilon=inf`: statistics travel as they are, and nobody is protected.

It exists to measure what the noise costs (Sec. 3.3 of the paper). It is kept out of `sottovoce.channel`, so
that no channel there can be opened without noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Noiseless:
    """The shape of a channel with σ = 0: float32 there and back."""

    name = "noiseless"
    sigma = 0.0
    rounding = 1e-6  # float32
    widening = 0.0

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, u: Any, *, secret: bytes, stream: Any, private: Any = None) -> bytes:
        return np.asarray(u, dtype="<f4").tobytes()

    def decode(self, message: bytes, *, secret: bytes, stream: Any) -> NDArray[np.float64]:
        return np.frombuffer(message, dtype="<f4").astype(np.float64)
