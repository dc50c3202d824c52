"""The commands around a run: what they promise before, print after, and refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.plan import Plan
from tests.data.hospitals import folder
from tests.run.test_folder import sites
from tests.run.test_rehearsal import site
from tests.small import SMALL

from .conftest import SETTINGS, Failing

runner = CliRunner()


def test_plan_tells_the_costs_before_any_training() -> None:
    words = ["plan", "preset=paper", "dataset=cifar10", "epsilon=16", "--json"]
    costs = json.loads(runner.invoke(app, words).stdout)
    assert (costs["model_parameters"], costs["coefficients"], costs["delta"]) == (121_182, 16_384, 1e-5)
    assert 32 <= costs["releases_max"] <= 47
    assert 15.8 <= costs["epsilon"] < 16.0  # σ is for the paper's bound on a context, 2; charged is √2
    assert costs["accounting"] == "rdp"
    assert costs["uplink_bytes"] == pytest.approx(65.55e6, rel=1e-3)
    expected = (
        2
        / 333
        * np.sqrt((1 + costs["releases_max"]) / 2)
        / (np.sqrt(np.log(1e5) + 16) - np.sqrt(np.log(1e5)))
    )
    assert costs["sigma"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("key", ["model", "features"])
@pytest.mark.parametrize("command", ["plan", "train", "compare", "federate", "resume"])
def test_code_that_a_plan_file_names_is_not_imported(
    command: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Failing
) -> None:
    """Not from the current folder either, where a plan and its code may have been unpacked together."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    Path("trap.py").write_text("open('sprung', 'w').close()\ndef build(*shape): raise ValueError")
    plan = Path("plan.toml")
    plan.write_text(f'{key} = "trap:build"\n')
    words = {
        "plan": ["plan", "plan.toml"],
        "train": ["train", "plan.toml", "--out", "run"],
        "compare": ["compare", "plan.toml", "--out", "run"],
        "federate": ["federate", "--plan", "plan.toml", "--out", "run"],
        "resume": ["train", "--resume", "--out", "."],
    }[command]
    assert f"name it yourself, with {key}=trap:build or --{key} trap:build" in failing(*words)
    assert not Path("sprung").exists()
    if command == "plan":  # named on the command line, it is
        failing(*words, f"--{key}", "trap:build")
        assert Path("sprung").exists()


def test_plan_lists_every_key() -> None:
    answer = runner.invoke(app, ["plan", "--keys", "--json"])
    names = [row["key"] for row in json.loads(answer.stdout)]
    assert "clients_per_round" in names
    assert len(names) > 30


def test_a_run_is_trained_evaluated_and_reported(run: Path) -> None:
    for name in (
        "plan.toml",
        "result.json",
        "rounds.jsonl",
        "ledger.sqlite",
        "model.safetensors",
        "report.html",
    ):
        assert (run / name).exists(), name
    result = json.loads((run / "result.json").read_text())
    again = json.loads(runner.invoke(app, ["evaluate", str(run), "--model", SMALL["model"], "--json"]).stdout)
    assert again["accuracy"] == result["accuracy"]
    assert "report.html" in runner.invoke(app, ["report", str(run)]).stdout


def test_the_bar_of_a_training_counts_the_rounds_that_its_records_decide(tmp_path: Path) -> None:
    words = ["train", f"dataset={folder(tmp_path / 'sites', north=site(1, 60, 30), south=site(2, 60, -30))}"]
    answer = runner.invoke(app, [*words, "epsilon=4", "channel=direct", "--out", str(tmp_path / "run")])
    assert answer.exit_code == 0, answer.output
    rounds = json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]
    assert rounds > Plan.load(overrides={"dataset": str(tmp_path / "sites")}).rounds
    assert f" {rounds}/{rounds} " in answer.stderr


def test_a_run_without_future_clients_says_that_there_are_none(tmp_path: Path) -> None:
    words = ["train", *SETTINGS, "future_clients=0", "rounds=1", "--out", str(tmp_path / "run")]
    lines = runner.invoke(app, words).stdout.splitlines()
    assert [line.split() for line in lines if "future clients" in line] == [["future", "clients", "none"]]


def test_results_of_a_reproduction_are_reported(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "results" / "index.json", tmp_path)
    assert "report.html" in runner.invoke(app, ["report", str(tmp_path)]).stdout
    assert "Ours, tuned, label context" in (tmp_path / "report.html").read_text()


def test_a_finished_run_resumes_to_its_result(run: Path) -> None:
    words = ["train", "--resume", "--out", str(run), "--model", SMALL["model"], "--json"]
    answer = runner.invoke(app, words)
    assert json.loads(answer.stdout) == json.loads((run / "result.json").read_text())


