"""Decoding is hostile-proof: any bytes give a ChannelError or an array, in bounded time and memory."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from sottovoce.channel import ChannelError, SeededRandomness

from .cases import EVERY, SECRET, SIGMA, opened

SIZE = 64
STREAM = ("fuzz", 1)


def _mutated(rng: random.Random, message: bytes) -> bytes:
    data = bytearray(message)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(6)
        at = rng.randrange(len(data) + 1)
        if kind == 0:
            data[at:at] = rng.randbytes(rng.randint(1, 40))
        elif kind == 1:
            del data[at : at + rng.randint(1, 40)]
        elif kind == 2:
            data[at:] = b""
        elif kind == 3:
            data[at : at + rng.randint(1, 8)] = rng.choice([b"\x00", b"\xff"]) * 8
        elif at < len(data):
            data[at] = rng.randrange(256) if kind == 4 else data[at] ^ 1 << rng.randrange(8)
    return bytes(data)


def _fuzz(name: str, count: int, resealed: bool) -> tuple[int, int]:
    """Decode `count` mutants, or `resealed` payloads with a valid tag; returns arrays and refusals."""
    rng = random.Random(name)
    channel = opened(name, SIZE)
    envelope = channel._envelope(SECRET, STREAM)
    seeds = []
    for number, norm in enumerate((0.0, 0.05, 1.0, 1e5)):
        u = np.random.default_rng(number).standard_normal(SIZE) * norm * SIGMA
        seeds.append(
            opened(name, SIZE).encode(u, secret=SECRET, stream=STREAM, private=SeededRandomness(b"f"))
        )
    for seed in seeds:  # on a fresh machine the first one compiles the decoder, which is not its time
        channel.decode(seed, secret=SECRET, stream=STREAM)
    arrays, refused = 0, 0
    for _ in range(count):
        seed = rng.choice(seeds)
        message = envelope.seal(_mutated(rng, seed[5:])) if resealed else _mutated(rng, seed)
        if message in seeds:
            continue
        start = time.thread_time()
        try:
            y = channel.decode(message, secret=SECRET, stream=STREAM)
            assert y.shape == (SIZE,)
            assert y.dtype == np.float64
            arrays += 1
        except ChannelError:
            refused += 1
        assert time.thread_time() - start < 2.0
    return arrays, refused


@pytest.mark.parametrize("name", EVERY)
def test_a_mutated_message_is_refused(name: str) -> None:
    # A mutant passes the tag with probability 2⁻³².
    arrays, refused = _fuzz(name, 1000, resealed=False)
    assert arrays == 0
    assert refused > 900


@pytest.mark.parametrize("name", EVERY)
def test_a_forged_payload_with_a_valid_tag_gives_an_error_or_an_array(name: str) -> None:
    arrays, refused = _fuzz(name, 400, resealed=True)
    assert arrays + refused > 360


@pytest.mark.slow
@pytest.mark.parametrize("resealed", [False, True], ids=["raw", "resealed"])
@pytest.mark.parametrize("name", EVERY)
def test_a_hundred_thousand_mutants_give_errors_or_arrays(name: str, resealed: bool) -> None:
    arrays, refused = _fuzz(name, 100_000 // (2 * len(EVERY)) + 1, resealed)
    assert arrays + refused > 5_000


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("junk", [b"", b"\x10", bytes(5), bytes(4096), b"\xff" * 100])
def test_junk_is_refused(name: str, junk: bytes) -> None:
    with pytest.raises(ChannelError):
        opened(name, SIZE).decode(junk, secret=SECRET, stream=STREAM)


@pytest.mark.parametrize("message", [None, "text", 7, ["a"]])
def test_things_that_are_not_bytes_are_refused(message: object) -> None:
    with pytest.raises(ChannelError, match="bytes"):
        opened("direct", SIZE).decode(message, secret=SECRET, stream=STREAM)  # type: ignore[arg-type]
