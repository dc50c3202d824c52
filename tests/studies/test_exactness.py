"""Negative controls: channels broken on purpose, which the evidence must catch beyond doubt.

Each test breaks one step of a channel and asks for a z-score above 8; the intact channel stays below 5 in
test_exactness.py on the same statistics.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.channel import lattice as lattices
from sottovoce.channel import lrsuq, polar
from sottovoce.channel.polar import states
from sottovoce.channel.polar.states import RAW, States, chosen_words, uniforms
from tests.channel.cases import EXACT, opened, worst

CAUGHT = 8.0


def _worst(name: str, kind: str, size: int, messages: int) -> float:
    return abs(worst(opened(name, size), kind, messages)[1])


def _first_candidates(v, law, shared, private):  # type: ignore[no-untyped-def]
    index = np.zeros(law.edges.size - 1, np.int64)
    return States(uniforms(chosen_words(shared, law, index)), index, np.zeros(law.size, np.uint8))


def test_skipping_the_selection_of_states_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "select", _first_candidates)
    assert _worst("polar", "clip bound", 64, 2500) > CAUGHT


def test_truncating_candidates_without_escape_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    screened = states._screen_private

    def nothing_goes_raw(*arguments):  # type: ignore[no-untyped-def]
        screened(*arguments)
        outlier, index = arguments[-2:]
        outlier[:] = 0
        index[index == RAW] = 0

    monkeypatch.setattr(states, "_screen_private", nothing_goes_raw)
    monkeypatch.setattr(polar, "scale_number", lambda s2: 60)
    assert _worst("polar", "clip bound", 64, 800) > CAUGHT


def test_deciding_bits_by_their_dither_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = polar.cancel

    def unbiased(bias, *rest):  # type: ignore[no-untyped-def]
        honest(np.zeros_like(bias), *rest)

    monkeypatch.setattr(polar, "cancel", unbiased)
    assert _worst("polar", "typical", 16384, 6) > CAUGHT


def test_losing_every_tenth_surprise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = polar.take_plane

    def forgetful(state, data, bits, *rest):  # type: ignore[no-untyped-def]
        sound = honest(state, data, bits, *rest)
        bits[np.flatnonzero(bits)[::10]] = 0
        return sound

    monkeypatch.setattr(polar, "take_plane", forgetful)
    assert _worst("polar", "clip bound", 16384, 12) > CAUGHT


@pytest.mark.parametrize("name", EXACT)
def test_half_the_noise_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    channel = opened(name, 4096)
    honest = channel.decode
    monkeypatch.setattr(channel, "decode", lambda *a, **k: 0.5 * honest(*a, **k))
    assert abs(worst(channel, "zero", 3)[1]) > CAUGHT


@pytest.mark.parametrize("lattice", ["Z4", "D4", "E8"])
def test_balls_two_percent_too_wide_are_caught(monkeypatch: pytest.MonkeyPatch, lattice: str) -> None:
    honest = lattices._radii

    def widened(words: NDArray[np.uint64], blocks: int) -> NDArray[np.float64]:
        return honest(words, blocks) * 1.02

    monkeypatch.setattr(lattices, "_radii", widened)
    assert _worst(f"lrsuq/{lattice}", "typical", 16384, 12) > CAUGHT


@pytest.mark.parametrize("lattice", ["Z4", "D4", "E8"])
def test_radii_of_too_few_degrees_of_freedom_are_caught(
    monkeypatch: pytest.MonkeyPatch, lattice: str
) -> None:
    honest = lattices._radii

    def narrow(words: NDArray[np.uint64], blocks: int) -> NDArray[np.float64]:
        return honest(words.reshape(blocks, -1)[:, 1:].ravel(), blocks)

    monkeypatch.setattr(lattices, "_radii", narrow)
    assert _worst(f"lrsuq/{lattice}", "typical", 16384, 4) > CAUGHT


def test_an_error_that_depends_on_the_statistic_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = lrsuq.in_blocks
    monkeypatch.setattr(lrsuq, "in_blocks", lambda v, dimension: honest(0.99 * v, dimension))
    assert _worst("lrsuq/Z4", "far above the noise", 16384, 12) > CAUGHT
