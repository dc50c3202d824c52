"""The range coder gives back what was put in, at nearly its information, whatever bytes it reads."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from sottovoce.channel import coding
from sottovoce.channel.coding import peek, put, put_bit, put_number, take, take_bit, take_number


def _buffer(state: np.ndarray) -> np.ndarray:
    return coding.with_room(state, np.empty(0, np.uint8), 100_000)


def test_bits_of_any_skew_come_back_at_their_information() -> None:
    rng = random.Random(1)
    # Weights between 1 and 2^16 − 1: from nearly certain to nearly impossible.
    weights = [max(1, min(65535, int(65536 * rng.betavariate(0.2, 0.2)))) for _ in range(20_000)]
    bits = [int(rng.random() < weight / 65536) for weight in weights]
    state = coding.new_encoder()
    out = _buffer(state)
    for bit, weight in zip(bits, weights, strict=True):
        put_bit(state, out, bit, weight, 16)
    payload = coding.finish(state, out)
    information = -sum(
        math.log2(weight / 65536 if bit else 1 - weight / 65536)
        for bit, weight in zip(bits, weights, strict=True)
    )
    assert information / 8 - 1 < len(payload) < information / 8 + 2
    state, data = coding.new_decoder(payload)
    assert [take_bit(state, data, weight, 16) for weight in weights] == bits


def test_a_carry_through_many_full_bytes_is_propagated() -> None:
    for tail in range(2, 40):
        state = coding.new_encoder()
        out = _buffer(state)
        symbols = [127, *[255] * tail, 255]
        for symbol in symbols:
            put(state, out, symbol, 1, 8)
        put(state, out, (1 << 16) - 1, 1, 16)
        payload = coding.finish(state, out)
        state, data = coding.new_decoder(payload)
        for symbol in symbols:
            assert peek(state, 8) == symbol
            take(state, data, symbol, 1, 8)


@pytest.mark.parametrize("shift", [0, 3, 20])
def test_numbers_of_every_size_come_back(shift: int) -> None:
    values = [0, 1, 2, 63, 64, 65, 10**6, 2**40, 2**61 - 1]
    state = coding.new_encoder()
    out = _buffer(state)
    for value in values:
        put_number(state, out, value, shift)
    state, data = coding.new_decoder(coding.finish(state, out))
    assert [take_number(state, data, shift) for _ in values] == values


def test_a_forged_number_without_end_is_refused() -> None:
    state, data = coding.new_decoder(b"\xff" * 40)
    assert take_number(state, data, 0) == -1


def test_certain_decisions_cost_nothing() -> None:
    state = coding.new_encoder()
    out = _buffer(state)
    for _ in range(1000):
        put_bit(state, out, 0, 1, 16)
    assert coding.finish(state, out) == b""


def test_a_buffer_that_is_too_small_is_copied_to_a_larger_one() -> None:
    state = coding.new_encoder()
    out = coding.with_room(state, np.empty(0, np.uint8), 4)
    for symbol in range(8):
        put(state, out, symbol, 1, 8)
    larger = coding.with_room(state, out, 1000)
    assert larger.size >= 1000
    payload = coding.finish(state, larger)
    assert payload == bytes(range(8))
