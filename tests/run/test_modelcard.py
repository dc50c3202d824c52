"""A card says what its model's file says, and no figure of records that must stay at home."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.data.tables.schema import Description
from sottovoce.personal import PersonalModel, personal_model
from sottovoce.personal.card import card_file, model_card
from sottovoce.plan import Plan
from sottovoce.run.models import write_model, write_models
from sottovoce.run.training import train
from tests.run.test_folder import sites
from tests.small import ILL, built

yaml = pytest.importorskip("yaml")


def model(client: str = "north", **plan: Any) -> bytes:
    chosen = {"preset": "tuned", "model": "linear", "method": "direct", "basis": "unstructured"}
    chosen |= {"coefficients": 0, "gradient_records": 50}
    facts = Description.parse(ILL.replace("[target]", 'unit = "patient"\n[target]', 1)).facts()
    blueprint = built(Plan.load(overrides={**chosen, **plan}), facts)
    zero = torch.zeros(blueprint.coefficients)
    return personal_model(blueprint, zero, run="r1", client=client, epsilon=3.5)


def head(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


def test_the_head_says_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "north.safetensors"
    write_model(path, model())
    card = card_file(path)
    assert card.name == "north.card.md"
    assert stat.S_IMODE(card.stat().st_mode) == stat.S_IMODE(path.stat().st_mode)
    said, origin = head(card.read_text(encoding="utf-8")), PersonalModel.read(path).origin
    for key in ("client", "run", "epsilon", "delta", "accounting", "noise", "seeded", "sottovoce"):
        assert said[key] == getattr(origin, key), key
    assert said["classes"] == ["no", "yes"]
    assert said["inputs"] == ["age", "sex"]
    assert said["unit"] == "patient"
    assert "metrics" not in said
    assert "ε = 3.5 at δ = 1e-05 for each patient" in card.read_text(encoding="utf-8")


def test_a_name_cannot_change_the_head() -> None:
    card = model_card(model('north"\nepsilon: 0.1 #'.replace("\n", " ")))
    assert head(card)["client"] == 'north" epsilon: 0.1 #'
    assert head(card)["epsilon"] == 3.5
    assert "# The model of &lt;img src=x&gt;" in model_card(model("<img src=x>"))


def test_who_may_see_it_follows_from_the_noise() -> None:
    assert "Anybody" in model_card(model())
    assert "at each client" in model_card(model())
    assert "by the server" in model_card(model(noise="server", weighting=1.0))
    for unprotected in (model(seeded=True), model(seeded=True, epsilon=float("inf"), channel="direct")):
        assert "Anybody" not in model_card(unprotected)
        assert "Whoever may see the records" in model_card(unprotected)


def test_metrics_are_stated_only_where_they_may_be_shown(tmp_path: Path) -> None:
    few = {"rounds": 2, "epsilon": 4, "channel": "direct"}
    private = Plan.load(overrides={**few, "dataset": str(sites(tmp_path / "sites"))})
    result = train(private, tmp_path / "run")
    name = next(iter(result["accuracy"]["seen_per_client"]))
    write_models(tmp_path / "run", tmp_path / "models")
    card = (tmp_path / "models" / f"{name}.card.md").read_text(encoding="utf-8")
    assert "metrics" not in head(card)
    assert "no ε covers them" in card
    write_models(tmp_path / "run", tmp_path / "stated", metrics=True)
    card = (tmp_path / "stated" / f"{name}.card.md").read_text(encoding="utf-8")
    accuracy = result["metrics"]["per_client"][name]["accuracy"]
    assert head(card)["metrics"]["accuracy"] == pytest.approx(accuracy, abs=1e-5)
    assert "no ε covers them" in card
