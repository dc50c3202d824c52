"""A run with features and class shares takes in future clients without labels, here and over the network."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from sottovoce import data
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import personalize
from sottovoce.federation.onboarding.remote import onboard
from sottovoce.federation.onboarding.service import create_service
from sottovoce.plan import Plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.training import train
from tests.run.test_folder import sites

from .live import live

BEST = {"preset": "best", "rounds": 3, "feature_size": 64, "coefficients": 650, "channel": "direct"}


def test_a_future_client_without_labels_gets_its_prior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    digits = data.load("mnist-small")
    few = replace(digits, x=digits.x[:800], y=digits.y[:800])
    plan = Plan.load(overrides={**BEST, "participants": 3, "future_clients": 1, "records_per_client": 200})
    result = train(plan, tmp_path / "run", dataset=few)
    assert result["features"] == "scattering"
    for name in ("home", "away"):
        np.savez(tmp_path / f"{name}.npz", x=digits.x[:200].numpy())
    at_home = personalize(
        tmp_path / "run", tmp_path / "home.npz", tmp_path / "home", terms=Terms(epsilon=9.0)
    )
    assert at_home["uses_labels"] is False
    assert at_home["epsilon"] == pytest.approx(8.0)
    with live(create_service(tmp_path / "run", open_to_all=True)) as url:
        over_http = onboard(url, tmp_path / "away.npz", tmp_path / "away", terms=Terms(epsilon=9.0))
    assert over_http["epsilon"] == at_home["epsilon"]
    for name in ("home", "away"):
        assert load_file(tmp_path / name)["1.weight"].shape == (10, 64)


@pytest.mark.parametrize(
    ("task", "preset"), [("classes", {}), ("labels", {}), ("number", {}), ("classes", {"preset": "shared"})]
)
def test_a_site_joins_a_run_of_tables_with_the_default_preset_over_the_network_or_one_of_shared_noise(
    tmp_path: Path, task: str, preset: dict[str, str]
) -> None:
    folder = sites(tmp_path / "sites", task)
    plan = Plan.load(overrides={"dataset": str(folder), "rounds": 3, "epsilon": 4, **preset})
    train(plan, tmp_path / "run")
    (tmp_path / "east").mkdir()
    mine = Path(shutil.copy(folder / "west.csv", tmp_path / "east" / "east.csv"))
    with live(create_service(tmp_path / "run", open_to_all=True)) as url:
        joined = onboard(url, mine, tmp_path / "east" / "model.safetensors")
    again = personalize(tmp_path / "run", mine, tmp_path / "east" / "here.safetensors")
    assert joined["epsilon"] == again["epsilon"]
    over_the_network, here = (
        load_file(tmp_path / "east" / f"{name}.safetensors") for name in ("model", "here")
    )
    assert all(over_the_network[name].equal(here[name]) for name in here)


def test_a_map_of_ones_own_is_named_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    folder, own = sites(tmp_path / "sites"), "tests.cli.test_newcomers:pairs"
    given = {
        "dataset": str(folder),
        "rounds": 2,
        "epsilon": 4,
        "channel": "direct",
        "features": own,
        "feature_size": 0,
    }
    train(Plan.load(overrides=given), tmp_path / "run")
    (tmp_path / "east").mkdir()
    mine = Path(shutil.copy(folder / "west.csv", tmp_path / "east" / "east.csv"))
    with pytest.raises(SottovoceError, match="no built-in map"):
        create_service(tmp_path / "run", open_to_all=True)
    with live(create_service(tmp_path / "run", open_to_all=True, features=own)) as url:
        with pytest.raises(SottovoceError, match="no built-in map"):
            onboard(url, mine, tmp_path / "east" / "model.safetensors")
        joined = onboard(url, mine, tmp_path / "east" / "model.safetensors", features=own)
    assert joined["accuracy"] is not None
