"""A finished run gives the same models for ever, whatever a later version does.

`fixtures` holds finished runs as they were written, with the models that were made of them, what those say
of `records.csv`, and coefficients of newcomers: `unpinned` ones of version 0.2.0, which named no recipe, and
`pinned` ones of the version that first did. They are never written anew.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.models.tensors import ModelFileError, load_tensors, save_tensors
from sottovoce.personal.prediction import predict
from sottovoce.plan import recipes
from sottovoce.release import recipe as blends
from sottovoce.release.once import calibration
from sottovoce.run.directory import RunDirectory
from sottovoce.run.finished import GeneratorFile, faults, open_server
from sottovoce.run.models import write_models
from sottovoce.run.training import train
from sottovoce.training.server import RECIPE

FIXTURES = Path(__file__).with_name("fixtures")
PINNED = [FIXTURES / "pinned" / name for name in ("public", "shares")]
UNPINNED = [FIXTURES / "unpinned" / name for name in ("public", "shares")]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> recipes.Recipe:
    """A later version: it has one recipe, another one, and other ways to go by it."""
    usual = recipes.V0_2
    changed = replace(usual, version="0.9", drift=1.0, caution=3.0, smoothing=0.3, largest_count=2)
    changed = replace(changed, calibrating=replace(usual.calibrating, most_shift=0.01, misfit=0.5))
    monkeypatch.setattr(recipes, "RECIPES", {changed.name: changed})
    monkeypatch.setattr(recipes, "CURRENT", changed.name)
    for module, name in ((blends, "blending"), (blends, "bounds"), (blends, "counted_sizes")):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(calibration.Scaling, "of", None)
    monkeypatch.setattr("sottovoce.personal._header", None)
    return changed


def of(run: Path) -> str:
    return f"{run.parent.name}-{run.name}"


def models(run: Path, out: Path) -> dict[str, bytes]:
    return {Path(row["model"]).name: Path(row["model"]).read_bytes() for row in write_models(run, out)}


def judged(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "models").glob("*.safetensors")}


def newcomers(run: Path) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Coefficients of newcomers now, and as they were."""
    server, was = FinishedRun.load(run).server, json.loads((run / "newcomers.json").read_text())
    found = [server.personalize(None)]
    if "contexts" in was:
        found += list(server.personalize_many(np.array(was["contexts"])))
    return found, [torch.tensor(row) for row in (was["none"], *was.get("coefficients", []))]


@pytest.mark.parametrize("run", PINNED, ids=of)
def test_models_of_a_finished_run_are_the_same_bytes_under_any_later_version(
    run: Path, tmp_path: Path, later: recipes.Recipe
) -> None:
    assert models(run, tmp_path) == judged(run)


