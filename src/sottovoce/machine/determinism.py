"""What makes results repeatable: each operation stays on one core, and each purpose has a public seed.

Shared out among threads, a sum of torch comes out differently for every number of them. So nothing that a
result is made of is: within `one_core`, or as an item of `side_by_side`, an operation stays on one core, and
what is computed is the same bit for bit on however many there are.

Modules of torch draw from its one global generator, so one thread at a time draws, after `seeded`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

_NAME = "sottovoce-core"
_TURN = 5e-5
"""Seconds; Python's own 5 ms are as long as a client's matrix products."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Here(threading.local):
    """What this thread may use beyond its own core; 0: whatever torch may."""

    cores = 0


_here = _Here()


def available() -> int:
    """Returns how many items this thread may have worked on at once."""
    return _here.cores or torch.get_num_threads()


@contextmanager
def one_core() -> Iterator[None]:
    """Each operation within is done by one core; `side_by_side` has as many as before."""
    threads, cores = torch.get_num_threads(), _here.cores
    if threads == 1:
        yield
        return
    _here.cores = available()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _here.cores = cores


def beside_others() -> bool:
    """Returns whether this thread works on an item while others may work on the next."""
    return threading.current_thread().name.startswith(_NAME)


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """[work(item) for item in items], of which as many at once as there are cores.

    >>> side_by_side(lambda item: item**2, [1, 2, 3])
    [1, 4, 9]
    """
    cores = available()
    if cores == 1 or len(items) == 1:
        with one_core():
            return [work(item) for item in items]
    with _prompt():
        return list(_pool(cores, os.getpid()).map(work, items))


@contextmanager
def _prompt() -> Iterator[None]:
    """Threads take turns at Python often: one whose core is free starts its next operation without waiting
    for all the small ones of another."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of at most `size`.

    >>> list(batched(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


@cache
def _pool(cores: int, process: int) -> ThreadPoolExecutor:
    """Threads with a core each; those of a parent process do not live on in a forked one."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(cores, _NAME, initializer=_use_one_core)
    all_started = threading.Barrier(cores)
    list(pool.map(lambda _: all_started.wait(), range(cores)))
    torch.set_num_threads(threads)  # each of them has changed it for threads to come as well
    return pool


def _use_one_core() -> None:
    torch.get_num_threads()  # a thread's first question gives it the process's number, whatever it was told
    torch.set_num_threads(1)
    _here.cores = 1


_ONE_THREAD = threading.RLock()


def derived_seed(seed: int, purpose: str) -> int:
    """An independent 63-bit seed for one purpose of a public seed."""
    return int.from_bytes(hashlib.sha256(f"sottovoce:{seed}:{purpose}".encode()).digest()[:8], "big") >> 1


def arithmetic(device: str = "cpu") -> str:
    """A fingerprint of what decides the last bit of a sum on this machine; no name of it or its owner."""
    said = [device, platform.machine(), torch.__version__, np.__version__, torch.__config__.show()]
    said.append(torch.backends.cpu.get_cpu_capability())
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes what the block draws depend on the public `seed` alone; the generator is put back after it.

    >>> with seeded(3):
    ...     first = torch.rand(2)
    >>> with seeded(3):
    ...     print(torch.equal(first, torch.rand(2)))
    True
    """
    with _ONE_THREAD, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
