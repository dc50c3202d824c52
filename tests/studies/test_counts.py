"""The page says in how many cells its promises hold, as the results have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from studies.counts import counts
from studies.real_tables import RESULTS


def test_the_page_says_in_how_many_cells_its_promises_hold() -> None:
    page = (Path(__file__).parents[2] / "docs" / "why-join.md").read_text(encoding="utf-8")
    assert counts(json.loads(RESULTS.read_text(encoding="utf-8"))) in page


def test_cells_in_which_a_promise_fails_are_named() -> None:
    def line(epsilon: float, published: float, gain: float) -> dict[str, Any]:
        loss = {"constant": 0.5, "published": published}
        found = {
            "table": "wine",
            "place": "client",
            "epsilon": epsilon,
            "loss": loss,
            "gain": gain,
            "own": 0.1,
        }
        return {
            **found,
            "gain_error": 0.001,
            "over_constant_error": 0.01,
            "pooled": 0.2,
            "picked": 0.4,
            "grid": 0.4,
        }

    found = counts([line(1.0, 0.6, 0.01), line(2.0, 0.3, -0.01), line(8.0, 0.44, 0.004)]).splitlines()
    told = [each.split(" | ")[1:] for each in found[2:12]]
    assert told[0] == ["2 of 3", "wine, client, ε = 1: +0.0100 ± 0.0010 |"]
    assert told[1][0] == "1 of 3"
    assert told[3] == ["0 of 1", "wine, client, ε = 1: +20.0 ± 1.0 % |"]
    assert told[4][0] == "2 of 2"
    assert told[5] == ["1 of 2", "wine, client, ε = 2 to 8: +0.1400 |"]
    assert told[6] == ["1 of 2", "wine, client, ε = 8: +10.0 % of 0.400 |"]
    assert told[7][0] == "1 of 2"
    assert found[-1].startswith("Geometric mean of published, ε = 2, 8, 32: -9.2 % against picked")
