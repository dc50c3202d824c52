"""Private and shared randomness: right laws, random access, the same everywhere."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import pytest
from scipy import stats

from sottovoce.channel.wire import (
    ChannelError,
    Envelope,
    PrivateRandomness,
    SeededRandomness,
    SharedRandomness,
    SystemRandomness,
    log_mantissa,
)

ENVELOPE = Envelope("lrsuq/Z4", 10, 1.0, bytes(32), ("client", 1))


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(b"law")], ids=["system", "seeded"])
def test_normals_are_normal_and_uniforms_uniform(source: PrivateRandomness) -> None:
    # The system's generator cannot be seeded: each assertion fails by chance once in 10⁶ runs.
    assert stats.kstest(source.normal(200_000), "norm").pvalue > 1e-6
    assert stats.kstest(source.uniform(200_000), "uniform").pvalue > 1e-6


def test_seeded_normals_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256(SeededRandomness(b"golden").normal(10_001).astype("<f8").tobytes()).hexdigest()
    assert digest == "1f0068566350d6a44694bf01f6e598390038db1b3597870fb45281c93a09c5a3"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_there_are_as_many_draws_as_asked_for(count: int) -> None:
    source = SeededRandomness(b"")
    assert source.normal(count).shape == source.uniform(count).shape == source.words(count).shape == (count,)


def test_shared_words_are_the_same_from_any_start() -> None:
    shared = SharedRandomness(ENVELOPE)
    whole = shared.words("dithers", 40_000)
    for start, count in [(0, 1), (1, 1), (777, 50), (20_001, 19_999)]:
        assert np.array_equal(shared.words("dithers", count, start), whole[start : start + count])


def test_purposes_and_streams_share_nothing() -> None:
    other = Envelope("lrsuq/Z4", 10, 1.0, bytes(32), ("client", 2))
    first = SharedRandomness(ENVELOPE).words("dithers", 100)
    assert not np.isin(first, SharedRandomness(ENVELOPE).words("radii", 100)).any()
    assert not np.isin(first, SharedRandomness(other).words("dithers", 100)).any()


def test_shared_words_are_pinned() -> None:
    words = SharedRandomness(ENVELOPE).words("dithers", 2, start=5)
    assert words.tolist() == [
        11425784140681961776,
        17756301223930315263,
    ]


def test_the_reproducible_logarithm_is_accurate() -> None:
    x = np.concatenate(
        [SeededRandomness(b"log").uniform(10_000), 1 - 2.0 ** -np.arange(1, 53), [1e-300, 3.7]]
    )
    mantissa, exponent = np.frexp(x)
    ours = log_mantissa(mantissa, exponent.astype(np.float64))
    exact = np.array([math.log(v) for v in x])
    assert np.max(np.abs(ours - exact) / np.abs(exact)) < 1e-15


@pytest.mark.parametrize("count", [1, 8, 32, 1000, 1024, 1025, 4096, 100_000])
def test_the_systems_generator_is_asked_for_all_it_gives_or_for_a_whole_key(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    urandom = os.urandom

    def overheard(size: int) -> bytes:
        asked.append(size)
        return urandom(size)

    monkeypatch.setattr("sottovoce.channel.wire.os.urandom", overheard)
    drawn = SystemRandomness().bytes(count)
    assert len(drawn) == count
    assert asked == [count if count <= 1024 else 32]


@pytest.mark.parametrize("count", [32, 1024, 1032, 70_000])
def test_no_two_draws_of_the_systems_generator_agree(count: int) -> None:
    """Also within one source, and wherever a draw is long enough to be stretched from a key."""
    source = SystemRandomness()
    draws = [source.bytes(count), source.bytes(count), SystemRandomness().bytes(count)]
    pieces = [draw[at : at + 16] for draw in draws for at in range(0, count - 15, 16)]
    assert len(set(pieces)) == len(pieces)


def test_the_systems_bytes_take_every_value_in_every_place() -> None:
    for count in (512, 2048):
        drawn = np.frombuffer(b"".join(SystemRandomness().bytes(count) for _ in range(200)), np.uint8)
        for place in range(8):  # 25,600 or more bytes each: one value is missing once in 10⁴¹
            assert len(np.unique(drawn[place::8])) == 256


def test_without_cryptography_long_draws_come_from_the_system_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError

    monkeypatch.setattr("sottovoce.channel.wire._keystream", missing)
    one, other = SystemRandomness().bytes(3000), SystemRandomness().bytes(3000)
    assert len(one) == len(other) == 3000
    assert one != other
    with pytest.raises(ChannelError, match="needs the package 'cryptography'"):
        SharedRandomness(ENVELOPE).words("dithers", 2)


def test_seeded_draws_go_on_and_depend_on_the_whole_seed() -> None:
    source = SeededRandomness(b"a" * 31 + b"b")
    first, second = source.bytes(24), source.bytes(24)
    assert first != second
    assert SeededRandomness(b"a" * 31 + b"c").bytes(24) != first
    assert len(source.bytes(13)) == 13
    words = SeededRandomness(b"a" * 31 + b"b").words(3)
    assert words.astype("<u8").tobytes() == first
    assert SeededRandomness(b"a" * 31 + b"b").bytes(48) == first + second


def test_uniforms_never_reach_zero_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte, expected in ((b"\0", 2.0**-54), (b"\xff", 1 - 2.0**-53)):
        monkeypatch.setattr(SystemRandomness, "bytes", lambda _, count, byte=byte: byte * count)
        assert SystemRandomness().uniform(2).tolist() == [expected, expected]
        assert 0.0 < expected < 1.0
