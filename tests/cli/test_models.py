"""What comes out of a run, by command: a model for each participant, and predictions of a model."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from sottovoce.cli import main
from sottovoce.cli.application import app
from sottovoce.data import Description
from sottovoce.models.tensors import load_tensors, save_tensors
from sottovoce.personal import personal_model
from sottovoce.report.table import Table, number, percent, plain
from tests.data.hospitals import folder
from tests.run.test_rehearsal import site
from tests.small import SMALL, built, small_plan

from .conftest import Failing

runner = CliRunner()
AGREEMENT = """
task = "classes"
[target]
column = "kind"
values = ["plain", "grave"]
[array]
shape = [3]
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    facts = Description.parse(AGREEMENT).facts()
    plan = small_plan(model="linear", method="blend", context="public", coefficients=8, gradient_records=40)
    a = torch.randn(8, generator=torch.Generator().manual_seed(1))
    data = personal_model(built(plan, facts), a, run="0123", client="north", epsilon=3.5)
    (tmp_path / "north.safetensors").write_bytes(data)
    return tmp_path / "north.safetensors"


def test_predict_writes_a_file_and_counts_what_it_could_not_use(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=[[1.0, 2, 3], [1, 2, np.nan], [3, 2, 1]])
    words = [str(model), "--data", str(tmp_path / "new.npz"), "--out", str(tmp_path / "out.csv")]
    answer = runner.invoke(app, ["predict", *words, "--json"])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert (said["records"], said["unusable"], said["task"]) == (3, 1, "classes")
    assert said["columns"] == ["probability_plain", "probability_grave", "decision"]
    assert said["origin"]["client"] == "north"
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4
    assert "1 record could not be used" in answer.stderr
    shown = runner.invoke(app, ["predict", *words]).stdout
    assert "north" in shown
    assert "decided grave" in shown


def test_predict_refuses_in_a_line(model: Path, tmp_path: Path, failing: Failing) -> None:
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    out = ("--out", str(tmp_path / "out.csv"))
    assert "arrays" in failing("predict", str(model), "--data", str(tmp_path / "new.csv"), *out)
    assert "does not exist" in failing(
        "predict", str(tmp_path / "no"), "--data", str(tmp_path / "new.csv"), *out
    )
    assert "does not exist" in failing("predict", str(model), "--data", str(tmp_path / "no.npz"), *out)


def test_models_writes_a_file_for_each_participant(run: Path, tmp_path: Path) -> None:
    words = ["models", str(run), "--out", str(tmp_path / "models"), "--model", "tests.small:tiny"]
    answer = runner.invoke(app, [*words, "--json"])
    assert answer.exit_code == 0, answer.output
    rows = json.loads(answer.stdout)["models"]
    assert [row["client"] for row in rows] == [f"participant-{i}" for i in range(6)]
    assert all(Path(row["model"]).exists() for row in rows)
    one = runner.invoke(app, [*words, "--client", "participant-3"])
    assert one.exit_code == 0
    assert "participant-3" in one.stdout
    assert "participant-2" not in one.stdout


def test_models_refuses_in_a_line(run: Path, tmp_path: Path, failing: Failing) -> None:
    out = ("--out", str(tmp_path / "models"), "--model", "tests.small:tiny")
    assert "did you mean 'participant-3'?" in failing("models", str(run), *out, "--client", "participnt-3")
    assert "result.json" in failing("models", str(tmp_path), *out)
    (tmp_path / "file").write_text("")
    said = failing("models", str(run), "--out", str(tmp_path / "file"), "--model", "tests.small:tiny")
    assert "cannot create" in said


def test_models_of_dealt_records_are_not_finished_and_none_is_written(
    run: Path, tmp_path: Path, failing: Failing
) -> None:
    words = ("models", str(run), "--out", str(tmp_path / "models"), "--model", "tests.small:tiny")
    said = failing(*words, "--finish")
    assert "mnist-small is no folder here with a file for each participant" in said
    assert "'sottovoce finish' each where its records are (--finish)" in said
    assert not (tmp_path / "models").exists()


def test_finish_does_not_say_that_the_run_held_out_what_it_may_never_have_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sites = folder(Path("sites"), north=site(1, 60, 0), west=site(2, 60, 0))
    other = Path("other.csv")
    other.write_text(site(3, 50, 0))
    for words in (
        ["train", f"dataset={sites}", "rounds=1", "channel=direct", "--out", "run"],
        ["models", "run", "--out", "models"],
    ):
        assert runner.invoke(app, words).exit_code == 0
    words = ["finish", "models/north.safetensors", "--data", str(other), "--out", "h.safetensors"]
    answer = runner.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    shown = " ".join(answer.stdout.split())
    assert "on 10 records set aside" in shown
    assert "The run held these out if it trained on this file as it is now." in shown


