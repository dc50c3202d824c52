"""What an audit found, in words, as a table and as a picture."""

from __future__ import annotations

from typing import Any

import pytest

from sottovoce.plan.catalog import PLACES
from sottovoce.report import promise
from sottovoce.report.table import plain

GAME: dict[str, Any] = {
    "pair": "worst",
    "runs": 400,
    "wrong": 80,
    "mu": 1.666,
    "epsilon": 8.0,
    "epsilon_lower": 6.6,
    "epsilon_counted": 1.8,
    "curve": [[0.0, 1.0], [0.2, 0.21], [1.0, 0.0]],
    "faults": [],
}
CANARIES: dict[str, Any] = {
    "pair": "canaries",
    "runs": 1,
    "canaries": 400,
    "guesses": 120,
    "wrong": 7,
    "epsilon": 8.0,
    "epsilon_lower": 2.1,
}
FOUND: dict[str, Any] = {
    "dataset": "<toy>",
    "preset": "best",
    "noise": "client",
    "games": [GAME],
    "releases": [{"kind": "gradient", "place": "client", "charged": 0.0025, "ratio": 0.87}],
    "faults": [],
}


def test_a_game_is_told_in_one_sentence() -> None:
    assert " ".join(promise.sentence(GAME).split()) == (
        "The worst pair: guessed right 320 of 400 times (80.0 %), which certifies ε ≥ 6.6 (95 %; 1.8 by "
        "counting alone); ε = 8 is charged."
    )
    assert "One run with 400 canaries: 113 of 120 guesses were right" in promise.sentence(CANARIES)


def test_what_noises_have_in_common_is_told_in_one_sentence() -> None:
    common = {"pairs": 66, "common": {"rounds": -0.0214, "runs": 0.019}, "faults": []}
    told = promise.sentences({"common": common, "games": [GAME]})
    assert told[1] == (
        "Noise of releases, each against all others (66 pairs): correlations of 0.021 between rounds, 0.019 "
        "between runs, as chance makes them."
    )
    assert "more than chance explains" in promise.sentences({"common": {**common, "faults": ["that"]}})[0]
    assert "0.021 between rounds" in promise.audit_page({**FOUND, "common": common})


def test_the_curve_shows_what_was_measured_beside_what_is_promised() -> None:
    chart = promise.curve(FOUND)
    assert [name for name, _ in chart.legend] == ["promised: no test is below", "measured, the worst pair"]
    drawn = promise.audit_picture(FOUND)
    assert drawn.startswith("<svg")
    assert "false positives" in drawn
    assert not promise.curve({**FOUND, "games": [CANARIES]}).marks


def test_the_page_escapes_names_and_shows_faults_first() -> None:
    text = promise.audit_page({**FOUND, "faults": ["a gradient moved 3 times as far", "another"]})
    assert "&lt;toy&gt;" in text
    assert "<toy>" not in text
    assert "The promise is broken: a gradient moved 3 times as far (and 1 more)." in text
    assert "Nothing was found that breaks the promise." in promise.audit_page(FOUND)


@pytest.mark.parametrize("place", PLACES)
def test_the_page_calls_the_place_of_noise_as_the_catalog_does(place: str) -> None:
    assert f"<li>{PLACES[place].phrase}</li>" in promise.audit_page({**FOUND, "noise": place})


def test_tables_are_there_where_there_is_something_to_tell() -> None:
    releases = promise.releases_table(FOUND)
    assert releases is not None
    assert releases.rows == [["gradient", "client", "0.0025", "0.8700", "–"]]
    [row] = FOUND["releases"]
    ordered = promise.releases_table({**FOUND, "releases": [{**row, "order": 6.4e-14}]})
    assert ordered is not None
    assert plain(ordered.rows[0][-1]) == "6.4 × 10⁻¹⁴"
    assert promise.releases_table({"faults": []}) is None
    ledger = {"clients": [{"client": "north", "stated": 8.0, "recomputed": 8.0001}]}
    recount = promise.recount_table({"ledger": ledger})
    assert recount is not None
    assert recount.rows == [["north", "8.0000", "8.0001"]]
