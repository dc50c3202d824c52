"""The paper's control `Replay`: a direct run whose steps are scaled by the gains of a factorized one.

‖h_t‖² of every round is read from the other run's rounds.jsonl. Both are about the same records, and the
gains are made of releases that only the other run has charged: seeded simulations, which protect nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.release.blueprint import Blueprint
from sottovoce.training.server import Server

METHOD = "replay"
"""What tables and names of runs call it; its plan says `direct`."""


class ReplayServer(Server):
    """A server whose step of round t is gains[t − 1] times the plan's."""

    def __init__(self, blueprint: Blueprint, device: str = "cpu", *, gains: Sequence[float]) -> None:
        if not blueprint.plan.seeded:
            raise SottovoceError("a replay reuses gains of another run on the same records: set seeded=true")
        super().__init__(blueprint, device)
        self._gains = gains

    def receive_round(self, releases: Mapping[int, np.ndarray]) -> float | None:
        gain = self._gains[self.round]
        self._descent.learning_rate = self._step * gain
        effective = super().receive_round(releases)
        return None if effective is None else gain * effective


def recorded_gains(path: Path, rounds: int) -> list[float]:
    """‖h_t‖² of every round of another run."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        gains = [float(line["gain"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path} is not the rounds.jsonl of a run: {error}") from None
    if len(gains) < rounds:
        raise PlanError(f"{path} holds {len(gains)} rounds, fewer than rounds={rounds}")
    return gains


def digest(plan: Plan, source: str) -> str:
    """The fingerprint of a replay of the run called `source`, which also names it in streams.

    It is that of a plan of 0.1, in which a replay was a method.
    """
    values = {**plan.digested(), "method": METHOD, "replay_gains": f"{source}/rounds.jsonl"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
