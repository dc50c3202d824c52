"""Coefficients arrive at every engine's clients as the same numbers, in no more bytes than allowed."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.plan.checks import PlanError
from sottovoce.release.downlink import BadCoefficients, Downlink
from sottovoce.run.cost import outline
from sottovoce.run.training import train
from tests.small import small_plan

K = 4096


def drawn(kind: str, size: int = K) -> Tensor:
    """Coefficients like those of a generator: Gaussian, of unlike scales, or with a class prior on biases."""
    a = torch.randn(size, generator=torch.Generator().manual_seed(7))
    if kind == "scales":
        return a**5
    if kind == "prior":
        a = 0.02 * a
        a[-10:] = torch.linspace(-7, 5, 10)
    return a


def test_uncoded_coefficients_arrive_exactly() -> None:
    a = drawn("scales")
    message = Downlink(K).encode(a)
    assert len(message) == 4 * K
    assert torch.equal(Downlink(K).decode(message), a)


@pytest.mark.parametrize("kind", ["gaussian", "scales", "prior"])
@pytest.mark.parametrize("bits", [1, 2, 4, 7])
def test_a_coded_message_has_at_most_its_bits(kind: str, bits: int) -> None:
    link = Downlink(K, bits)
    message = link.encode(drawn(kind))
    assert 8 * len(message) <= bits * K
    assert 8 * len(message) >= 0.9 * bits * K


@pytest.mark.parametrize("kind", ["gaussian", "scales", "prior"])
def test_the_error_is_that_of_the_rate(kind: str) -> None:
    # A Gaussian source at R bits and uniform steps: √(2πe/12)·2^-R = 0.075 of its norm, others less.
    a = drawn(kind)
    error = Downlink(K, 4).decode(Downlink(K, 4).encode(a)) - a
    assert float(error.norm()) < 0.085 * float(a.norm())
    halved = Downlink(K, 5).decode(Downlink(K, 5).encode(a)) - a
    assert float(halved.norm()) < 0.65 * float(error.norm())


def test_a_class_prior_is_not_rounded_away_with_the_weights() -> None:
    a = drawn("prior")
    received = Downlink(K, 4).decode(Downlink(K, 4).encode(a))
    assert float((received - a)[:-10].norm()) < 0.1 * float(a[:-10].norm())


@pytest.mark.parametrize("a", [torch.zeros(K), torch.full((K,), 1e-45), torch.ones(K), drawn("gaussian", 3)])
def test_degenerate_coefficients_arrive(a: Tensor) -> None:
    link = Downlink(len(a), 4)
    message = link.encode(a)
    assert len(message) < 64
    assert float((link.decode(message) - a).abs().max()) <= 0.1 * float(a.abs().max()) + 1e-30


def test_a_delivery_is_what_the_messages_carry() -> None:
    a = torch.stack([drawn("gaussian"), drawn("prior")])
    received, size = Downlink(K, 4).deliver(a)
    messages = [Downlink(K, 4).encode(each) for each in a]
    assert size == sum(map(len, messages))
    assert torch.equal(received, torch.stack([Downlink(K, 4).decode(each) for each in messages]))
    assert Downlink(K).deliver(a) == (a, 8 * K)


def test_messages_that_carry_something_else_are_refused() -> None:
    link = Downlink(K, 4)
    good = link.encode(drawn("prior"))

    def packed(body: bytes, step: float = 1.0) -> bytes:
        deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return np.float32(step).tobytes() + deflate.compress(body) + deflate.flush()

    bad = [b"", good[:3], good[:-20], b"\xff" * 100, packed(bytes(K - 1)), packed(bytes(K + 4))]
    bad += [packed(bytes(10**7)), packed(bytes([1]) * K, math.inf), packed(b"\x80" * K)]
    bad += [packed(b"\x80" + bytes(K - 1) + np.float32(math.nan).tobytes())]
    for message in bad:
        with pytest.raises(BadCoefficients):
            link.decode(message)
    for message in (bytes(4 * K - 4), np.full(K, np.nan, "<f4").tobytes(), bytes(4 * K + 1)):
        with pytest.raises(BadCoefficients):
            Downlink(K).decode(message)
    with pytest.raises(BadCoefficients, match="lower learning_rate"):
        link.encode(torch.full((K,), math.inf))


@pytest.mark.parametrize("bits", [0, 8, 16, -4])
def test_other_numbers_of_bits_are_refused(bits: int) -> None:
    with pytest.raises(PlanError, match="downlink_bits must be"):
        small_plan(downlink_bits=bits)


def test_results_and_plans_count_what_clients_are_sent(tmp_path: Path) -> None:
    plain = train(small_plan(), tmp_path / "plain")["downlink"]
    assert plain["bytes"] == plain["fp32_bytes"] == plain["total_bytes"]
    assert plain["bits_per_coefficient"] == 32
    coded = train(small_plan(downlink_bits=4), tmp_path / "coded")["downlink"]
    assert coded["messages"] == plain["messages"]
    assert 0 < coded["bytes"] <= plain["bytes"] / 8
    assert coded["bits_per_coefficient"] == 8 * coded["bytes"] / (coded["messages"] * 800)
    said = outline(small_plan(downlink_bits=4))
    # The first of four rounds starts at the reference: zeros, which take next to nothing.
    assert said["downlink_bytes"] * 0.75 == pytest.approx(coded["bytes"], rel=0.02)


def test_what_is_sent_once_is_counted_beside() -> None:
    said = outline(small_plan(context="predictions", context_round=2, downlink_bits=4))
    plan = said["plan"]
    assert said["downlink_once_bytes"] == 4 * plan["participants"] * said["coefficients"]
