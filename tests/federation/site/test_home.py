"""A node's home model is made by a process of its own, beside the published one, for its owner alone."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from sottovoce.federation.site import home as module
from sottovoce.federation.site.home import begin_to_finish
from sottovoce.personal import PersonalModel
from sottovoce.plan import Plan
from sottovoce.run.models import write_models
from sottovoce.run.training import train
from tests.run.test_folder import sites


def test_home_models_of_clients_that_share_a_folder_are_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(module.subprocess, "Popen", lambda command, **kept: begun.append(command))
    for client in ("", "north.", "personal.", "home."):
        published = tmp_path / f"{client}personal.safetensors"
        assert "home.log" in begin_to_finish(published, Path("mine.csv"), Plan(model="linear"))
    homes = [Path(command[-1]).name for command in begun]
    assert homes == [f"{client}home.safetensors" for client in ("", "north.", "personal.", "home.")]


def test_a_node_finishes_its_model_in_a_process_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    at = sites(tmp_path / "sites")
    plan = Plan.load(overrides={"dataset": str(at), "rounds": 2, "seeded": True, "channel": "direct"})
    train(plan, tmp_path / "run")
    write_models(tmp_path / "run", tmp_path, clients=["north"])
    published = (tmp_path / "north.safetensors").rename(tmp_path / "personal.safetensors")
    before, home = published.read_bytes(), tmp_path / "home.safetensors"
    begin_to_finish(published, at / "north.csv", plan)
    until = time.monotonic() + 120
    while not home.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert PersonalModel.read(home, home=True).home
    assert stat.S_IMODE(home.stat().st_mode) == stat.S_IMODE(home.with_suffix(".log").stat().st_mode) == 0o600
    assert published.read_bytes() == before
