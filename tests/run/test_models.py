"""Everyone who trained gets their model: the one that the run evaluated, by name, without a charge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sottovoce import data
from sottovoce.data.tables.encoding import read_site
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import personalize
from sottovoce.personal import PersonalModel
from sottovoce.personal.prediction import predict, predictions
from sottovoce.plan import Plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.models import file_name, write_models
from sottovoce.run.training import train
from tests.data.hospitals import folder

HEAD = "age,pressure,sex,diagnosis\n"
FEW: dict[str, Any] = {"preset": "best", "rounds": 3, "channel": "direct", "evaluate_every": 0}


def site(seed: int, size: int, *, target: bool = True) -> str:
    """Old patients with a high pressure are ill."""
    rng = np.random.default_rng(seed)
    age, pressure = rng.integers(20, 90, size), rng.normal(120, 20, size).round(1)
    ill = (age - 55) / 20 + (pressure - 120) / 20 + rng.normal(size=size) > 0
    rows = [
        f"{a},{p},{s}" + (f",{'malignant' if i else 'benign'}" if target else "")
        for a, p, s, i in zip(age, pressure, rng.choice(["f", "m"], size), ill, strict=True)
    ]
    return "\n".join([HEAD.strip() if target else HEAD.rpartition(",")[0], *rows]) + "\n"


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    at = folder(tmp_path_factory.mktemp("sites") / "hospitals",
                north=site(1, 200), south=site(2, 90), west=site(3, 60))  # fmt: skip
    plan = Plan.load(overrides={**FEW, "dataset": str(at), "future_clients": "west", "epsilon": 4})
    return at, at.parent / "run", train(plan, at.parent / "run")


def test_every_participant_gets_the_model_that_the_run_evaluated(
    hospitals: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    at, run, result = hospitals
    ledger = (at / "ledger.sqlite").read_bytes()
    written = write_models(run, tmp_path / "models")
    assert [Path(row["model"]).name for row in written] == ["north.safetensors", "south.safetensors"]
    assert (at / "ledger.sqlite").read_bytes() == ledger  # nothing was charged
    records = data.load(at)
    clients = data.divide(records, Plan.load(run / "plan.toml"))
    for i, row in enumerate(written):
        model = PersonalModel.read(Path(row["model"]))
        assert (model.origin.client, model.origin.noise) == (row["client"], "client")
        assert model.origin.epsilon == pytest.approx(result["epsilon"]["per_client"][row["client"]])
        held_out = clients.participants[i].held_out
        hits = (model.outputs(held_out.x).argmax(dim=1) == held_out.y).double().mean()
        assert 100 * float(hits) == pytest.approx(result["accuracy"]["seen_per_client"][row["client"]])
    north, south = (load_file(row["model"]) for row in written)
    assert not torch.equal(north["1.weight"], south["1.weight"])  # each has a part of its own


def test_one_participant_is_chosen_by_name(
    hospitals: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, run, _ = hospitals
    seen: list[tuple[str, int]] = []
    [row] = write_models(run, tmp_path, clients=["south"], progress=lambda *heard: seen.append(heard))
    assert (row["client"], seen) == ("south", [("south", 1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["south.card.md", "south.safetensors"]
    with pytest.raises(SottovoceError, match="did you mean 'south'"):
        write_models(run, tmp_path, clients=["soth"])
    with pytest.raises(SottovoceError, match="no result"):
        write_models(tmp_path, tmp_path)


def test_no_home_model_takes_the_name_of_anothers_published_one(tmp_path: Path) -> None:
    """Such a file would be handed on as that client's, and is made of records without noise."""
    at = folder(tmp_path / "hospitals", north=site(1, 40), **{"north.home.csv": site(2, 40)})
    train(
        Plan.load(overrides={**FEW, "rounds": 1, "future_clients": 0, "dataset": str(at)}), tmp_path / "run"
    )
    for finish in (False, True):
        with pytest.raises(SottovoceError, match="the home model of 'north' would be another participant's"):
            write_models(tmp_path / "run", tmp_path / "models", clients=["north"], finish=finish)
    assert not (tmp_path / "models").exists()


