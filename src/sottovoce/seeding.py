"""Public seeds: one for each purpose, and initialization that depends on nothing else.

Modules of torch draw from its one global generator, so one thread at a time draws.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_THREAD = threading.RLock()


def derived_seed(seed: int, purpose: str) -> int:
    """An independent 63-bit seed for one purpose of a public seed."""
    return int.from_bytes(hashlib.sha256(f"sottovoce:{seed}:{purpose}".encode()).digest()[:8], "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What the block draws depends on the public `seed` alone; afterwards the generator is as it was.

    >>> with seeded(3):
    ...     first = torch.rand(2)
    >>> with seeded(3):
    ...     print(torch.equal(first, torch.rand(2)))
    True
    """
    with _ONE_THREAD, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
