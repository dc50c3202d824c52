"""From a folder of CSV files without a records.toml to predictions: the page of docs/data.md as it stands."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
LINES = 66
"""Of one page as printers count them: commands and all that they say."""

pytestmark = pytest.mark.timeout(1800)  # kernels of the channel may have to be compiled, on a busy machine


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def table(path: Path, seed: int, patients: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["patient,age,pressure,sex,note,ill"]
    for patient in range(patients):
        age, pressure, sex = rng.integers(18, 100), rng.integers(90, 200), rng.choice(["f", "m"])
        ill = "yes" if age + pressure + rng.normal(0, 20) > 200 else "no"
        lines.append(f"p{patient:03},{age},{pressure if patient % 9 else ''},{sex},free text,{ill}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_page_goes_from_a_folder_of_tables_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("clinics").mkdir()
    for seed, name in enumerate(("east", "north", "west")):
        table(Path("clinics", f"{name}.csv"), seed, 100 + 20 * seed)
    table(Path("new.csv"), 9, 12)
    Path("codebook.csv").write_text(block("csv"), encoding="utf-8")
    said = []
    for line in block("bash").splitlines():
        name, *words = shlex.split(line)
        assert name == "sottovoce"
        answer = CliRunner().invoke(app, words)
        assert answer.exit_code == 0, f"{line}: {answer.output}\n{answer.exception}"
        said += [f"$ {line}", *answer.stdout.splitlines()]
    assert len(said) <= LINES, "\n".join(said)
    with Path("predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["patient"] for row in rows] == [f"p{i:03}" for i in range(12)]
    assert {row["decision"] for row in rows} <= {"no", "yes"}
