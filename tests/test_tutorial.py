"""The tutorial: its commands run in order as they are written, and the day costs what the page says.

Only `compare` is given a split instead of five.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sottovoce as package
from sottovoce import data
from sottovoce.cli.application import app
from sottovoce.personal import PersonalModel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial.md"
NOTEBOOK = ROOT / "docs/tutorial.ipynb"

pytestmark = pytest.mark.timeout(1800)  # kernels of the channel may have to be compiled, on a busy machine


def commands(page: Path) -> list[str]:
    """Lines of the page's blocks of commands, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def sottovoce(*words: str) -> str:
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, f"{words}: {answer.output}\n{answer.exception}"
    return answer.output


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after all commands of the page."""
    folder = tmp_path_factory.mktemp("day")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in commands(PAGE):
            name, *words = shlex.split(line)
            if name == "sottovoce":
                sottovoce(*words, *(["--repeats", "1"] if words[0] == "compare" else []))
            else:
                subprocess.run(["bash", "-ec", line], check=True, cwd=folder, capture_output=True)
    return folder


def test_every_participant_gets_a_model_and_new_patients_a_prediction(day: Path) -> None:
    sites = {path.stem for path in (day / "hospitals").glob("*.csv")}
    assert {path.stem for path in (day / "models").glob("*.safetensors")} == {*sites, "longbeach"}
    with (day / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20


def test_the_day_costs_what_the_page_says(day: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    [participant] = map(float, re.findall(r"has spent \*\*ε = ([\d.]+)\*\*", page))
    [newcomer] = map(float, re.findall(r"joins later \*\*ε = ([\d.]+)\*\*", page))
    content: dict[str, Any] = json.loads(
        sottovoce("ledger", "show", str(day / "hospitals/ledger.sqlite"), "--json")
    )
    spent = {client["client"]: client["epsilon"] for client in content["clients"]}
    own = json.loads(sottovoce("ledger", "show", str(day / "newcomer/longbeach.ledger.sqlite"), "--json"))
    assert max((client["epsilon"] for client in own["clients"]), default=0.0) == newcomer
    assert set(spent) == {"budapest", "cleveland", "switzerland"}
    assert max(spent.values()) == pytest.approx(participant, abs=0.005)
    assert min(spent.values()) == pytest.approx(participant, abs=0.05)


def test_the_newcomer_joins_without_a_label_and_finishes_at_home_with_forty(day: Path) -> None:
    assert "diagnosis" not in (day / "newcomer/longbeach.csv").read_text(encoding="utf-8")
    assert len((day / "newcomer/forty.csv").read_text(encoding="utf-8").splitlines()) == 41
    assert PersonalModel.read(day / "newcomer/longbeach.home.safetensors", home=True).home
    with (day / "newcomer/predictions.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 200


def test_the_rehearsal_charges_no_record_of_the_day(day: Path) -> None:
    assert not (data.SHIPPED / "heart/ledger.sqlite").exists()
    assert not (day / "runs/rehearsal/models").exists()


def test_the_notebook_tells_the_same_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run in order, as Jupyter would run them in docs/; what it cost is in its last names."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setattr(package, "compare", partial(package.compare, repeats=1))
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["predictions"]) == 20
    assert names["rehearsal"]["rehearsal"] is True
    assert names["joined"]["epsilon"] == 0
    assert names["home"]["rows"].keys() == {"constant", "alone", "published", "finished"}
    assert set(names["spent"]) == set(names["result"]["epsilon"]["per_client"])
    assert max(names["spent"].values()) == pytest.approx(4, abs=0.005)
    shutil.rmtree(names["folder"])
