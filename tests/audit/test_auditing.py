"""An audit as Python calls it: what it tells, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import sottovoce.audit
from sottovoce.audit import SEEDED, audit
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan

from .toys import BEST, records


@pytest.fixture(autouse=True)
def few_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sottovoce.audit, "FAMILIES", 2)


def plan(folder: Path, **keys: object) -> Plan:
    few = {"channel": "direct", "rounds": 2, "seeded": False}
    return Plan.load(overrides={"dataset": records(folder), **BEST, **few, **keys})


@pytest.mark.usefixtures("repeatable")
def test_both_pairs_are_played_and_the_worst_is_the_bound(tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    found = audit(plan(tmp_path), 20, progress=lambda now, of: done.append((now, of)))
    assert [game["pair"] for game in found["games"]] == ["worst", "given"]
    assert found["epsilon_lower"] == found["games"][0]["epsilon_lower"]
    assert found["epsilon"] == pytest.approx(8.0)
    assert done[:2] == [(0, 20), (1, 20)]
    assert (20, 20) in done
    assert {row["kind"] for row in found["releases"]} == {
        "context shares",
        "gradient",
        "confusion",
        "calibration",
    }
    assert found["largest"] == max(row["ratio"] for row in found["releases"]) <= 1 + 1e-9
    assert found["faults"] == []


def test_one_run_has_canaries_and_a_seed_protects_nobody(tmp_path: Path) -> None:
    found = audit(plan(tmp_path, seeded=True), 1)
    [game] = found["games"]
    assert game["pair"] == "canaries"
    assert game["runs"] == 1
    assert found["faults"] == [SEEDED]


@pytest.mark.parametrize(
    ("runs", "keys", "said"),
    [
        (5, {}, "5 runs are too few"),
        (-1, {}, "give 1, or 100 and more"),
        (0, {"epsilon": float("inf"), "seeded": True}, "set a finite epsilon"),
        (0, {"dataset": "nowhere.npz"}, "nowhere.npz"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    tmp_path: Path, runs: int, keys: dict[str, object], said: str
) -> None:
    with pytest.raises(SottovoceError, match=said) as refused:
        audit(plan(tmp_path, **keys), runs)
    assert len(str(refused.value).splitlines()) == 1
