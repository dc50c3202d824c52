"""Each release has noise of its own; what is drawn once, or for all, or again in another run, is said.

Runs are seeded, so these tests find the same every time; with fresh noise one audit in 10,000 raises a false
alarm of each sort.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sottovoce.audit.guessing import guess_pair
from sottovoce.audit.noise import Common, Noise, compared, independence
from sottovoce.audit.pair import worst_pair
from sottovoce.channel import direct
from sottovoce.channel.wire import Stream
from sottovoce.release import kind

from .test_guessing import PLANS
from .toys import BEST, CENTRAL, SHARED, quick, toy


def drawn_for(monkeypatch: pytest.MonkeyPatch, part: Callable[[Stream], Any]) -> None:
    """Noise is drawn anew only where this part of a release's name is another."""
    seeded = kind._seeded
    monkeypatch.setattr(kind, "_seeded", lambda seed, stream: seeded(seed, part(stream)))


def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's noise is that of its first round: whoever subtracts two releases has none."""
    drawn_for(monkeypatch, lambda stream: (*stream[:2], "", 0))


def drawn_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients add the same noise in a round."""
    drawn_for(monkeypatch, lambda stream: (stream[0], "", *stream[2:]))


def drawn_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run has the noise of an earlier one."""
    drawn_for(monkeypatch, lambda stream: ("", *stream[1:]))


def taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of every second release is that of the one before, with the other sign."""
    noised, last = direct._noised, list[np.ndarray]()

    def in_pairs(channel: Any, u: np.ndarray, private: Any) -> np.ndarray:
        if last:
            return np.asarray(u - last.pop())
        last.append(noised(channel, u, private) - u)
        return np.asarray(u + last[-1])

    monkeypatch.setattr(direct, "_noised", in_pairs)


@pytest.mark.parametrize("plan", PLANS)
def test_the_noise_of_releases_has_nothing_in_common(tmp_path: Path, plan: str) -> None:
    found = independence(*toy(tmp_path, **quick(PLANS[plan])))
    assert found["faults"] == []
    apart, clients = {"rounds", "clients", "runs"}, 2
    if plan == "central":  # the server draws, for the sum of all
        apart, clients = apart - {"clients"}, 1
    assert found["common"].keys() == apart
    releases = (
        2 * clients * (5 if plan == "centred" else 6)
    )  # in two runs: three rounds, and what is made once
    assert found["pairs"] == releases * (releases - 1) // 2


@pytest.mark.parametrize("plan", [BEST, CENTRAL, SHARED], ids=["client", "server", "shared"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            drawn_once,
            r"the gradient of round \d of (\d) and the gradient of round \d of \1 have noise in common",
        ),
        (drawn_for_all, r"of round (\d) of 0 and the gradient of round \1 of 1 have noise in common"),
        (drawn_in_every_run, r"in another run have noise in common, a correlation of \+"),
    ],
)
def test_noise_that_is_not_drawn_for_each_release_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: dict[str, Any],
    fault: Callable[[pytest.MonkeyPatch], None],
    said: str,
) -> None:
    opened = toy(tmp_path, **quick(plan))
    fault(monkeypatch)
    found = independence(*opened)
    if fault is drawn_for_all and plan is CENTRAL:  # one server draws for the sum of all
        assert found["faults"] == []
    else:
        assert any(re.search(said, line) for line in found["faults"]), found["faults"]


@pytest.mark.parametrize(
    ("fault", "keys", "runs"),
    [(drawn_once, {"epsilon": 40.0, "rounds": 6}, 30), (taken_back, {"rounds": 2}, 60)],
    ids=["drawn once", "taken back"],
)
def test_guesses_are_as_good_as_the_noise_that_was_measured_makes_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    keys: dict[str, Any],
    runs: int,
) -> None:
    """The scale of each noise is right. That they add up, or cancel, shows in guesses."""
    alone = {"context": "public", "calibration": 0.0, "channel": "direct", "seeded": True, "seed": 5}
    pair = worst_pair(*toy(tmp_path, **alone, **keys))
    fault(monkeypatch)
    found = guess_pair(pair, runs)
    assert found["noise"]["gradient"] == pytest.approx(1.0, abs=0.15)
    assert any(line.endswith("if each release has its own") for line in found["faults"]), found["faults"]
    # 0.07 of 30 would be, and 12 of 60.
    assert found["wrong"] > 2 if fault is drawn_once else found["wrong"] == 0


def test_correlations_of_independent_noise_are_as_likely_as_is_said() -> None:
    rng = np.random.default_rng(0)
    for numbers in (2, 3, 12, 400):
        x, y = rng.normal(size=(2, 2000, numbers))
        each = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        one = Noise(0, "a", "gradient of round 1", x[0])
        chances = [Common(one, one, float(common), numbers).chance for common in each]
        assert stats.kstest(chances, "uniform").pvalue > 1e-6


def test_a_generator_that_starts_anew_is_found_in_releases_of_other_lengths() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=300)
    first, other = Noise(0, "a", "context", 3.0 * numbers[:40]), Noise(0, "a", "gradient of round 1", numbers)
    fresh = Noise(0, "a", "gradient of round 2", rng.normal(size=300))
    found = compared([first, other, fresh])
    assert found["common"]["rounds"] == pytest.approx(1.0)
    assert found["faults"][0].startswith(
        "the context of a and the gradient of round 1 of a have noise in common"
    )
    assert compared([first, fresh])["faults"] == []
    assert compared([first])["faults"] == []
