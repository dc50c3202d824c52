"""What newcomers did with data of their own and stumbled over, done again, command by command."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor
from typer.testing import CliRunner

from sottovoce.cli.application import app
from tests.data.hospitals import HEADER, folder, other_rows

from .conftest import Failing

runner = CliRunner()
MAP = "tests.cli.test_newcomers:pairs"
AGREED = """task = "classes"
[target]
column = "ill"
values = ["no", "yes"]
[columns.age]
kind = "number"
low = 0
high = 120
[columns.sex]
kind = "category"
values = ["f", "m"]
"""
TOKENS = 'task = "classes"\n[target]\ncolumn = "y"\nvalues = [0, 1]\n'
TOKENS += '[array]\nkind = "tokens"\nshape = [6]\nvocabulary = 9\n'


def pairs(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A feature map of one's own."""
    return lambda x: (x[:, :, None] * x[:, None, :]).flatten(1)


def invoked(*words: object) -> str:
    answer = runner.invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def site(path: Path, seed: int, records: int = 60) -> None:
    rng = np.random.default_rng(seed)
    ages, sexes = rng.integers(20, 90, records), rng.choice(["f", "m"], records)
    rows = zip(ages, sexes, strict=True)
    ill = ["yes" if age + 20 * (sex == "m") > 65 else "no" for age, sex in rows]
    lines = [f"p{i:03},{ages[i]},{sexes[i]},{ill[i]}\n" for i in range(records)]
    path.write_text("id,age,sex,ill\n" + "".join(lines))


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("clinics")
    (at / "records.toml").write_text(AGREED)
    for seed, name in enumerate(("north", "south", "west")):
        site(at / f"{name}.csv", seed)
    return at


def test_a_map_of_ones_own_is_named_in_every_command_that_needs_it(
    clinics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Failing
) -> None:
    """B3: `models` and `predict` asked for --features, which neither had."""
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    run, models, own = tmp_path / "run", tmp_path / "models", ("--features", MAP)
    chosen = (f"features={MAP}", "feature_size=0", "rounds=2", "channel=direct", "future_clients=west")
    invoked("train", f"dataset={sites}", *chosen, "--out", run, "--json")
    assert "--features" in failing("models", str(run), "--out", str(models))
    assert "--features" in failing("evaluate", str(run))
    invoked("evaluate", run, *own, "--json")
    invoked("models", run, "--out", models, *own, "--json")
    north = models / "north.safetensors"
    to = ("--out", tmp_path / "p.csv")
    assert "--features" in failing("predict", str(north), "--data", str(sites / "west.csv"), *map(str, to))
    told = json.loads(invoked("predict", north, "--data", sites / "west.csv", *to, *own, "--json"))
    assert told["records"] == 60
    at_home = ("--out", tmp_path / "home.safetensors")
    invoked("finish", north, "--data", sites / "north.csv", *at_home, *own, "--json")
    mine = ("--data", sites / "west.csv", "--out", tmp_path / "west.safetensors")
    assert "--features" in failing("personalize", str(run), *map(str, mine), "--yes")
    invoked("personalize", run, *mine, "--yes", *own, "--json")


def test_a_newcomer_without_labels_gets_its_model_and_one_line_about_the_rest(
    clinics: Path, tmp_path: Path
) -> None:
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    later = shutil.move(sites / "west.csv", tmp_path / "later.csv")
    run, out = tmp_path / "run", tmp_path / "later.safetensors"
    invoked("train", f"dataset={sites}", "rounds=2", "channel=direct", "--out", run, "--json")
    rows = [line.rpartition(",")[0] for line in Path(later).read_text().splitlines()]
    Path(later).write_text("\n".join(rows) + "\n")
    words = ["personalize", str(run), "--data", str(later), "--out", str(out), "--yes", "--finish", "--json"]
    ended = runner.invoke(app, words)
    assert ended.exit_code == 1, ended.output
    assert json.loads(ended.stdout)["model"] == str(out)
    assert "is written, but was not finished at home: later has no column" in str(ended.exception)


def test_tokens_for_a_model_of_numbers_are_refused_in_words(tmp_path: Path, failing: Failing) -> None:
    """M1: `check` said ok, and `train` ended in a raw error about dtypes."""
    (tmp_path / "records.toml").write_text(TOKENS)
    for seed, name in enumerate("ab"):
        x = np.random.default_rng(seed).integers(0, 9, (30, 6))
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x[:, 0] > 4).astype(int))
    invoked("check", tmp_path)
    run = ("--out", str(tmp_path / "run"))
    said = failing("train", f"dataset={tmp_path}", "features=none", "model=linear", *run)
    assert "these records are tokens: choose a model that embeds them" in said
    assert "dtype" not in said


