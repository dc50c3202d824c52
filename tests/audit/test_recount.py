"""A finished run's ε by dp-accounting, and files that do not agree with one another."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sottovoce import audit as module
from sottovoce.audit import SEEDED, pld_epsilon, recount
from sottovoce.errors import SottovoceError
from sottovoce.models.tensors import load_tensors, save_tensors
from sottovoce.plan import Plan, recipes
from sottovoce.privacy.accounting import epsilon
from sottovoce.run.training import train

from .toys import BEST, CENTRAL, CENTRED, SHARED, quick, records

RUNS = {"best": BEST, "central": CENTRAL, "shared": SHARED, "centred": CENTRED, "seeded": BEST}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recounted")
    for name, keys in RUNS.items():
        plan = {"dataset": records(folder), **quick(keys), "seeded": name == "seeded"}
        train(Plan.load(overrides=plan), folder / name)
    return folder


@pytest.mark.parametrize("run", ["best", "central", "shared", "centred"])
def test_other_code_finds_the_same_epsilon_and_files_agree(trained: Path, run: str) -> None:
    found = recount(trained / run)
    assert found["faults"] == []
    assert found["epsilon"] == pytest.approx(found["stated"], rel=1e-3)
    assert [one["client"] for one in found["clients"]] == ["0", "1", "2"]
    # Rounds, context, confusion, calibration; or rounds, centre, calibration.
    assert found["releases"] == 3 * (3 + (2 if run == "centred" else 3))


def test_a_seeded_run_protects_nobody(trained: Path) -> None:
    found = recount(trained / "seeded")
    assert found["faults"] == [SEEDED]
    assert found["epsilon"] == pytest.approx(8.0, rel=1e-3)


def altered_model(run: Path, tensor: str) -> None:
    state, metadata = load_tensors(run / "model.safetensors")
    state[tensor].view(-1)[0] += 0.01
    save_tensors(run / "model.safetensors", state, metadata)


def renamed_recipe(run: Path) -> None:
    text = (run / "plan.toml").read_text()
    assert recipes.CURRENT in text
    (run / "plan.toml").write_text(text.replace(recipes.CURRENT, "0.9-5eaf00d5"))


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (
            lambda run: altered_model(run, "recipe.weights"),
            "steps, shares or weights are not those of recipe",
        ),
        (lambda run: altered_model(run, "final.models"), "models are not what its releases give"),
        (renamed_recipe, "0.9-5eaf00d5"),
    ],
    ids=["other numbers", "other models", "another recipe"],
)
def test_a_run_that_is_not_what_its_recipe_makes_is_a_fault(
    trained: Path, tmp_path: Path, alter: Callable[[Path], None], said: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "best", run)
    alter(run)
    assert any(said in fault for fault in recount(run)["faults"]), recount(run)["faults"]


def test_the_sensitivity_of_the_ledger_is_not_doubled_again() -> None:
    multipliers = [3.0] * 4 + [7.0]
    ours = epsilon(sum(one**-2 for one in multipliers), 1e-5, "exact")
    assert pld_epsilon(multipliers, 1e-5) == pytest.approx(ours, rel=1e-3)
    assert pld_epsilon([], 1e-5) == 0.0


def altered_ledger(statement: str) -> Callable[[Path], None]:
    def alter(run: Path) -> None:
        with closing(sqlite3.connect(run / "ledger.sqlite")) as file:
            for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                file.execute(f"DROP TRIGGER {name}")
            file.execute(statement)
            file.commit()

    return alter


def altered_result(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    result["epsilon"]["per_client"]["1"] = 3.0
    (run / "result.json").write_text(json.dumps(result))


def altered_plan(run: Path) -> None:
    text = (run / "plan.toml").read_text()
    (run / "plan.toml").write_text(text.replace("epsilon = 8.0", "epsilon = 4.0"))


ALTERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "result": (altered_result, "result.json says ε = 3.0000 of 1, its ledger has 8.0"),
    "plan": (altered_plan, "result.json says epsilon = 8.0, plan.toml says 4.0"),
    "a row is gone": (
        altered_ledger("DELETE FROM release WHERE client = '2' AND kind = 'gradient' AND round = 2"),
        "the gradient of 2 in round 2 is in no row of the ledger",
    ),
    "a row is too many": (
        altered_ledger("UPDATE release SET round = 9 WHERE client = '0' AND round = 3"),
        "the ledger charges a gradient of 0 in round 9 that no round made",
    ),
    "another Δ": (
        altered_ledger(
            "UPDATE release SET sensitivity = sensitivity / 2, sigma = sigma / 2 WHERE kind = 'gradient'"
        ),
        "and plan and records make it",
    ),
    "another σ": (
        altered_ledger("UPDATE release SET sigma = 2 * sigma WHERE kind = 'gradient'"),
        "result.json says ε = 8.0000 of 0, its ledger has",
    ),
}


@pytest.mark.parametrize("what", ALTERED)
def test_what_does_not_agree_is_said(trained: Path, tmp_path: Path, what: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "best", run)
    alter, said = ALTERED[what]
    alter(run)
    assert any(said in fault for fault in recount(run)["faults"]), recount(run)["faults"]


def faults_of(run: Path, copied: Path, statement: str) -> list[str]:
    """What a recount says of a copy of a run in whose ledger a statement changed something."""
    shutil.copytree(run, copied)
    altered_ledger(statement)(copied)
    faults: list[str] = recount(copied)["faults"]
    return faults


@pytest.mark.parametrize(
    ("run", "kind"),
    [("best", "context"), ("best", "confusion"), ("centred", "centre"), ("centred", "calibration")],
)
def test_everything_that_is_released_once_needs_a_row(
    trained: Path, tmp_path: Path, run: str, kind: str
) -> None:
    gone = f"DELETE FROM release WHERE client = '1' AND kind = '{kind}'"
    found = faults_of(trained / run, tmp_path / "run", gone)
    assert f"the {kind} of 1 in round 0 is in no row of the ledger" in found


@pytest.mark.parametrize(("run", "kind"), [("best", "confusion"), ("centred", "centre")])
def test_what_is_released_once_has_the_sensitivity_that_the_pages_state(
    trained: Path, tmp_path: Path, run: str, kind: str
) -> None:
    cheaper = f"UPDATE release SET sensitivity = sensitivity / 100 WHERE kind = '{kind}'"
    found = faults_of(trained / run, tmp_path / "run", cheaper)
    assert any(f"for the {kind} of" in fault for fault in found)


def test_what_a_ledger_has_lost_is_counted(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "best", run)
    altered_ledger(
        "INSERT INTO lost (client, run, releases, spent, time) VALUES ('0', 'other', 1, 1.0, '2026-01-01')"
    )(run)
    assert "result.json says ε = 8.0000 of 0, its ledger has 9" in recount(run)["faults"][0]


def test_bad_input_is_one_line(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SottovoceError, match="no result"):
        recount(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(trained / "best", run)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "engine": "flower"}))
    with pytest.raises(SottovoceError, match="clients that keep their ledgers"):
        recount(run)
    shutil.copy(trained / "best" / "result.json", run)
    (run / "ledger.sqlite").write_bytes(b"no ledger")
    with pytest.raises(SottovoceError, match="not a database"):
        recount(run)
    (run / "ledger.sqlite").unlink()
    with pytest.raises(SottovoceError, match="is missing"):
        recount(run)
    module._composed.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(SottovoceError, match=r"pip install 'sottovoce\[audit\]'"):
        recount(trained / "best")
