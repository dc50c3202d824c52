"""Integer tables that both ends share: made by tools/channel_tables.py, shipped with the package."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tables:
    """Weights out of 2^16 and other integers of the entropy codes."""

    accepts: NDArray[np.int64]  # lrsuq: P(u within the ball) by signed distance from its edge


@functools.cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    with np.load(Path(__file__).parent / "tables.npz") as stored:
        return Tables(accepts=stored["accepts"].astype(np.int64))