@pytest.mark.parametrize("run", PINNED, ids=of)
def test_newcomers_are_given_the_same_under_any_later_version(run: Path, later: recipes.Recipe) -> None:
    found, was = newcomers(run)
    assert len(found) == len(was)
    for one, other in zip(found, was, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", UNPINNED, ids=of)
def test_finished_runs_of_0_2_0_are_read_by_the_recipe_that_it_had(run: Path, tmp_path: Path) -> None:
    made, was = models(run, tmp_path), judged(run)
    assert made.keys() == was.keys()
    for name in made:
        (now, _), (before, _) = (load_tensors(path / name) for path in (tmp_path, run / "models"))
        assert all(torch.allclose(now[key], before[key], rtol=0, atol=1e-6) for key in before | now)
    for one, other in zip(*newcomers(run), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
    assert "0.2.0" in faults(run)[0]


@pytest.mark.parametrize("run", UNPINNED, ids=of)
def test_where_that_recipe_is_gone_their_models_are_refused_in_one_line(
    run: Path, tmp_path: Path, later: recipes.Recipe
) -> None:
    with pytest.raises(SottovoceError, match=r"recipe=0\.2-.* Sottovoce 0\.2 has it") as refused:
        write_models(run, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("run", [*PINNED, *UNPINNED], ids=of)
def test_models_predict_what_they_predicted(run: Path, tmp_path: Path) -> None:
    for model in (run / "models").glob("*.safetensors"):
        predict(model, FIXTURES / "records.csv", tmp_path / "found.csv")
        found, was = (
            list(csv.DictReader(path.open())) for path in (tmp_path / "found.csv", model.with_suffix(".csv"))
        )
        assert len(found) == len(was) == 8
        for one, other in zip(found, was, strict=True):
            assert one.keys() == other.keys()
            for name, cell in other.items():
                if name.startswith("p_") or "probability" in name:
                    assert float(one[name]) == pytest.approx(float(cell), abs=1e-6)
                else:
                    assert one[name] == cell


@pytest.mark.parametrize("run", PINNED, ids=of)
def test_what_no_later_version_can_say_of_a_run_is_refused(run: Path) -> None:
    file = GeneratorFile.read(run / "model.safetensors")
    wrong: dict[str, dict[str, Any]] = {
        "another basis": {"basis": "0" * 32},
        "recipe.weights is not": {"state": {**file.state, f"{RECIPE}weights": torch.zeros(1)}},
        "recipe.step is not finite": {
            "state": {**file.state, f"{RECIPE}step": torch.tensor(float("nan"), dtype=torch.float64)}
        },
        "final.models is not": {"state": {**file.state, "final.models": torch.zeros(2, 76)}},
        "final.slope is not": {"state": {**file.state, "final.slope": torch.zeros(3)}},
    }
    for said, change in wrong.items():
        with pytest.raises(SottovoceError, match=said):
            open_server(replace(file, **change))


def test_headers_of_another_run_or_client_are_refused(tmp_path: Path) -> None:
    state, metadata = load_tensors(PINNED[0] / "model.safetensors")
    own = json.loads(metadata["own"])
    other = json.loads(own[0]["origin"]) | {"client": "nobody"}
    for said in (
        own[1:],
        [{**own[0], "origin": json.dumps(other)}, *own[1:]],
        [own[0], {}, *own[2:]],
        3,
        [[]] * 4,
    ):
        save_tensors(tmp_path / "model.safetensors", state, {**metadata, "own": json.dumps(said)})
        with pytest.raises(ModelFileError, match="headers of models that cannot be"):
            GeneratorFile.read(tmp_path / "model.safetensors")


def test_newcomers_of_a_run_whose_feature_map_is_another_versions_are_refused(tmp_path: Path) -> None:
    state, metadata = load_tensors(PINNED[0] / "model.safetensors")
    header = {**json.loads(metadata["header"]), "map": "0" * 64}
    save_tensors(tmp_path / "model.safetensors", state, {**metadata, "header": json.dumps(header)})
    with pytest.raises(SottovoceError, match="feature maps of another version"):
        FinishedRun.load(tmp_path)


# What a run did, made again


@pytest.mark.parametrize("run", PINNED, ids=of)
def test_a_finished_run_can_be_made_again_from_its_releases(run: Path) -> None:
    assert faults(run) == []


def changed(run: Path, out: Path, **tensors: float) -> Path:
    """A copy of a run with one number of each named tensor moved by so much."""
    shutil.copytree(run, out)
    state, metadata = load_tensors(run / "model.safetensors")
    for name, much in tensors.items():
        state[name].view(-1)[0] += much
    save_tensors(out / "model.safetensors", state, metadata)
    return out


def test_a_run_that_used_other_numbers_than_its_recipes_or_has_other_models_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("weights", "own_steps", "least_kept")):
        other = changed(PINNED[0], tmp_path / str(number), **{f"recipe.{name}": 0.01})
        assert any(
            "steps, shares or weights are not those of recipe 0.2-" in fault for fault in faults(other)
        )
    for number, name in enumerate(("final.models", "final.slope", "calibrations", "generator.shared")):
        other = changed(PINNED[0], tmp_path / f"models-{number}", **{name: 0.01})
        assert faults(other) == ["the run's models are not what its releases give"]
    one_bit = changed(PINNED[0], tmp_path / "bit", **{"final.models": 1e-7})
    monkeypatch.setattr("sottovoce.run.finished.arithmetic", lambda: "elsewhere")
    assert faults(one_bit) == []  # sums of another machine differ so much
    made_here = GeneratorFile.read(one_bit / "model.safetensors").arithmetic
    monkeypatch.setattr("sottovoce.run.finished.arithmetic", lambda: made_here)
    assert faults(one_bit) == ["the run's models are not what its releases give"]


def test_a_run_whose_plan_names_another_recipe_than_its_models_is_found_out(
    tmp_path: Path, later: recipes.Recipe
) -> None:
    assert faults(PINNED[0])[0].startswith("recipe=0.2-")  # this version has it not
    run = shutil.copytree(PINNED[0], tmp_path / "run")
    text = (run / "plan.toml").read_text()
    (run / "plan.toml").write_text(text.replace(recipes.FIRST, later.name))
    assert faults(run)[0].startswith(f"plan.toml names recipe {later.name}")


def test_a_finished_run_of_0_2_0_is_resumed_to_its_result_and_an_unfinished_one_is_refused(
    tmp_path: Path,
) -> None:
    run = shutil.copytree(UNPINNED[0], tmp_path / "run")
    plan = RunDirectory(run).plan()
    assert train(plan, run, resume=True) == json.loads((run / "result.json").read_text())
    for name in ("result.json", "model.safetensors"):
        (run / name).unlink()
    with pytest.raises(SottovoceError, match=r"begun by version 0\.2\.0 or earlier.*train .*anew") as refused:
        train(plan, run, resume=True)
    assert "\n" not in str(refused.value)
