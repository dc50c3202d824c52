"""Who may onboard, and how often."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.onboarding.tokens import new_token, read_tokens


def test_tokens_are_kept_as_hashes_for_their_owner_only(run: Path) -> None:
    token = new_token(run, "alice")
    file = run / "tokens.txt"
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(read_tokens(run).values()) == ["alice"]
    with pytest.raises(SottovoceError, match="already"):
        new_token(run, "alice")
