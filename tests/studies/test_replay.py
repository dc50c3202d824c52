"""A replay scales the steps of a direct run by the gains that another run has recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from studies.replay import ReplayServer, digest, recorded_gains

from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from tests.small import small_plan
from tests.training.test_server import releases, server


def test_gains_come_from_a_run(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(json.dumps({"gain": g}) + "\n" for g in (1.5, 2.5)))
    assert recorded_gains(path, 2) == [1.5, 2.5]
    with pytest.raises(PlanError, match="fewer"):
        recorded_gains(path, 3)
    path.write_text("nothing")
    with pytest.raises(PlanError, match=r"not the rounds\.jsonl"):
        recorded_gains(path, 1)


def test_gains_scale_the_step_of_their_round() -> None:
    plain, drawn = server(method="direct"), server(method="direct").blueprint
    replayed = ReplayServer(drawn, gains=[3.0] * 4)
    given = releases(plain, 0)
    assert replayed.receive_round(given) == pytest.approx(3.0 * (plain.receive_round(given) or 0.0))
    assert torch.allclose(replayed.coefficients([0]), 3.0 * plain.coefficients([0]), rtol=1e-5)


def test_a_replay_that_is_not_seeded_is_refused() -> None:
    with pytest.raises(SottovoceError, match="seeded=true"):
        ReplayServer(server(method="direct", seeded=False).blueprint, gains=[1.0] * 4)


def test_a_replay_is_known_by_its_plan_and_by_the_run_that_it_names() -> None:
    plan = small_plan(method="direct")
    assert len({plan.digest(), digest(plan, "one"), digest(plan, "other")}) == 3
    # What a plan of version 0.1 with method=replay and this file had.
    assert digest(Plan(method="direct", context="public", seeded=True), "source") == "28ca9f5134bc5654"
