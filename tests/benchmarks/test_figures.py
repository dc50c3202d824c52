"""Figures of the benchmarks: well-formed, true to their data, and legible on light and dark pages."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import plots, scaling

SPACE = "{http://www.w3.org/2000/svg}"
GRADIENTS = {f"{name}_over_plain": 1.5 for name in ("structured", "unstructured", "identity", "vmap")}
OPACUS = {"opacus_over_structured": 4.0, "opacus_ghost_over_identity": 2.0}
ROWS = [
    {"records": 33 * n, "series": name, "round_ms": 20.0 * n, "peak_mb": 50.0 + n}
    for name in ("structured", "plain")
    for n in (1, 10, 100)
]
FIGURES: dict[str, Any] = {
    "gradients": {**GRADIENTS, **OPACUS, "records": 333},
    "memory": {"plain": 83.0, "structured": 43.0, "unstructured": 42.0, "identity": 58.0},
    "round": {"milliseconds": {"1 core": {"plain": 190.0, "direct": 180.0, "pfl": 205.0}}},
    "scaling": {"records": ROWS},
}


def _texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SPACE}text")]


@pytest.mark.parametrize("module", [plots, scaling])
def test_examples_in_the_documentation_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_every_result_is_drawn_and_what_was_not_measured_is_not(tmp_path: Path) -> None:
    for name in ("round", "scaling"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"figures": FIGURES[name]}))
    written = plots.draw(tmp_path, tmp_path)
    assert [path.name for path in written] == ["bench-round.svg", "bench-scaling-records.svg"]
    for path in written:
        assert "prefers-color-scheme: dark" in path.read_text()


def test_ratios_to_ours_are_drawn_as_ratios_to_a_plain_step() -> None:
    texts = _texts(plots.gradients(FIGURES["gradients"]))
    assert {"Opacus hooks, projected: 6.00", "Opacus ghost, whole model: 3.00"} <= set(
        texts
    )  # 4 × 1.5 and 2 × 1.5
    alone = _texts(plots.gradients({**GRADIENTS, "records": 333}))
    assert not any("Opacus" in text for text in alone)


def test_a_contender_that_was_left_out_has_no_bar() -> None:
    texts = _texts(plots.rounds(FIGURES["round"]))
    assert "pfl-research: 205 ms" in texts
    assert not any("Flower" in text for text in texts)


def test_lines_have_a_point_for_every_row_in_both_panels() -> None:
    picture = plots.scaling("records", ROWS)
    assert len(list(ElementTree.fromstring(picture).iter(f"{SPACE}circle"))) == 2 * len(ROWS)
    assert {"33", "330", "3,300", "structured", "plain steps"} <= set(_texts(picture))
    assert "<svg" in plots.memory(FIGURES["memory"])
