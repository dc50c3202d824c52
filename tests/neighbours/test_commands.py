"""A file through a whole command: the same releases, of the same length, moved by at most their charges."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sottovoce.audit.leaving import Largest
from sottovoce.errors import SottovoceError

from . import spy
from .commands import COMMANDS, through
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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_lets_out_what_is_charged_and_nothing_else(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    case = Case(".csv", "classes", True, "shares", noise="server" if command == "train" else "client")
    seen = Largest()
    seen.compare(list(through(world(case, tmp_path), command, tmp_path / "runs", Random(5), 3, here)))
    assert seen.faults == []
    assert seen.pairs > 0
    kinds = {kind.partition(" ")[0] for kind, _ in seen.ratios}
    later = command in ("personalize", "onboard")
    assert kinds == ({"context"} if later else {"context", "gradient", "confusion", "calibration"})