def test_a_folder_whose_target_is_a_number_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R² is not called accuracy, each site has its σ, and what other runs have spent is not this one's."""
    monkeypatch.setenv("COLUMNS", "200")
    folder = sites(tmp_path / "sites", "number")
    words = [f"dataset={folder}", "future_clients=west", "rounds=3", "channel=direct", "epsilon=4"]

    def told(*command: str) -> str:
        answer = runner.invoke(app, [command[0], *words, *command[1:]])
        assert answer.exit_code == 0, answer.output
        return " ".join(answer.stdout.split())

    planned = told("plan")
    assert re.search(r"σ = 0\.\d+ to 0\.\d+ for gradients releases 3 per client, 9 in all", planned)
    assert "ε per client 4.000 at" in planned
    first = told("train", "--out", str(tmp_path / "one"))
    assert re.search(r"participants R² -?[\d.]+ % on held-out records of 3 clients", first)
    assert re.search(r"future clients R² -?[\d.]+ % on 1 client never seen", first)
    assert "4.000 of 4 at" in first
    assert " σ ε R² " in first
    second = told("train", "budget=8", "--out", str(tmp_path / "two"))
    assert re.search(r"5\.9\d+ over all runs in its ledger, 4 in this one, at", second)
    assert "over all runs in its ledger, 4 in this one" in (tmp_path / "two" / "report.html").read_text()
    later = ["personalize", str(tmp_path / "two"), "--data", str(folder / "west.csv"), "--yes"]
    answer = runner.invoke(app, [*later, "--out", str(tmp_path / "model")])
    assert "R² on your other records" in answer.stdout


def test_a_plan_counts_what_is_released_once_beside_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = [f"dataset={sites(tmp_path / 'sites', 'classes')}", "rounds=3", "epsilon=4"]
    planned = " ".join(runner.invoke(app, ["plan", *words]).stdout.split())
    assert "3 gradients per client, 12 in all, and once a centre and a calibration of each" in planned
    costs = json.loads(runner.invoke(app, ["plan", *words, "--json"]).stdout)
    assert costs["releases_once"] == ["centre", "calibration"]


def test_a_future_client_is_personalized(run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "my.npz",
        x=rng.integers(256, size=(60, 1, 28, 28), dtype=np.uint8),
        y=rng.integers(10, size=60),
    )
    words = [
        "personalize",
        str(run),
        "--data",
        str(tmp_path / "my.npz"),
        "--out",
        str(tmp_path / "my.safetensors"),
        "--model",
        SMALL["model"],
    ]
    answer = runner.invoke(app, words)
    assert answer.exit_code != 0
    assert "repeat the command with --yes" in str(answer.exception)
    answer = runner.invoke(app, [*words, "--yes"])
    assert answer.exit_code == 0, answer.output
    assert "ε of this context" in answer.stdout
    assert (tmp_path / "my.safetensors").exists()


def test_a_run_is_not_overwritten(run: Path, failing: Failing) -> None:
    assert "--resume" in failing("train", *SETTINGS, "--out", str(run))


def test_a_damaged_model_is_refused(run: Path, tmp_path: Path, failing: Failing) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("plan.toml", "result.json"):
        (broken / name).write_bytes((run / name).read_bytes())
    (broken / "model.safetensors").write_bytes(b"garbage")
    assert "damaged" in failing("evaluate", str(broken), "--model", SMALL["model"])


def test_a_large_delta_is_doubted_before_and_after_training(tmp_path: Path) -> None:
    words = [f"dataset={sites(tmp_path / 'sites')}", "rounds=1", "delta=0.02"]
    assert "δ = 0.02 is above a tenth of one over" in runner.invoke(app, ["plan", *words]).stdout
    trained = runner.invoke(app, ["train", *words, "--out", str(tmp_path / "run")])
    assert "δ = 0.02 is above a tenth of one over" in trained.stdout


def test_what_is_made_of_own_records_is_for_their_owner_alone(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    before = os.umask(0)
    try:
        words = ["train", f"dataset={folder}", "rounds=1", "--out", str(tmp_path / "run")]
        assert runner.invoke(app, words).exit_code == 0
        assert (
            runner.invoke(app, ["models", str(tmp_path / "run"), "--out", str(tmp_path / "m")]).exit_code == 0
        )
        words = ["compare", f"dataset={folder}", "rounds=1", "--out", str(tmp_path / "compared")]
        assert runner.invoke(app, words).exit_code == 0
    finally:
        os.umask(before)
    made = [tmp_path / name for name in ("run", "m", "compared")]
    paths = [*made, *(path for folder in made for path in folder.rglob("*"))]
    assert {path.name for path in paths} >= {"report.html", "result.json", "rounds.jsonl", "compare.json"}
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