def test_sites_that_know_no_category_are_not_called_ok(clinics: Path, tmp_path: Path) -> None:
    """M2: a site whose category column was all unknown was "ok"."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    (sites / "lyon.csv").write_text(
        (clinics / "west.csv").read_text().replace(",f,", ",femme,").replace(",m,", ",homme,")
    )
    (sites / "west.csv").unlink()
    shown = invoked("check", sites)
    assert "warning" in next(line for line in shown.splitlines() if line.strip().startswith("lyon"))
    assert "lyon: column 'sex' has 60 values (100% of all) that records.toml does not name" in shown


def test_sites_in_other_formats_are_read_or_refused_but_never_dropped(
    clinics: Path, tmp_path: Path, failing: Failing
) -> None:
    """M2: .tsv and .xlsx were passed over, and `train` dropped them without a word."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    west = (sites / "west.csv").read_text()
    (sites / "west.csv").unlink()
    (sites / "west.tsv").write_text(west.replace(",", "\t"))
    assert len(json.loads(invoked("check", sites, "--json"))["sites"]) == 3
    (sites / "west.tsv").rename(sites / "west.dat")
    for command in (("check", str(sites)), ("plan", f"dataset={sites}")):
        assert "west.dat is not read: save it as one of .csv" in failing(*command)


def test_a_copied_file_is_no_second_client(clinics: Path, tmp_path: Path, failing: Failing) -> None:
    """M2: a copy had an account of its own: two budgets for the same patients."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    shutil.copy(sites / "north.csv", sites / "north (2).csv".replace("(2)", "2"))
    for command in (("check", str(sites)), ("train", f"dataset={sites}", "--out", str(tmp_path / "run"))):
        assert "north 2 holds the same records as north" in failing(*command)
    assert not (sites / "ledger.sqlite").exists()


def test_a_file_that_was_copied_and_continued_is_noticed(tmp_path: Path) -> None:
    """The same patients under two names, in another order and format, and some new ones."""
    sites = tmp_path / "sites"
    invoked("data", "copy", "heart", sites)
    assert json.loads(invoked("check", sites, "--json"))["alike"] == []
    header, *rows = (sites / "cleveland.csv").read_text().splitlines()
    lines = [header, *rows[::-1][:200], *(sites / "budapest.csv").read_text().splitlines()[1:20]]
    (sites / "cleveland 2.tsv").write_text("\n".join(lines).replace(",", "\t") + "\n")
    shown = invoked("check", sites)
    assert "cleveland 2 has 200 records that cleveland has too" in shown
    assert "budapest has" not in shown


def test_predict_keeps_ids_and_counts_what_the_model_does_not_know(clinics: Path, tmp_path: Path) -> None:
    """M2 and minor points: unknown categories at `predict` were silent, and predictions had no ids."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    invoked("train", f"dataset={sites}", "rounds=2", "channel=direct", "--out", tmp_path / "run", "--json")
    invoked("models", tmp_path / "run", "--out", tmp_path / "models", "--json")
    new, out = tmp_path / "new.csv", tmp_path / "p.csv"
    new.write_text("id,age,sex\n007,40,f\n008,41,x\n009,old,\n")
    words = ["predict", str(tmp_path / "models/north.safetensors"), "--data", str(new), "--out", str(out)]
    answer = runner.invoke(app, [*words, "--keep", "id", "--keep", "sex"])
    assert answer.exit_code == 0, answer.output
    assert "column 'sex' has 1 value that the model does not know: they count as other" in answer.stderr
    assert "column 'age' has 1 value that cannot be read: they count as missing" in answer.stderr
    with out.open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["id", "sex", "probability_no", "probability_yes", "decision"]
    assert [row[:2] for row in rows[1:]] == [["007", "f"], ["008", "x"], ["009", ""]]
    told = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert (told["unknown"], told["unreadable"]) == ({"sex": 1}, {"age": 1})


