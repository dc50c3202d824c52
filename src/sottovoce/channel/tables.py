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
    hazards: NDArray[np.int64]  # polar: P(this candidate | none before), by information of the block
    mean_squares: NDArray[np.int64]  # polar: E[bias²]·2^32 by scale number, folds, plane
    surprises: NDArray[np.int64]  # polar: P(surprise) by class of the leaf and bin of the dither


@functools.cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    with np.load(Path(__file__).parent / "tables.npz") as stored:
        return Tables(**{name: stored[name].astype(np.int64) for name in stored.files})
