from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sottovoce.cli import main
from sottovoce.cli.application import app
from tests.small import SMALL

SETTINGS = [
    f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in SMALL.items()
]
runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    answer = runner.invoke(app, ["train", *SETTINGS, "--out", str(out), "--json"])
    assert answer.exit_code == 0, answer.output
    return out


def failing(monkeypatch, capsys, *words: str) -> str:
    """The one line that the command prints when it refuses."""
    monkeypatch.setattr("sys.argv", ["sottovoce", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    return lines[-1]


def test_plan_tells_the_costs_before_any_training() -> None:
    words = ["plan", "preset=paper", "dataset=cifar10", "epsilon=16", "--json"]
    costs = json.loads(runner.invoke(app, words).stdout)
    assert (costs["model_parameters"], costs["coefficients"], costs["delta"]) == (121_182, 16_384, 1e-5)
    assert 32 <= costs["releases_max"] <= 47
    assert costs["epsilon"] == pytest.approx(16.0, abs=1e-6)
    assert costs["epsilon"] <= 16.0
    assert costs["accounting"] == "rdp"
    assert costs["uplink_bytes"] == pytest.approx(65.55e6, rel=1e-3)
    expected = (
        2
        / 333
        * np.sqrt((1 + costs["releases_max"]) / 2)
        / (np.sqrt(np.log(1e5) + 16) - np.sqrt(np.log(1e5)))
    )
    assert costs["sigma"] == pytest.approx(expected, rel=1e-9)


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
    again = json.loads(runner.invoke(app, ["evaluate", str(run), "--json"]).stdout)
    assert again["accuracy"] == result["accuracy"]
    assert "report.html" in runner.invoke(app, ["report", str(run)]).stdout


def test_results_of_a_reproduction_are_reported(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "results" / "index.json", tmp_path)
    assert "report.html" in runner.invoke(app, ["report", str(tmp_path)]).stdout
    assert "Ours, tuned, label context" in (tmp_path / "report.html").read_text()


def test_a_finished_run_resumes_to_its_result(run: Path) -> None:
    answer = runner.invoke(app, ["train", "--resume", "--out", str(run), "--json"])
    assert json.loads(answer.stdout) == json.loads((run / "result.json").read_text())


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
    ]
    answer = runner.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "ε of this context" in answer.stdout
    assert (tmp_path / "my.safetensors").exists()


def test_help_says_what_an_argument_is() -> None:
    assert "folder of results" in runner.invoke(app, ["report", "--help"]).stdout


def test_help_teaches_by_example() -> None:
    for command in ("quickstart", "plan", "train", "evaluate", "personalize", "report"):
        assert f"sottovoce {command}" in runner.invoke(app, [command, "--help"]).stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plan", "epsilom=3"], "did you mean 'epsilon'"),
        (["plan", "dataset=mnits"], "did you mean 'mnist'"),
        (["plan", "coefficients=999999"], "at most 85822"),
        (["plan", "gradient_records=9999"], "at most 400"),
        (["plan", "a.toml", "b.toml"], "second plan file"),
        (["plan", "missing.toml"], "no plan at missing.toml"),
        (["plan", "dataset=mnist", "context_records=5000"], "set context_records to at most"),
        (["plan", "dataset=mnist", "records_per_client=100000"], "lower participants"),
        (["evaluate", "nowhere[/]"], "nowhere[/]"),
        (["evaluate", "nowhere", "--device", "cud"], "did you mean 'cuda'"),
        (["evaluate", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["data", "fetch", "imagenet"], "no public dataset"),
    ],
)
def test_mistakes_get_one_line_that_says_what_to_do(monkeypatch, capsys, words: list[str], hint: str) -> None:
    assert hint in failing(monkeypatch, capsys, *words)


def test_a_run_is_not_overwritten(run: Path, monkeypatch, capsys) -> None:
    assert "--resume" in failing(monkeypatch, capsys, "train", *SETTINGS, "--out", str(run))


def test_a_damaged_model_is_refused(run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("plan.toml", "result.json"):
        (broken / name).write_bytes((run / name).read_bytes())
    (broken / "model.safetensors").write_bytes(b"garbage")
    assert "damaged" in failing(monkeypatch, capsys, "evaluate", str(broken))
