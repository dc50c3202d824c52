"""The plain entry: needs no package beyond torch, numpy and safetensors, and stops and continues as told."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from studies.cells import open_cells
from studies.summary import read_lines

from studies import standalone

BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "numba", "cryptography", "platformdirs"):
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
import studies.standalone
"""


def test_the_plain_entry_imports_on_a_machine_with_little_installed() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)


def test_the_plain_entry_makes_what_is_missing_and_skips_what_is_known(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standalone, "open_cells", partial(open_cells, folder=tables))
    common = ["--experiments", "tiny", "--epsilon", "8", "--seeds", "41", "--jobs", "1"]
    first = ["--only", "Ours", "--out", str(tmp_path / "a")]
    assert standalone.main([*common, *first, "--minutes", "0"]) == 1
    assert "1 runs are left" in capsys.readouterr().out
    assert standalone.main([*common, *first]) == 0
    [line] = read_lines([tmp_path / "a" / "summary.jsonl"])
    assert line["cell"] == "tiny/mnist-small/Ours/epsilon=8"
    known = ["--known", str(tmp_path / "a" / "summary.jsonl"), "--out", str(tmp_path / "b")]
    assert standalone.main([*common, "--only", "Ours", *known]) == 0
    assert "1 runs, 0 to make" in capsys.readouterr().out


def test_a_wrong_experiment_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert standalone.main(["--experiments", "tables", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: unknown experiment")
