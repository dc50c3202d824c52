"""At ε = 8 the worst pair is guessed nearly as well as is promised, and never better; faults are noticed.

Runs are seeded, so these tests find the same every time, and little depends on the seed: of 400 guesses
81 ± 8 are wrong, and 60 % of ε is certified up to 102, which one seed in 220 exceeds. A bound at 95 % is
above ε with one seed in twenty, so it is held against ε with the confidence of an alarm: one in 10,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.audit import bounds, game
from sottovoce.audit.game import play
from sottovoce.audit.guessing import Canaries, guess_canaries, guess_pair
from sottovoce.audit.pair import worst_pair
from sottovoce.channel import direct
from sottovoce.channel.direct import draw
from sottovoce.channel.wire import PrivateRandomness
from sottovoce.privacy.ledger import Charge, Ledger
from sottovoce.release.kind import Release
from sottovoce.release.places import shared
from sottovoce.training import server

from .toys import BEST, CENTRAL, CENTRED, SHARED, quick, toy

PLANS = {"best": BEST, "central": CENTRAL, "shared": SHARED, "centred": CENTRED}
RUNS, FEW = 400, 60


@pytest.mark.parametrize(
    "plan",
    ["best", "centred", *(pytest.param(plan, marks=pytest.mark.slow) for plan in ("central", "shared"))],
)
def test_the_worst_pair_certifies_at_least_60_and_never_above_100_percent_of_epsilon_8(
    tmp_path: Path, plan: str
) -> None:
    blueprint, federation = toy(tmp_path, **{**quick(PLANS[plan]), "rounds": 2})
    found = guess_pair(worst_pair(blueprint, federation), RUNS)
    assert found["faults"] == []
    assert found["epsilon"] == pytest.approx(8.0)
    assert found["epsilon_lower"] >= 0.6 * 8
    assert bounds.least_mu(found["wrong"], RUNS, 1 - bounds.FALSE_ALARM) <= found["mu"]
    assert found["epsilon_counted"] < found["epsilon_lower"]
    # 12,000 normals: five standard deviations are 3.2 %.
    assert found["noise"]["gradient"] == pytest.approx(1.0, abs=0.04)


def halved_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel of a client adds half of what it says."""
    noised = direct._noised
    monkeypatch.setattr(direct, "_noised", lambda *given: (given[1] + noised(*given)) / 2)


def halved_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server adds half of what it says to a sum."""
    noised = server.noised_sum
    monkeypatch.setattr(server, "noised_sum", lambda *given: noised(*given[:-1], given[-1] / 2))


def narrowed_shares(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """Every client's share has so much of its noise."""

    def narrow(centres: np.ndarray, private: PrivateRandomness) -> np.ndarray:
        return np.rint(centres + scale * (draw(centres, private) - centres)).astype(np.int64)

    for module in (shared, game):
        monkeypatch.setattr(module, "draw", narrow)


def halved_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """τ is half of what the grid is made for."""
    narrowed_shares(monkeypatch, 0.5)


def shares_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take for granted that all three come, where two shares must be enough."""
    narrowed_shares(monkeypatch, math.sqrt(2 / 3))


def no_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are as long as they come."""
    import sottovoce.gradients as gradients
    import sottovoce.release.blueprint as release_blueprint

    clipped = gradients.clipped_mean
    monkeypatch.setattr(
        release_blueprint,
        "clipped_mean",
        lambda *given, clip, **more: clipped(*given, clip=100 * clip, **more),
    )


def forgotten_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger hears nothing of gradients."""
    commit = Ledger.commit_many
    monkeypatch.setattr(
        Ledger,
        "commit_many",
        lambda self, releases, budget: commit(self, [r for r in releases if r[0].kind != "gradient"], budget),
    )


def cheap_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger hears of twice the noise."""
    charge = Release.charge

    def cheap(self: Release, *given: Any) -> Charge:
        told = charge(self, *given)
        return Charge(
            told.run, told.client, told.kind, told.round, told.sensitivity, 2 * told.sigma, told.place
        )

    monkeypatch.setattr(Release, "charge", cheap)


