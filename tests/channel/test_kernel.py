"""Compiled kernels: later processes load what the first one kept, and what is missing is said in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sottovoce.channel import ChannelError
from sottovoce.channel.coding import kernel

MESSAGES = """
import numpy as np
from sottovoce.channel import SeededRandomness, lrsuq, open_channel, polar
for name in ("lrsuq", "polar"):
    channel = open_channel(name, size=300, sigma=0.1)
    ends = dict(secret=bytes(32), stream=("kernel",))
    message = channel.encode(np.linspace(-0.1, 0.1, 300), private=SeededRandomness(b"kernel"), **ends)
    print(message.hex(), channel.decode(message, **ends).tobytes().hex())
for each in (lrsuq._encode_blocks, lrsuq._decode_blocks, polar.cancel, polar.take_plane):
    print(each.stats.cache_hits.total(), each.stats.cache_misses.total())
"""
WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import sottovoce.run.training
from sottovoce.channel import CHANNELS, ChannelError, open_channel
for name in CHANNELS:
    try:
        open_channel(name, size=4, sigma=1.0)
    except ChannelError as error:
        print(name, error)
"""


def run(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def test_a_later_process_makes_the_same_messages_and_compiles_nothing() -> None:
    first, later = run(MESSAGES), run(MESSAGES)
    assert first[:2] == later[:2]
    assert later[2:] == ["1 0"] * 4


def test_without_numba_all_but_the_coded_channels_work_and_those_say_what_is_missing() -> None:
    said = run(WITHOUT_NUMBA)
    assert [line.split()[0] for line in said] == ["lrsuq", "lrsuq-elias", "polar"]
    assert all("install it, or use channel=direct" in line for line in said)


def test_where_kernels_cannot_be_kept_the_error_says_how_to_keep_them() -> None:
    with pytest.raises(ChannelError, match="set NUMBA_CACHE_DIR"):
        kernel(eval("lambda: 0"))  # of no file, so numba has no place for it, as on a read-only disk
