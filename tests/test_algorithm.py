"""Algorithm 1 on its page: it runs as it is written, and is what the simulator does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.models.tensors import load_tensors
from sottovoce.run.training import train

PAGE = Path(__file__).parents[1] / "docs" / "algorithm.md"

pytestmark = pytest.mark.timeout(1800)  # kernels of the channel may have to be compiled, on a busy machine


def listing() -> str:
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


def test_the_loop_has_forty_lines() -> None:
    lines = [
        line for line in listing().splitlines() if line.strip() and not line.startswith(("import", "from"))
    ]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 110


def test_the_page_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(listing(), str(PAGE), "exec"), {"__name__": "page"})
    said = capsys.readouterr().out.splitlines()
    assert [re.sub(r"[\d.]+ %", "… %", line)[:20] for line in said] == [
        "future-0: … % right,",
        "future-1: … % right,",
    ]
    assert (tmp_path / "ledger.sqlite").exists()


def test_the_simulator_makes_the_same_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded, and under the simulator's name for such a run, both draw the same noise."""
    monkeypatch.chdir(tmp_path)
    text = listing().replace("overrides={", 'overrides={"seeded": True, ')
    text = text.replace('name, secret = "algorithm-1"', "name, secret = blueprint.plan.digest()")
    found: dict[str, Any] = {"__name__": "page"}
    exec(compile(text, str(PAGE), "exec"), found)
    train(found["plan"], tmp_path / "run")
    simulated, _ = load_tensors(tmp_path / "run" / "model.safetensors")
    for name, value in found["server"].state().items():
        assert torch.equal(simulated[name], value), name
