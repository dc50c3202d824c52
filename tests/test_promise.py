"""Figures that people decide by, in the pages about the promise and its price, are the accounting's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from sottovoce.privacy.accounting import epsilon, mu_squared

DOCS = Path(__file__).parents[1] / "docs"
DELTA = 1e-5


def rows(page: str, head: str) -> list[list[str]]:
    """Cells of the table of a page whose first line begins with `head`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text[text.index(f"| {head}") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def composed(runs: int, each: float) -> float:
    return epsilon(runs * mu_squared(each, DELTA, "exact"), DELTA, "exact")


def test_no_attacker_is_right_more_often_than_the_page_says() -> None:
    found = rows("promise.md", "ε (δ = 10⁻⁵)")
    assert len(found) == 5
    for budget, right, runs in found:
        mu = math.sqrt(mu_squared(float(budget), DELTA, "exact"))
        assert float(right) == pytest.approx(50 * (1 + math.erf(mu / 2 / math.sqrt(2))), abs=0.05)
        if runs != "–":
            assert composed(int(runs), 2) <= float(budget) * (1 + 1e-9) < composed(int(runs) + 1, 2)


def test_runs_on_the_same_records_cost_together_what_the_page_says() -> None:
    page = (DOCS / "before-the-first-run.md").read_text(encoding="utf-8")
    found = rows("before-the-first-run.md", "runs with all records")
    assert len(found) == 5
    for runs, *costs in found:
        for each, cost in zip((1, 2, 4, 8), costs, strict=True):
            assert float(cost) == pytest.approx(composed(int(runs), each), abs=0.005)
    [four_years] = re.findall(r"four years at ε = 2, the budget is ([\d.]+)", page)
    assert float(four_years) == pytest.approx(composed(4, 2), abs=0.005)


def test_noise_and_records_are_exchanged_as_the_page_says() -> None:
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    signals, records = rows("choosing.md", "ε (δ = 10⁻⁵)")

    def mu(budget: float, delta: float = DELTA) -> float:
        return math.sqrt(mu_squared(budget, delta, "exact"))

    for budget, signal, count in zip((0.5, 1, 2, 4, 8, 16), signals[1:], records[1:], strict=True):
        assert float(signal) == pytest.approx(mu(budget), abs=0.0006)
        assert int(count.replace(",", "")) == round(1000 * mu(4) / mu(budget))
    [more] = re.findall(r"10⁻⁶ costs (\d+) % more noise", page)
    assert int(more) == round(100 * (mu(4) / mu(4, 1e-6) - 1))
