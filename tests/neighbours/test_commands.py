"""A file through a whole command: the same releases, of the same length, moved by at most their charges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from sottovoce.audit.sensitivity import Largest
from sottovoce.errors import SottovoceError

from . import spy
from .commands import through
from .worlds import Case, world


def here(notes: Path, command: list[str]) -> str:
    """The command in this process."""
    try:
        spy.run(notes, command)
    except SottovoceError as error:
        return str(error)
    except SystemExit as ended:
        return "" if not ended.code else "refused"
    return ""


TABLE = Case(".csv", "classes", True, "shares")
TOKENS = Case(".npz", "classes", False, "shares", array="tokens", model="bag")
SEEN = {
    "train, server": ("train", replace(TABLE, noise="server")),
    "train, shared": ("train", replace(TABLE, noise="shared")),
    "train, tokens": ("train", TOKENS),
    "personalize, shared": ("personalize", replace(TABLE, noise="shared")),
    "onboard": ("onboard", TABLE),
    "federation, client": ("federation", TABLE),
    "federation, server": ("federation", replace(TABLE, noise="server")),
    "federation, shared": ("federation", replace(TABLE, noise="shared")),
}


@pytest.mark.parametrize("seen_in", SEEN)
def test_a_command_lets_out_what_is_charged_and_nothing_else(
    tmp_path: Path, seen_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    command, case = SEEN[seen_in]
    seen = Largest()
    seen.compare(list(through(world(case, tmp_path), command, tmp_path / "runs", Random(5), 3, here)))
    assert seen.faults == []
    assert seen.pairs > 0
    kinds = {kind.partition(" ")[0] for kind, _ in seen.rows}
    later = command in ("personalize", "onboard")
    if not later:
        assert {place for kind, place in seen.rows if kind.startswith("gradient")} == {case.noise}
    wanted = {"context", "gradient", "confusion"} | (set() if case.array else {"calibration", "centre"})
    assert kinds == ({"context"} if later else wanted)


SLOW = [pytest.param(command, marks=pytest.mark.slow) for command in ("personalize", "federation")]


@pytest.mark.parametrize("command", ["train", *SLOW])
def test_a_home_model_of_the_same_records_beside_them_lets_nothing_more_out(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unit moves every prediction of a home model: what saw it would move beyond its charge."""
    monkeypatch.setattr("sys.argv", [])
    seen = Largest()
    pairs = through(world(TABLE, tmp_path), command, tmp_path / "runs", Random(5), 2, here, finished=True)
    seen.compare(list(pairs))
    assert seen.faults == []
    assert seen.pairs > 0