FAULTS = [
    (BEST, halved_noise, "the noise of a gradient has 0.", 5),
    (CENTRAL, halved_sum, "the noise of a gradient has 0.", 5),
    (SHARED, halved_shares, "the noise of a gradient has 0.", 5),
    (SHARED, shares_of_all, "the noise of a gradient has 0.8", 30),
    (BEST, no_clipping, "a gradient moved", FEW),
    (CENTRAL, no_clipping, "a gradient moved", FEW),
    (SHARED, no_clipping, "a gradient moved", FEW),
    (SHARED, forgotten_charge, "the gradient of round 1 left without a charge", 5),
    (SHARED, cheap_charge, "the noise of a gradient has 0.", 5),
    (BEST, forgotten_charge, "the gradient of round 1 left without a charge", 5),
    (CENTRAL, forgotten_charge, "the gradient of round 1 left without a charge", 5),
    (BEST, cheap_charge, "the noise of a gradient has 0.", 5),
    (CENTRED, halved_noise, "the noise of a centre has 0.", 40),
]
"""The last: how many runs are played. A few guesses are enough for an alarm where records are not clipped."""


@pytest.mark.parametrize(
    ("plan", "fault", "said", "runs"),
    FAULTS,
    ids=[f"{fault.__name__}-{plan.get('preset', 'best')}" for plan, fault, *_ in FAULTS],
)
def test_a_fault_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: dict[str, Any],
    fault: Callable[[pytest.MonkeyPatch], None],
    said: str,
    runs: int,
) -> None:
    pair = worst_pair(*toy(tmp_path, **{**quick(plan), "rounds": 2}))
    fault(monkeypatch)
    found = guess_pair(pair, runs)
    assert any(said in line for line in found["faults"]), found["faults"]
    if runs == FEW:
        assert any("was guessed right" in line for line in found["faults"]), (found["faults"], found["wrong"])


def test_the_curve_runs_from_all_negative_to_all_positive(tmp_path: Path) -> None:
    found = guess_pair(worst_pair(*toy(tmp_path, **{**BEST, "channel": "direct"})), 30)
    curve = np.array(found["curve"])
    assert curve[0].tolist() == [0.0, 1.0]
    assert curve[-1].tolist() == [1.0, 0.0]
    assert np.all(np.diff(curve[:, 0]) >= 0)
    assert np.all(np.diff(curve[:, 1]) <= 0)


def test_fresh_noise_is_drawn_unless_the_plan_is_seeded(tmp_path: Path) -> None:
    seeded = worst_pair(*toy(tmp_path, **{**BEST, "channel": "direct"}))
    again = worst_pair(*toy(tmp_path, **{**BEST, "channel": "direct"}))
    fresh = worst_pair(*toy(tmp_path, **{**BEST, "channel": "direct", "seeded": False}))
    assert guess_pair(seeded, 2) == guess_pair(again, 2)
    noises = [guess_pair(fresh, 2)["noise"] for _ in range(2)]
    assert noises[0] != noises[1]


@pytest.mark.parametrize("plan", PLANS)
def test_one_run_with_canaries_certifies_something_and_not_too_much(tmp_path: Path, plan: str) -> None:
    keys = {**quick(PLANS[plan]), "epsilon": 40.0}
    found = guess_canaries(*toy(tmp_path, **keys))
    # Records have four coordinates, of which one tells the classes apart where they are of two.
    assert found["canaries"] == (4 if plan == "centred" else 3)
    assert found["faults"] == []
    assert 0 <= found["epsilon_lower"] <= found["epsilon"]


@pytest.mark.parametrize("plan", ["best", "centred"])
def test_each_canary_shows_in_its_own_coefficients_and_in_the_centre(tmp_path: Path, plan: str) -> None:
    blueprint, federation = toy(tmp_path, **{**quick(PLANS[plan]), "epsilon": 1e5})
    canaries = Canaries.of(blueprint, federation)
    for number in range(2):
        coins = [bool((number + i) % 3) for i in range(canaries.count)]
        seen = play(canaries.pair, number, canaries.mixed(np.array(coins)))
        assert (canaries.evidence(seen) > 0).tolist() == coins
        for kind in {"gradient", "centre"} & seen.numbers.keys():
            alone = {other: told * (kind == other) for other, told in seen.numbers.items()}
            assert (canaries.evidence(replace(seen, numbers=alone)) > 0).tolist() == coins, kind
