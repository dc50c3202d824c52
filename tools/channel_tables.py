"""Make src/sottovoce/channel/tables.npz, the integer tables of the entropy codes.

Run as `python tools/channel_tables.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

TARGET = Path(__file__).parent.parent / "src" / "sottovoce" / "channel" / "tables.npz"


def accepts() -> np.ndarray:
    """P(a model value lies inside the edge) for edges −8 … 8 scales away, in steps of 1/16.

    A 2 % share of values four times as wide keeps rare large coordinates affordable.
    """
    gap = (np.arange(256) + 0.5) / 16 - 8
    share = 0.98 * stats.norm.cdf(gap) + 0.02 * stats.norm.cdf(gap / 4)
    return np.rint(share * 2**16).astype(np.uint16)


if __name__ == "__main__":
    np.savez_compressed(TARGET, accepts=accepts())
