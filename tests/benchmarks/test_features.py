"""What a round on features is made of is measured on rounds that are made."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import features


def test_parts_of_a_round_are_measured_on_one_core_and_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    found = features.parts(turns=1, clients=3, records=16)
    assert list(found) == ["1 cores", "2 cores"]
    for figures in found.values():
        ratio = figures["gradients_ms"] / figures["products_ms"]
        assert figures["gradients_over_products"] == pytest.approx(ratio)
        assert figures["round_ms"] > 0 < figures["messages_ms"]
    assert torch.get_num_threads() == threads


def test_a_point_has_own_parts_of_those_who_have_released_and_of_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    class Turns:
        def wait(self) -> None: ...
        def done(self) -> None: ...
        def say(self, words: str) -> None:
            said.append(words)

    threads = torch.get_num_threads()
    monkeypatch.setattr(features, "Turns", Turns)
    monkeypatch.setattr(features, "CLIENTS", 2)
    try:
        features.compete("enrolled", 9, rounds=2, cores=1)
    finally:
        torch.set_num_threads(threads)
    assert json.loads(said[0]) == {"own_parts": 4}
