"""Private and shared randomness: right laws, random access, the same everywhere."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from scipy import stats

from sottovoce.channel.randomness import (
    PrivateRandomness,
    SeededRandomness,
    SharedRandomness,
    SystemRandomness,
)
from sottovoce.channel.reproducible import log_mantissa
from sottovoce.channel.wire import Envelope

ENVELOPE = Envelope("lrsuq/Z4", 10, 1.0, bytes(32), ("client", 1))


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(b"law")], ids=["system", "seeded"])
def test_normals_are_normal_and_uniforms_uniform(source: PrivateRandomness) -> None:
    # The system's generator cannot be seeded: each assertion fails by chance once in 10⁶ runs.
    assert stats.kstest(source.normal(200_000), "norm").pvalue > 1e-6
    assert stats.kstest(source.uniform(200_000), "uniform").pvalue > 1e-6


def test_seeded_normals_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256(SeededRandomness(b"golden").normal(10_001).astype("<f8").tobytes()).hexdigest()
    assert digest == "1f0068566350d6a44694bf01f6e598390038db1b3597870fb45281c93a09c5a3"


def test_no_draws_are_an_empty_array() -> None:
    assert SeededRandomness(b"").normal(0).shape == (0,)


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
