"""Decoding is hostile-proof: any bytes give a ChannelError or an array, in bounded time and memory."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

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


def _messages(name: str, stream: tuple[str, int] = STREAM, size: int = SIZE) -> list[bytes]:
    """Genuine messages of statistics small and large."""
    vectors = [np.random.default_rng(norm).standard_normal(size) * norm * SIGMA for norm in (0, 1, 100_000)]
    return [
        opened(name, size).encode(u, secret=SECRET, stream=stream, private=SeededRandomness(b"f"))
        for u in vectors
    ]


def _fuzz(name: str, messages: Iterator[bytes]) -> tuple[int, int]:
    """Decodes all of them; returns the numbers of arrays and of refusals."""
    channel = opened(name, SIZE)
    for message in _messages(name):  # on a fresh machine the first one compiles the decoder
        channel.decode(message, secret=SECRET, stream=STREAM)
    arrays, refused, said = 0, 0, set()
    for message in messages:
        start = time.thread_time()
        try:
            y = channel.decode(message, secret=SECRET, stream=STREAM)
            assert y.shape == (SIZE,)
            assert y.dtype == np.float64
            arrays += 1
        except ChannelError as error:
            refused += 1
            said.add(str(error))
        assert time.thread_time() - start < 2.0
    assert not any("\n" in line for line in said)
    return arrays, refused


def _wrong(name: str, count: int) -> Iterator[bytes]:
    """Messages that must not be read: genuine ones of this channel with bytes changed, cut, added or under
    the header of another message, and whole ones of other streams, sizes and channels."""
    rng = random.Random(name)
    genuine = _messages(name)
    foreign = [
        message
        for other in EVERY
        for stream, size in ((STREAM, SIZE), (STREAM, SIZE // 2), (("fuzz", 2), SIZE), (("fuzz", 11), SIZE))
        if (other, stream, size) != (name, STREAM, SIZE)
        for message in _messages(other, stream, size)
    ]
    while count > 0:
        kind = rng.randrange(10)
        if kind == 0:
            message = rng.choice(foreign)
        elif kind == 1:
            message = rng.choice([*genuine, *foreign])[:5] + rng.choice([*genuine, *foreign])[5:]
        elif kind == 2:
            message = rng.choice(genuine)[:1] + rng.randbytes(4) + rng.choice(genuine)[5:]
        else:
            message = _mutated(rng, rng.choice(genuine))
        if message not in genuine:
            count -= 1
            yield message


def _forged(name: str, count: int) -> Iterator[bytes]:
    """Payloads changed and sealed again, as only somebody who has the secret could."""
    rng = random.Random(name)
    envelope = opened(name, SIZE)._envelope(SECRET, STREAM)
    genuine = _messages(name)
    for _ in range(count):
        yield envelope.seal(_mutated(rng, rng.choice(genuine)[5:]))


@pytest.mark.parametrize("name", EVERY)
def test_a_mutated_message_is_refused(name: str) -> None:
    # Seeded; a mutant of another seed would pass the tag with probability 2⁻³².
    assert _fuzz(name, _wrong(name, 1000)) == (0, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_of_a_million_mutated_messages_none_is_accepted(name: str) -> None:
    count = 1_000_000 // len(EVERY) + 1
    assert _fuzz(name, _wrong(name, count)) == (0, count)


@pytest.mark.parametrize("name", EVERY)
def test_a_forged_payload_with_a_valid_tag_gives_an_error_or_an_array(name: str) -> None:
    assert sum(_fuzz(name, _forged(name, 400))) == 400


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_hundred_thousand_forged_payloads_give_errors_or_arrays(name: str) -> None:
    count = 100_000 // len(EVERY) + 1
    assert sum(_fuzz(name, _forged(name, count))) == count


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("junk", [b"", b"\x10", bytes(5), bytes(4096), b"\xff" * 100])
def test_junk_is_refused(name: str, junk: bytes) -> None:
    with pytest.raises(ChannelError):
        opened(name, SIZE).decode(junk, secret=SECRET, stream=STREAM)


@pytest.mark.parametrize("message", [None, "text", 7, ["a"]])
def test_things_that_are_not_bytes_are_refused(message: object) -> None:
    with pytest.raises(ChannelError, match="bytes"):
        opened("direct", SIZE).decode(message, secret=SECRET, stream=STREAM)  # type: ignore[arg-type]
