"""The numbers of a recipe have a name, which plans state, and which nobody can give to others."""

from __future__ import annotations

import logging
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement, agree
from sottovoce.federation.store import Store
from sottovoce.plan import Plan, recipes
from sottovoce.plan.limits import foreign_plan
from sottovoce.plan.recipes import V0_2, Recipe, open_recipe
from sottovoce.run.finished import GeneratorFile
from sottovoce.run.prepare import prepare
from sottovoce.run.training import train
from tests.run.interrupting import interrupted
from tests.small import small_plan

HEART: dict[str, Any] = {"dataset": "heart", "rounds": 4, "channel": "direct", "evaluate_every": 0}


def only(monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> Recipe:
    """This version has that recipe, and no other."""
    monkeypatch.setattr(recipes, "RECIPES", {recipe.name: recipe})
    monkeypatch.setattr(recipes, "CURRENT", recipe.name)
    return recipe


def numbers(of: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the numbers of a recipe are."""
    if is_dataclass(of):
        return [found for f in fields(of) for found in numbers(getattr(of, f.name), (*path, f.name))]
    if isinstance(of, dict):
        return [found for name, value in of.items() for found in numbers(value, (*path, name))]
    return [] if of is None or isinstance(of, str) else [path]


def changed(of: Any, path: tuple[str, ...]) -> Any:
    """The same with one number changed."""
    if not path:
        return tuple(changed(one, ()) for one in of) if isinstance(of, tuple) else of + 1
    name, rest = path[0], path[1:]
    if isinstance(of, dict):
        return {**of, name: changed(of[name], rest)}
    return replace(of, **{name: changed(getattr(of, name), rest)})


def test_the_recipe_of_0_2_has_the_numbers_that_it_had() -> None:
    assert recipes.FIRST == V0_2.name == "0.2-20b943c9"
    assert Plan().recipe == recipes.FIRST
    assert recipes.CURRENT in recipes.RECIPES


def test_who_changes_a_number_has_another_recipe() -> None:
    places = numbers(V0_2)
    assert len(places) > 40
    names = {changed(V0_2, path).name for path in places} | {V0_2.name, replace(V0_2, version="0.3").name}
    assert len(names) == len(places) + 2


def test_a_new_plan_has_this_versions_recipe_and_a_digest_tells_recipes_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Plan.load()
    assert before.recipe == recipes.CURRENT
    assert "recipe" not in before.digested()  # digests of 0.2.0 stay
    later = only(monkeypatch, replace(V0_2, version="0.9"))
    assert Plan.load().recipe == later.name
    assert Plan.load().digest() != before.digest()
    assert Plan.load(overrides={"recipe": recipes.FIRST}).digest() == before.digest()


def test_a_plan_that_names_no_recipe_is_settled_anew_with_a_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = Plan.load(overrides=HEART).to_toml()
    (tmp_path / "new.toml").write_text(text)
    lines = [line for line in text.splitlines(True) if not line.startswith("recipe =")]
    (tmp_path / "old.toml").write_text("".join(lines))
    later = only(monkeypatch, replace(V0_2, version="0.9"))
    with caplog.at_level(logging.WARNING):
        assert Plan.load(tmp_path / "old.toml").recipe == later.name
        [line] = [record.getMessage() for record in caplog.records]
        assert line.endswith(f"settled anew, by recipe={later.name}")
        caplog.clear()
        assert Plan.load(tmp_path / "new.toml").recipe == recipes.FIRST
        assert not caplog.records


@pytest.mark.parametrize("change", [{"version": "0.9"}, {"drift": 2.4}])
def test_a_changed_number_makes_a_resume_be_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    plan, run = Plan.load(overrides=HEART), tmp_path / "run"
    interrupted(plan, run, None)
    spent = (run / "ledger.sqlite").read_bytes()
    only(monkeypatch, replace(V0_2, **change))
    with pytest.raises(SottovoceError, match=r"recipe=0\.2-20b943c9 .*Sottovoce 0\.2 has it") as refused:
        train(Plan.load(run / "plan.toml"), run, resume=True)
    assert "\n" not in str(refused.value)
    with pytest.raises(SottovoceError, match=r"was started with recipe=0\.2-20b943c9"):
        train(plan.replace(recipe=recipes.CURRENT), run, resume=True)
    assert (run / "ledger.sqlite").read_bytes() == spent


def test_two_recipes_stand_side_by_side_and_each_run_uses_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = V0_2.tasks["classes"]
    assert task.tables is not None
    task = replace(task, tables=replace(task.tables, drift=0.5))
    other = replace(V0_2, tasks={**V0_2.tasks, "classes": task})
    monkeypatch.setattr(recipes, "RECIPES", {V0_2.name: V0_2, other.name: other})
    steps = {
        name: prepare(Plan.load(overrides={**HEART, "epsilon": 0.5, "recipe": name})).blueprint.blending.step
        for name in recipes.RECIPES
    }
    assert steps[other.name] < steps[V0_2.name]
    train(Plan.load(overrides={**HEART, "epsilon": 0.5, "recipe": other.name}), tmp_path / "run")
    state = GeneratorFile.read(tmp_path / "run" / "model.safetensors").state
    assert float(state["recipe.step"]) == steps[other.name]
    assert f'recipe = "{other.name}"' in (tmp_path / "run" / "plan.toml").read_text()


def test_the_numbers_that_a_run_uses_are_in_its_checkpoints(tmp_path: Path) -> None:
    plan = small_plan(method="blend", context="public", learning_rate=0.0, model="linear", coefficients=0)
    run = prepare(plan, trusted=True)
    train(plan, tmp_path / "run")
    state = GeneratorFile.read(tmp_path / "run" / "model.safetensors").state
    for name, value in run.blueprint.blending.numbers().items():
        assert torch.equal(state[f"recipe.{name}"], torch.from_numpy(value))


# Federations


def agreed(**changes: Any) -> Agreement:
    plan = small_plan(model="linear", coefficients=64, basis="unstructured", seeded=False, **changes)
    return agree(plan)


def test_the_name_of_the_recipe_is_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(V0_2, version="0.9")
    monkeypatch.setitem(recipes.RECIPES, other.name, other)
    one, two = agreed(), agreed(recipe=other.name)
    assert one.digest() != two.digest()
    assert one.difference(two) == f"recipe is {V0_2.name} here and {other.name} there"
    assert Agreement.parse(two.to_toml()).digest() == two.digest()


def test_an_agreement_of_another_recipe_or_of_none_is_refused_at_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement, file = agreed(), tmp_path / "agreement.toml"
    file.write_text(agreement.to_toml())
    Store.open(tmp_path / "store.sqlite", agreement).close()
    without = "".join(line for line in agreement.to_toml().splitlines(True) if not line.startswith("recipe"))
    (tmp_path / "old.toml").write_text(without)
    with pytest.raises(SottovoceError, match=r"names no recipe, being of version 0\.2\.0 or earlier"):
        Agreement.load(tmp_path / "old.toml")
    assert Agreement.parse(without, finished=True).plan == agreement.plan  # newcomers of a finished run
    only(monkeypatch, replace(V0_2, longest=1.4))
    for refused in (lambda: Agreement.load(file), lambda: Store.open(tmp_path / "store.sqlite", agreement)):
        with pytest.raises(SottovoceError, match=r"recipe=0\.2-20b943c9 is not known here") as error:
            refused()
        assert "\n" not in str(error.value)


def test_a_plan_from_elsewhere_that_names_none_is_read_by_the_first() -> None:
    assert foreign_plan({"model": "linear"}).recipe == recipes.FIRST
    with pytest.raises(SottovoceError, match="Sottovoce 7 has it"):
        open_recipe("7-00")