def test_predict_does_not_speak_of_a_file_that_is_not_there(
    clinics: Path, tmp_path: Path, failing: Failing
) -> None:
    """Minor: `predict` advised to change a records.toml."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    invoked("train", f"dataset={sites}", "rounds=2", "channel=direct", "--out", tmp_path / "run", "--json")
    invoked("models", tmp_path / "run", "--out", tmp_path / "models", "--json")
    model, out = str(tmp_path / "models/north.safetensors"), ("--out", str(tmp_path / "p.csv"))
    (tmp_path / "new.csv").write_text("sex\nf\n")
    said = failing("predict", model, "--data", str(tmp_path / "new.csv"), *out)
    assert "new has no column 'age': add it" in said
    assert "records.toml" not in said


def test_a_name_is_refused_for_what_is_wrong_with_it(tmp_path: Path, failing: Failing) -> None:
    """Minor: 'G\\xf6ttingen …' blamed the umlaut for a parenthesis."""
    folder(tmp_path, **{"Göttingen (alt).csv": HEADER + other_rows(1)})
    said = failing("check", str(tmp_path))
    assert "Göttingen (alt).csv cannot name a client (for '(', ')'): rename it" in said


def test_numbers_where_names_were_agreed_on_come_with_the_hint(tmp_path: Path, failing: Failing) -> None:
    """Minor: an npz with whole numbers as labels was refused without one; what the hint says works."""
    head = 'task = "classes"\n[target]\ncolumn = "y"\nvalues = ["benign", "malignant"]\n'
    (tmp_path / "records.toml").write_text(head + "[array]\nshape = [3]\n")
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 3)), y=np.array([0, 0, 0, 0, 1, 1]))
    assert 'add aliases = { "0" = "benign", … } to [target]' in failing("check", str(tmp_path))
    aliases = 'aliases = { "0" = "benign", "1" = "malignant" }\n'
    (tmp_path / "records.toml").write_text(head + aliases + "[array]\nshape = [3]\n")
    assert json.loads(invoked("check", tmp_path, "--json"))["sites"][0]["targets"] == {
        "benign": 4,
        "malignant": 2,
    }


def test_models_of_what_is_no_run_speak_of_no_resuming(
    clinics: Path, tmp_path: Path, failing: Failing
) -> None:
    """Minor: `models FOLDER` advised --resume."""
    said = failing("models", str(clinics), "--out", str(tmp_path / "models"))
    assert "holds no run" in said
    assert "resume" not in said


def test_a_method_asks_for_no_key_that_it_does_not_use(clinics: Path) -> None:
    """Minor: `method=global` complained."""
    assert (
        json.loads(invoked("plan", f"dataset={clinics}", "method=global", "channel=direct", "--json"))[
            "plan"
        ]["method"]
        == "global"
    )


def test_one_client_is_told_that_it_learns_from_nobody(clinics: Path, tmp_path: Path) -> None:
    """Minor: a folder with one client trained without a word."""
    (tmp_path / "records.toml").write_text(AGREED)
    shutil.copy(clinics / "north.csv", tmp_path)
    assert "learns from nobody" in invoked("plan", f"dataset={tmp_path}", "channel=direct")
    trained = invoked("train", f"dataset={tmp_path}", "rounds=1", "channel=direct", "--out", tmp_path / "run")
    assert "learns from nobody" in trained
    assert "learns from nobody" not in invoked("plan", f"dataset={clinics}", "channel=direct")


def test_a_report_calls_classes_by_name_and_says_nothing_of_masks(clinics: Path, tmp_path: Path) -> None:
    """Minor: the confusion was labelled 0 and 1, and a hospital read of masks and of ‖h‖² gain."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    invoked("train", f"dataset={sites}", "rounds=2", "channel=direct", "--out", tmp_path / "run", "--json")
    page = (tmp_path / "run" / "report.html").read_text()
    matrix = page[page.index('class="confusion"') :]
    assert '<th scope="col">no</th><th scope="col">yes</th>' in matrix
    assert '<th scope="row">yes</th>' in matrix
    assert "masked to own" not in page
    assert "Gain ‖h‖²" not in page


def test_what_was_looked_up_is_said_wherever_its_model_goes(clinics: Path, tmp_path: Path) -> None:
    """A node asks its owner; who joins later is told: the agreement was published before."""
    sites = Path(shutil.copytree(clinics, tmp_path / "sites"))
    (sites / "records.toml").unlink()
    later = shutil.move(sites / "west.csv", tmp_path / "later.csv")
    invoked("draft", sites / "north.csv", "--look", "--target", "ill", "--unit", "id")
    run, models, mine = tmp_path / "run", tmp_path / "models", tmp_path / "later.safetensors"
    invoked("train", f"dataset={sites}", "rounds=2", "channel=direct", "--out", run, "--json")
    invoked("models", run, "--out", models, "--json")
    said = "kind and low and high of age; kind and values of sex: looked up in records"
    shown = invoked("personalize", run, "--data", later, "--out", mine, "--yes")
    assert said in " ".join(shown.split())
    for card in (models / "north.card.md", tmp_path / "later.card.md"):
        assert said in card.read_text(encoding="utf-8")
    pytest.importorskip("onnx")
    invoked("export", mine, "--onnx", tmp_path / "later.onnx")
    assert said.encode() in (tmp_path / "later.onnx").read_bytes()
