"""The real presets, as `make audit` plays them: minutes, with fresh noise each time.

A bound at 95 % is above the truth in one of twenty audits at most, so it is held against ε with the
confidence of an alarm: false once in 10,000 audits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from sottovoce.audit import bounds
from sottovoce.audit.game import play
from sottovoce.audit.guessing import Canaries, guess_canaries, guess_pair
from sottovoce.audit.pair import worst_pair
from sottovoce.audit.sensitivity import ratios
from sottovoce.plan import Plan

from .toys import opened

pytestmark = pytest.mark.slow

# 60 % of ε = 8 is certified unless more than 157 of 600 guesses are wrong, where 121 ± 10 are expected: that
# happens once in 5,000 audits.
RUNS = 600
PRESETS = ("shared", "central", "best")


def plan(preset: str, **keys: str) -> Plan:
    return Plan.load(overrides={"dataset": "mnist-small", "preset": preset, "epsilon": 8.0, **keys})


@pytest.mark.parametrize("preset", PRESETS)
def test_the_worst_pair_of_a_preset_certifies_at_least_60_percent_of_epsilon_8(
    preset: str, record_property: Callable[[str, object], None]
) -> None:
    found = guess_pair(worst_pair(*opened(plan(preset))), RUNS)
    record_property(preset, f"{found['wrong']} of {RUNS} wrong, ε ≥ {found['epsilon_lower']:.2f}")
    assert found["faults"] == []
    assert found["epsilon"] == pytest.approx(8.0)
    assert found["epsilon_lower"] >= 0.6 * 8
    assert bounds.least_mu(found["wrong"], RUNS, 1 - bounds.FALSE_ALARM) <= found["mu"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_with_all_coefficients_has_the_noise_that_is_charged(preset: str) -> None:
    """2 runs of 40 or 100 rounds of 20,490 coefficients: five standard deviations are 0.3 % at most."""
    blueprint, federation = opened(plan(preset))
    canaries = Canaries.of(blueprint, federation)
    seen = [play(canaries.pair, number, file) for number, file in enumerate(canaries.pair.files)]
    for one in seen:
        squares, numbers = one.noise["gradient"]
        assert numbers == blueprint.plan.rounds * 20_490
        assert math.sqrt(squares / numbers) == pytest.approx(1.0, abs=0.003)
        assert one.faults == []


@pytest.mark.parametrize("preset", PRESETS)
def test_no_record_moves_a_release_of_a_preset_further_than_is_charged(preset: str) -> None:
    found = ratios(plan(preset), families=5)
    assert found.faults == []
    assert max(row["ratio"] for row in found.releases) <= 1 + 1e-9


@pytest.mark.parametrize("preset", PRESETS)
def test_one_run_with_canaries_certifies_something(preset: str) -> None:
    found = guess_canaries(*opened(plan(preset)))
    assert found["faults"] == []
    assert 0.5 < found["epsilon_lower"] <= 8