def test_models_finished_at_home_say_for_each_site_what_finish_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    sites = folder(Path("sites"), north=site(1, 60, 0), west=site(2, 80, 0))
    words = ["train", f"dataset={sites}", "rounds=1", "channel=direct", "--out", "run"]
    assert runner.invoke(app, words).exit_code == 0
    west = Path("sites/west.csv")
    lines = west.read_text().splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ","
    lines[2:] = [line.replace(",f,", ",x,") for line in lines[2:]]
    west.write_text("\n".join(lines) + "\n")
    words = ["models", "run", "--out", "models", "--finish"]
    written = json.loads(runner.invoke(app, [*words, "--json"]).stdout)["models"]
    answer = runner.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    shown = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    for row in written:
        home, client = row["home"], row["client"]
        measured = (
            f"{number(each['loss'], zeros=True)} {percent(each['accuracy'])}"
            for each in home["rows"].values()
        )
        assert plain(" ".join([client, *measured])) in shown
        share, pull = home["chosen"]["share"], home["chosen"]["pull"]
        chosen = f"{share:g} {'∞' if pull is None else f'{pull:.3g}'}"
        [told] = [
            line for line in shown if line.startswith(f"{client} {chosen} {home['worth']['points']:+.1f}")
        ]
        assert told.endswith(f" {home['held_out']} {home['left_out']}")
    assert [row["home"]["left_out"] for row in written] == [0, 1]
    assert "log loss, accuracy" in answer.stdout
    assert "west: column 'sex' has 79 values that the model does not know" in answer.stderr
    assert "north: column" not in answer.stderr


def test_finish_notes_columns_that_say_nothing_to_the_model_as_predict_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(Path("sites"), north=site(1, 60, 0), west=site(2, 60, 0))
    for words in (
        ["train", "dataset=sites", "rounds=1", "channel=direct", "--out", "run"],
        ["models", "run", "--out", "models"],
    ):
        assert runner.invoke(app, words).exit_code == 0
    head, *lines = site(3, 40, 0).splitlines()
    cells = [line.split(",") for line in lines]
    cells = [["", "?" if i % 2 else row[1], "diverse", row[3]] for i, row in enumerate(cells)]
    Path("odd.csv").write_text("\n".join([head, *map(",".join, cells), ""]))
    data = ["models/north.safetensors", "--data", "odd.csv"]
    said = [
        runner.invoke(app, ["finish", *data, "--out", "h.safetensors"]),
        runner.invoke(app, ["predict", *data, "--out", "p.csv"]),
    ]
    for answer in said:
        assert answer.exit_code == 0, answer.output
        assert "column 'sex' has 40 values that the model does not know: they count as other" in answer.stderr
        assert "column 'pressure' has 20 values that cannot be read: they count as missing" in answer.stderr
    assert "column 'age' is empty in every record" in said[0].stderr


def test_finish_tells_rows_and_worth_and_writes_a_file_of_its_owners(model: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    np.savez(tmp_path / "own.npz", x=x, kind=np.where(x[:, 0] > 0, "plain", "grave"))
    home = tmp_path / "north.home.safetensors"
    words = ["finish", str(model), "--data", str(tmp_path / "own.npz"), "--out", str(home)]
    answer = runner.invoke(app, [*words, "--json"])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert list(said["rows"]) == ["constant", "alone", "published", "finished"]
    assert set(said["worth"]) == {"points", "low", "high"}
    assert home.stat().st_mode & 0o777 == 0o600
    shown = runner.invoke(app, words).stdout
    assert "joining" in shown
    assert "cross-validation" in shown


def test_a_home_model_predicts_and_is_not_finished_again(
    model: Path, tmp_path: Path, failing: Failing
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "own.npz", x=x, kind=np.where(x[:, 0] > 0, "plain", "grave"))
    data, home = ("--data", str(tmp_path / "own.npz")), str(tmp_path / "home.safetensors")
    runner.invoke(app, ["finish", str(model), *data, "--out", home])
    assert runner.invoke(app, ["predict", home, *data, "--out", str(tmp_path / "p.csv")]).exit_code == 0
    assert "home model" in failing("finish", home, *data, "--out", str(tmp_path / "again"))
    assert "published model" in failing("finish", str(model), *data, "--out", str(model))
    assert "records" in failing("finish", str(model), *data, "--out", str(tmp_path / "own.npz"))
    assert "does not exist" in failing("finish", str(tmp_path / "no"), *data, "--out", home)


def test_a_refused_finish_says_one_line_and_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((9, 3)), kind=np.full(9, "plain"))
    home = str(tmp_path / "home.safetensors")
    words = ["finish", str(model), "--data", str(tmp_path / "own.npz"), "--out", home]
    monkeypatch.setattr("sys.argv", ["sottovoce", *words])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "every record has the same target" in said.err


