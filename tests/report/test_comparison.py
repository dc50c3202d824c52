"""The page of a rehearsal is made of its file, and says who gains and who loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.report.comparison import clients_table, gain, read_comparison, write_comparison


def found(clients: int = 3) -> dict[str, Any]:
    names = [f"site-{i}" for i in range(clients)]
    sites = [{"name": name, "role": "participant", "size": 100 + i} for i, name in enumerate(names)]
    rows = {
        row: {
            "participants": value,
            "per_client": {name: value + i for i, name in enumerate(names)},
            "future": None if row == "alone" else 50.0,
            "future_per_client": {"west": None if row == "alone" else 50.0},
            "epsilon": 4.0,
        }
        for row, value in (("alone", 60.0), ("shared", 55.0), ("blend", 61.5))
    }
    rows["blend"]["per_client"]["site-0"] = 50.0
    return {
        "sottovoce": "0.2", "dataset": "data/hospitals", "metric": "accuracy", "rounds": 40, "epsilon": 4.0,
        "delta": 1e-5, "clients": [*sites, {"name": "west", "role": "future", "size": 50}], "rehearsal": True,
        "warning": "A choice made by looking at it is not covered by ε.", "rows": rows,
    }  # fmt: skip


def test_gains_are_against_the_better_of_alone_and_shared() -> None:
    assert gain(found(), "site-1") == pytest.approx(1.5)
    assert gain(found(), "site-0") == pytest.approx(-10)
    assert gain(found(), "west", "future_per_client") == pytest.approx(0)


def test_the_table_has_every_client_the_largest_first_and_the_mean() -> None:
    assert "units (patient)" in clients_table({**found(), "unit": "patient"}).markdown()
    text = clients_table(found()).markdown()
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert [line.split("|")[1].strip() for line in lines] == [
        "site-2", "site-1", "site-0", "west (future)", "mean of participants",
    ]  # fmt: skip
    assert "-10.0" in lines[2]
    assert "+1.5" in lines[-1]


@pytest.mark.parametrize("clients", [3, 40])
def test_page_and_picture_are_written(tmp_path: Path, clients: int) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(found(clients)))
    page = write_comparison(tmp_path).read_text()
    assert "not covered by ε" in page
    assert "site-2" in page
    assert "<script src" not in page
    assert (tmp_path / "compare.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("text", ["", "{}", '{"rows": {"alone": {}}}', "[]"])
def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(SottovoceError, match="does not exist"):
        read_comparison(tmp_path / "compare.json")
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(SottovoceError, match="damaged"):
        read_comparison(tmp_path / "compare.json")
