"""Kernels are tested as they are written: each state of the sources has its own cache of compiled kernels.

Numba alone would not notice that a kernel of another file has changed (see `sottovoce.channel.coding`).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _digest() -> str:
    sources = sorted((ROOT / "src/sottovoce/channel").rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / "build/kernels" / _digest()))
