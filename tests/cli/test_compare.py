"""`sottovoce compare` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli import rehearsals
from sottovoce.cli.application import app
from sottovoce.plan import Plan
from tests.data.hospitals import folder
from tests.run.test_rehearsal import site

from .conftest import Failing

runner = CliRunner()


def test_compare_prints_rows_and_writes_a_page(tmp_path: Path) -> None:
    hospitals = folder(tmp_path / "hospitals", north=site(1, 90, 30), south=site(2, 60, -30))
    words = ["compare", f"dataset={hospitals}", "epsilon=4", "rounds=2", "--repeats", "2"]
    answer = runner.invoke(app, [*words, "--out", str(tmp_path / "c"), "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert {"alone", "shared", "blend", "home_alone", "finished"} < set(found["rows"])
    assert found["rows"]["blend"]["future"] is None
    assert (tmp_path / "c" / "compare.html").exists()
    shown = runner.invoke(app, [*words, "--out", str(tmp_path / "d")]).stdout
    assert "by joining" in shown
    assert "alone at home" in shown
    assert "not covered by ε" in shown


def test_the_bar_of_a_rehearsal_ends_with_the_last_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int, str]] = []

    @contextmanager
    def progress(doing: str, **_: object) -> Iterator[Callable[[int, int, str], None]]:
        yield lambda *said, **_: told.append(said)

    monkeypatch.setattr(rehearsals, "progress", progress)
    hospitals = folder(tmp_path / "hospitals", north=site(1, 60, 30), south=site(2, 60, -30))
    words = ["compare", f"dataset={hospitals}", "epsilon=4", "--repeats", "1", "--out", str(tmp_path / "c")]
    answer = runner.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    rounds = json.loads((tmp_path / "c" / "compare.json").read_text())["rounds"]
    assert rounds > Plan.load(overrides={"dataset": str(tmp_path / "hospitals")}).rounds
    assert len(told) == 3 * rounds
    assert {done for done, _, _ in told} == {0, 1, 2}
    assert told[-1] == (2, 3, f"blend, round {rounds}")


def test_compare_refuses_the_folder_of_a_run_and_leaves_it_as_it_is(tmp_path: Path, failing: Failing) -> None:
    hospitals = folder(tmp_path / "hospitals", north=site(1, 60, 30), south=site(2, 60, -30))
    run = tmp_path / "run"
    words = [f"dataset={hospitals}", "preset=best", "epsilon=4", "rounds=2"]
    answer = runner.invoke(app, ["train", *words, "--out", str(run)])
    assert answer.exit_code == 0, answer.output
    before = sorted(path.name for path in run.iterdir())
    assert "holds a run: choose another folder" in failing("compare", *words, "--out", str(run))
    assert sorted(path.name for path in run.iterdir()) == before


def test_compare_refuses_in_a_line(tmp_path: Path, failing: Failing) -> None:
    said = failing("compare", "dataset=mnist-small", "preset=tuned", "--out", str(tmp_path / "c"))
    assert "method=blend" in said
