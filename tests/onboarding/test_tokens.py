"""Who may onboard, and how often."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.onboarding.tokens import Rate, new_token, read_tokens, token_hash


def test_tokens_are_kept_as_hashes_for_their_owner_only(run: Path) -> None:
    token = new_token(run, "alice")
    file = run / "tokens.txt"
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(read_tokens(run).values()) == ["alice"]
    with pytest.raises(SottovoceError, match="already"):
        new_token(run, "alice")


@pytest.mark.parametrize("name", ["", "two words", "line\nbreak"])
def test_a_token_is_for_somebody_with_a_name_of_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(SottovoceError, match="one word"):
        new_token(tmp_path, name)


def test_tokens_differ_and_a_damaged_list_lets_nobody_in(tmp_path: Path) -> None:
    tokens = {new_token(tmp_path, f"client-{i}") for i in range(5)}
    assert len(tokens) == 5
    assert set(read_tokens(tmp_path)) == {token_hash(token) for token in tokens}
    (tmp_path / "tokens.txt").write_text("half a line\nand more than two words\n")
    with pytest.raises(SottovoceError, match="damaged"):
        read_tokens(tmp_path)


def test_a_client_that_waits_may_ask_again_but_saves_up_no_more_than_a_burst() -> None:
    now = [0.0]
    rate = Rate(per_second=1.0, burst=3, clock=lambda: now[0])
    assert [rate.admits("a") for _ in range(4)] == [True, True, True, False]
    assert rate.admits("b")
    now[0] = 1000.0
    assert [rate.admits("a") for _ in range(4)] == [True, True, True, False]
