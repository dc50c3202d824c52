"""The real presets, as `make audit` plays them: minutes, with fresh noise each time.

A bound at 95 % is above the truth in one of twenty audits at most, so it is held against ε with the
confidence of an alarm: false once in 10,000 audits.
"""

from __future__ import annotations

import pytest

from sottovoce.audit import bounds
from sottovoce.audit.auditing import opened
from sottovoce.audit.guessing import guess_canaries, guess_pair
from sottovoce.audit.pair import worst_pair
from sottovoce.audit.ratios import ratios
from sottovoce.plan import Plan

pytestmark = pytest.mark.slow

# 60 % of ε = 8 is certified unless more than 102 of 400 guesses are wrong, where 81 ± 8 are expected: 99.5 %.
RUNS = 400
# With noise at the server a channel only carries releases there; this one takes a fifth of the time.
PRESETS = {"best": {}, "central": {"channel": "direct"}}


def plan(preset: str, **keys: str) -> Plan:
    return Plan.load(overrides={"dataset": "mnist-small", "preset": preset, "epsilon": 8.0, **keys})


@pytest.mark.parametrize("preset", PRESETS)
def test_the_worst_pair_of_a_preset_certifies_at_least_60_percent_of_epsilon_8(preset: str) -> None:
    found = guess_pair(worst_pair(*opened(plan(preset, **PRESETS[preset]))), RUNS)
    assert found["faults"] == []
    assert found["epsilon"] == pytest.approx(8.0)
    assert found["epsilon_lower"] >= 0.6 * 8
    assert bounds.least_mu(found["wrong"], RUNS, 1 - bounds.FALSE_ALARM) <= found["mu"]


@pytest.mark.parametrize("preset", ["best", "central", "shared"])
def test_no_record_moves_a_release_of_a_preset_further_than_is_charged(preset: str) -> None:
    found = ratios(plan(preset), families=5)
    assert found.faults == []
    assert max(row["ratio"] for row in found.releases) <= 1 + 1e-9


@pytest.mark.parametrize("preset", ["best", "central"])
def test_one_run_with_canaries_certifies_something(preset: str) -> None:
    found = guess_canaries(*opened(plan(preset)))
    assert found["faults"] == []
    assert 0.5 < found["epsilon_lower"] <= 8