def test_a_future_client_with_a_table_gets_a_model_that_predicts(
    hospitals: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, run, result = hospitals
    for name, target in (("west", True), ("east", False)):
        (tmp_path / f"{name}.csv").write_text(site(3, 60, target=target))
        found = personalize(run, tmp_path / f"{name}.csv", tmp_path / f"{name}.safetensors")
        model = PersonalModel.read(tmp_path / f"{name}.safetensors")
        assert model.origin.client == name
        assert predict(model, tmp_path / f"{name}.csv", tmp_path / "out.csv").records == 60
        assert found["epsilon"] == 0  # a public context releases nothing
        assert (found["accuracy"] is None) == (not target)
        if target:  # of all its records, where the run held the same ones out
            assert found["accuracy"] == pytest.approx(result["accuracy"]["future_per_client"]["west"])


def test_a_future_client_of_a_table_pays_for_its_context(tmp_path: Path) -> None:
    at = folder(tmp_path / "hospitals", north=site(1, 200), south=site(2, 90), west=site(3, 60))
    shares = {"context": "shares", "context_share": 0.1, "prior": "context", "context_records": 40}
    train(Plan.load(overrides={**FEW, **shares, "dataset": str(at)}), tmp_path / "run")
    (tmp_path / "east.csv").write_text(site(4, 120, target=False))
    terms = Terms(epsilon=9.0)
    found = personalize(tmp_path / "run", tmp_path / "east.csv", tmp_path / "east.safetensors", terms=terms)
    assert 0 < found["epsilon"] <= 9
    assert found["epsilon_total"] == found["epsilon"]
    model = PersonalModel.read(tmp_path / "east.safetensors")
    assert model.origin.epsilon == pytest.approx(found["epsilon_total"])
    [block, *_] = predictions(model, tmp_path / "east.csv")
    agreed = data.Description.load(at / "records.toml")
    x = torch.from_numpy(read_site(tmp_path / "east.csv", agreed, target=False).x)
    assert np.allclose(block.numbers, torch.softmax(model.outputs(model.facts.normalize(x)), 1), atol=1e-5)


def test_features_and_a_class_prior_are_in_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures through the file alone give the accuracies of the run, whose priors sit on the last bias."""
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    few = {"participants": 3, "future_clients": 1, "records_per_client": 60, "seeded": True}
    plan = Plan.load(overrides={**FEW, **few, "feature_size": 64, "coefficients": 650})
    digits = data.load("mnist-small")
    pictures = replace(digits, x=digits.x[:300], y=digits.y[:300])
    result = train(plan, tmp_path / "run", dataset=pictures)
    division = data.division(pictures, plan)
    seeds = data.split_seeds(len(division), plan.seed)
    biases = []
    for i, row in enumerate(write_models(tmp_path / "run", tmp_path / "models")):
        model = PersonalModel.read(Path(row["model"]))
        assert model.origin.seeded
        kept = data.split_participant(
            data.Records(pictures.x[division[i]], pictures.y[division[i]]), 0, seeds[i]
        ).held_out
        np.savez(tmp_path / "held-out.npz", x=kept.x.numpy())
        [block] = predictions(model, tmp_path / "held-out.npz")
        hits = (block.numbers.argmax(axis=1) == kept.y.numpy()).mean()
        assert 100 * hits == pytest.approx(result["accuracy"]["seen_per_client"][row["client"]])
        biases.append(load_file(row["model"])["1.bias"])
    assert not torch.allclose(biases[0], biases[1], atol=0.1)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc", ".hidden", "a\nb", "a/b", ""])
def test_a_client_cannot_name_a_file_elsewhere(name: str) -> None:
    assert Path(file_name(name)).name == file_name(name)
    assert "\n" not in file_name(name)