def test_no_epsilon_is_stated_for_a_home_model(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "own.npz", x=x, kind=np.where(x[:, 0] > 0, "plain", "grave"))
    data, home = ("--data", str(tmp_path / "own.npz")), str(tmp_path / "home.safetensors")
    runner.invoke(app, ["finish", str(model), *data, "--out", home])
    origins, said = [], []
    for file in (str(model), home):
        words = ["predict", file, *data, "--out", str(tmp_path / "p.csv")]
        said.append(runner.invoke(app, words).stdout)
        origins.append(json.loads(runner.invoke(app, [*words, "--json"]).stdout)["origin"])
    assert origins[0]["epsilon"] is not None
    assert origins[1] == {**origins[0], "epsilon": None, "noise": "nowhere"}
    assert [f"δ = {origins[0]['delta']:g}" in each for each in said] == [True, False]
    assert "none, it is a home model" in said[1]


def test_predict_never_writes_over_its_input(model: Path, tmp_path: Path, failing: Failing) -> None:
    (tmp_path / "new.csv").write_text("a\n1\n")
    before = (tmp_path / "new.csv").read_bytes()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "new.csv")
    for out in (tmp_path / "new.csv", link):
        said = failing("predict", str(model), "--data", str(tmp_path / "new.csv"), "--out", str(out))
        assert "holds the records" in said
    assert (tmp_path / "new.csv").read_bytes() == before


def test_a_clients_name_cannot_speak_to_the_terminal(run: Path, tmp_path: Path, failing: Failing) -> None:
    """A run directory comes from elsewhere: its names are shown, and never obeyed."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    tensors, metadata = load_tensors(copy / "model.safetensors")
    names = json.loads(metadata["names"])
    metadata["names"] = json.dumps(["\x1b[2J" + names[0], *names[1:]])
    save_tensors(copy / "model.safetensors", tensors, metadata)
    words = ["models", str(copy), "--out", str(tmp_path / "models"), "--model", SMALL["model"]]
    assert "names beyond all bounds" in failing(*words)
    shown = io.StringIO()
    Console(file=shown, force_terminal=True).print(
        Table(["\x1b]0;x\x07"], [["\x1b[2J"]], "\x9b2J").terminal()
    )
    for text in ("\x1b]0;x", "\x1b[2J", "\x07", "\x9b"):
        assert text not in shown.getvalue()
    assert r"\x1b[2J" in shown.getvalue()
    assert r"\x1b[2J" in failing("models", "no\x1b[2Jrun", "--out", str(tmp_path / "models"))


def test_a_threshold_decides_for_the_second_class(model: Path, tmp_path: Path, failing: Failing) -> None:
    np.savez(tmp_path / "new.npz", x=np.random.default_rng(2).normal(size=(40, 3)))
    words = ["predict", str(model), "--data", str(tmp_path / "new.npz"), "--out", str(tmp_path / "out.csv")]

    def decided(*more: str) -> list[tuple[float, str]]:
        assert runner.invoke(app, [*words, *more]).exit_code == 0
        lines = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
        return [(float(grave), decision) for _, grave, decision in lines]

    stated = sorted(p for p, _ in decided())
    for threshold in (stated[10] + 1e-4, stated[30] + 1e-4):
        rows = decided("--threshold", str(threshold))
        assert all((p >= threshold) == (decision == "grave") for p, decision in rows)
        assert len({decision for _, decision in rows}) == 2
    assert "between 0 and 1" in failing(*words, "--threshold", "1.5")


def test_export_writes_onnx_and_a_home_model_only_when_told(
    model: Path, tmp_path: Path, failing: Failing
) -> None:
    pytest.importorskip("onnx")
    out = tmp_path / "north.onnx"
    answer = runner.invoke(app, ["export", str(model), "--onnx", str(out), "--json"])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert (said["inputs"], said["outputs"]) == (["x"], ["probabilities", "decision"])
    assert out.exists()
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "own.npz", x=x, kind=np.where(x[:, 0] > 0, "grave", "plain"))
    home = tmp_path / "north.home.safetensors"
    finished = ["finish", str(model), "--data", str(tmp_path / "own.npz"), "--out", str(home)]
    assert runner.invoke(app, finished).exit_code == 0
    at_home = ["export", str(home), "--onnx", str(tmp_path / "home.onnx")]
    refused = failing(*at_home)
    assert "is a home model" in refused
    assert "--home" in refused
    assert not (tmp_path / "home.onnx").exists()
    shown = runner.invoke(app, [*at_home, "--home"])
    assert shown.exit_code == 0, shown.output
    assert "its owner alone" in shown.stdout
    assert "does not exist" in failing("export", str(tmp_path / "no.safetensors"), "--onnx", str(out))
