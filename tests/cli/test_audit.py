"""`sottovoce audit` as a user meets it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce import audit
from sottovoce.cli.application import app
from tests.audit.conftest import repeatable as repeatable
from tests.audit.test_guessing import forgotten_charge, halved_noise, no_clipping
from tests.audit.test_noise import drawn_once
from tests.audit.test_order import NARROW, many_classes, rounds_by_place
from tests.audit.toys import BEST, words

from .conftest import Failing

runner = CliRunner()
PLAN = {**BEST, "channel": "direct", "rounds": 2, "seeded": False}
SEEDED = {**PLAN, "seeded": True}


@pytest.fixture(autouse=True)
def few_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FAMILIES", 2)


@pytest.mark.usefixtures("repeatable")
def test_a_plan_on_records_is_played_and_kept_for_its_owner_only(tmp_path: Path) -> None:
    out = tmp_path / "kept" / "audit"
    answer = runner.invoke(app, ["audit", *words(tmp_path, PLAN), "--runs", "20", "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    said = " ".join(answer.stdout.split())
    assert "The worst pair: guessed right" in said
    assert "Noise of releases, each against all others (190 pairs): correlations of" in said
    assert "Nothing was found that breaks the promise. Nothing left, and nothing was charged." in said
    assert (out.stat().st_mode & 0o777, out.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    kept = {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()}
    assert kept == {"audit.json": 0o600, "audit.html": 0o600, "audit.svg": 0o600}
    assert "promised" in (out / "audit.svg").read_text()
    assert not list(tmp_path.rglob("*.sqlite*")), "nothing is charged"


@pytest.mark.usefixtures("repeatable")
def test_json_has_what_programs_need(tmp_path: Path) -> None:
    answer = runner.invoke(app, ["audit", *words(tmp_path, PLAN), "--runs", "20", "--json"])
    found = json.loads(answer.stdout)
    assert {"kind", "place", "charged", "ratio"} <= found["releases"][0].keys()
    assert found["largest"] <= 1 + 1e-9
    assert 0 <= found["epsilon_lower"] <= found["epsilon"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (halved_noise, "the noise of a gradient has 0."),
        (no_clipping, "of what is charged"),
        (forgotten_charge, "left without a charge"),
        (drawn_once, "have noise in common"),
    ],
)
def test_a_broken_promise_is_said_loudly_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], said: str
) -> None:
    fault(monkeypatch)
    answer = runner.invoke(app, ["audit", *words(tmp_path, SEEDED), "--runs", "20"])
    assert answer.exit_code == 1
    assert said in " ".join(answer.stdout.split())
    assert "The promise is broken:" in answer.stdout
    assert "Nothing was found" not in answer.stdout


def test_a_product_that_rounds_by_place_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an all-clear: nobody looked at coefficients that a server may send to make roundings decide."""
    plan = many_classes(tmp_path)
    given = [f"{key}={value}" for key, value in NARROW.items()]
    rounds_by_place(monkeypatch)
    answer = runner.invoke(app, ["audit", f"dataset={plan.dataset}", *given])
    assert answer.exit_code == 1
    assert "when its records stand in another order" in " ".join(answer.stdout.split())


def test_a_feature_map_that_remembers_records_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an all-clear: the map is tried on a few made-up records, and on no others."""
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    own = "tests.audit.test_company:remembering"
    answer = runner.invoke(
        app, ["audit", *words(tmp_path, PLAN), f"features={own}", "--features", own, "--json"]
    )
    assert answer.exit_code == 1
    said = json.loads(answer.stdout)["faults"]
    assert said[0].startswith(f"features={own} describes the same record differently beside other records")


def test_a_seeded_run_is_said_to_protect_nobody(tmp_path: Path) -> None:
    """It was an all-clear: a recount looked at no seed."""
    run = tmp_path / "run"
    assert runner.invoke(app, ["train", *words(tmp_path, SEEDED), "--out", str(run), "--json"]).exit_code == 0
    answer = runner.invoke(app, ["audit", str(run)])
    assert answer.exit_code == 1
    said = " ".join(answer.stdout.split())
    assert "The promise is broken: seeded = true: the noise is drawn from the seed" in said


@pytest.mark.usefixtures("repeatable")
def test_a_finished_run_is_recounted_and_its_report_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = words(tmp_path, PLAN)
    assert runner.invoke(app, ["train", *settings, "--out", str(run), "--json"]).exit_code == 0
    assert 'id="audit"' not in (run / "report.html").read_text()
    answer = runner.invoke(app, ["audit", str(run)])
    assert answer.exit_code == 0, answer.output
    assert "ε by dp-accounting" in answer.stdout
    assert 'id="audit"' in (run / "report.html").read_text()
    assert (run / "audit.json").stat().st_mode & 0o777 == 0o600
    apart = tmp_path / "apart"
    assert runner.invoke(app, ["audit", str(run), "--out", str(apart)]).exit_code == 0
    assert {path.name for path in apart.iterdir()} == {"audit.json", "audit.html"}
    found = json.loads(runner.invoke(app, ["audit", str(run), "--runs", "20", "--json"]).stdout)
    assert found["ledger"]["faults"] == []
    assert len(found["games"]) == 2
    result = json.loads((run / "result.json").read_text())
    result["epsilon"]["per_client"]["0"] = 2.0
    (run / "result.json").write_text(json.dumps(result))
    answer = runner.invoke(app, ["audit", str(run)])
    assert answer.exit_code == 1
    assert "result.json says ε = 2.0000 of 0" in " ".join(answer.stdout.split())


def test_bad_input_is_one_line(tmp_path: Path, failing: Failing) -> None:
    assert "say dataset=" in failing("audit", str(tmp_path))
    assert "5 runs are too few" in failing("audit", *words(tmp_path, PLAN), "--runs", "5")
    assert "set a finite epsilon" in failing("audit", *words(tmp_path, SEEDED), "epsilon=inf")
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(words(tmp_path, PLAN)[0].partition("=")[2], empty)
    assert "empty" in failing("audit", f"dataset={empty}")
    (tmp_path / "plan.toml").write_text("")
    assert "give it alone" in failing("audit", str(tmp_path), "rounds=3")
