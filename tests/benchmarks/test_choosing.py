"""Figures and numbers of docs/choosing.md are those that were measured; measuring works on a small scale."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import choosing

MEASURED = json.loads(choosing.MEASURED.read_text(encoding="utf-8"))
INDEX = json.loads(choosing.INDEX.read_text(encoding="utf-8"))
PAGE = (choosing.ROOT / "docs/choosing.md").read_text(encoding="utf-8")


def accuracy(**wanted: object) -> float:
    [row] = [row for row in MEASURED if wanted.items() <= row.items()]
    value: float = row["participants"]
    return value


def test_the_shown_figures_are_drawn_from_the_results(tmp_path: Path) -> None:
    for path in choosing.draw(MEASURED, INDEX, tmp_path):
        ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert f"(img/{path.name})" in PAGE
        if path.stem in ("choosing-rounds", "choosing-shares"):  # the others follow results/index.json too
            assert (choosing.IMAGES / path.name).read_text(encoding="utf-8") == path.read_text(
                encoding="utf-8"
            )


def test_the_page_states_what_was_measured() -> None:
    ways = [accuracy(sweep="epsilon", epsilon=2.0, individual=share) for share in (1.0, 0.0, -1.0)]
    rounds = [accuracy(sweep="rounds", epsilon=8.0, rounds=count) for count in (5, 20, 40, 100)]
    shares = [
        *(accuracy(sweep="individual", epsilon=2.0, individual=0.1), ways[2]),
        *(accuracy(sweep="individual", epsilon=8.0, individual=0.1), rounds[3]),
        *(accuracy(sweep="individual", epsilon=epsilon, individual=0.3) for epsilon in (2.0, 8.0)),
    ]
    settings, _, _ = PAGE.partition("\n## ")[2].partition("\n## The recipe")
    stated = [float(figure) for figure in re.findall(r"([\d.]+) %(?! more)", settings)]
    assert stated == pytest.approx([*ways, *rounds, *shares], abs=0.06)


@pytest.mark.slow
def test_a_setting_can_be_measured(tmp_path: Path) -> None:
    [row] = choosing.measure(tmp_path, [{"sweep": "rounds", "epsilon": 8.0, "rounds": 2}], seeds=[1])
    assert 25 < row["participants"] <= 100
