"""Contenders take turns, points of a figure differ in one quantity, and a peer may be missing."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from benchmarks.contest import WARM_UP, Timing, contest
from benchmarks.scaling import SERIES, rows, setting

from benchmarks import environment
from studies.bench import round as bench

# Answers its number of turns so far as seconds, and writes its name down.
CONTENDER = """
import sys
name, log, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for turn in range(rounds):
    sys.stdin.readline()
    with open(log, "a") as lines:
        lines.write(name)
    print(turn, flush=True)
print("last words")
"""
BROKEN = "import sys; sys.stdin.readline(); print(1.0, flush=True)"


def test_contenders_take_turns_and_the_first_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    commands = {name: [sys.executable, "-c", CONTENDER, name, str(log)] for name in "ab"}
    outcome = Timing(WARM_UP + 1, "last words")
    assert contest(commands, cores=1, turns=3) == {"a": outcome, "b": outcome}
    assert log.read_text().startswith("ab" * (WARM_UP + 3))


def test_a_contender_that_stops_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = [sys.executable, "-c", CONTENDER, "a", str(tmp_path / "log")]
    outcomes = contest({"a": sound, "b": [sys.executable, "-c", BROKEN]}, cores=1, turns=2)
    assert outcomes.keys() == {"a"}
    assert "b stopped after 1 rounds" in capsys.readouterr().err


def test_a_peer_that_cannot_be_installed_is_none_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(environment.PEERS, "absent", ("no_such_module", "./no/such/package"))
    monkeypatch.setattr(environment, "_made", lambda _: Path(sys.executable))
    with caplog.at_level(logging.WARNING):
        assert environment.peer_python("absent") is None
    assert "absent cannot be installed" in caplog.text


@pytest.mark.parametrize("quantity", [name for name in SERIES if name != "clients"])
def test_settings_of_a_quantity_differ_in_it_alone(quantity: str) -> None:
    small, large = (setting(quantity, value) for value in SERIES[quantity][0][:2])
    sizes = [sum(p.numel() for p in chosen.module.parameters()) for chosen in (small, large)]
    differing = {
        "coefficients": small.plan != large.plan,
        "parameters": sizes[0] != sizes[1],
        "records": small.records != large.records,
        "clients": small.participants != large.participants,
    }
    assert [name for name, differs in differing.items() if differs] == [quantity]


def test_a_point_names_its_quantity_and_what_it_took() -> None:
    (row,) = rows("clients", (10,), ("structured",), turns=1)
    assert (row["clients"], row["series"]) == (10, "structured")
    assert row["round_ms"] > 0
    assert row["peak_mb"] > 0


def test_a_round_is_measured_against_its_gradients_and_against_polar() -> None:
    figures = bench.measure(rounds=1)
    assert {"round_over_gradients", "polar_over_direct"} <= figures.keys()
    assert all(figure > 0 for figure in figures.values())
