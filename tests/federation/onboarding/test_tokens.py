"""Who may onboard."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.service import create_service
from sottovoce.machine import tokens as onboarding
from sottovoce.machine.tokens import Tokens, new_token, read_tokens, revoke_token, token_hash

from .live import live


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


def access(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{url}/v1/access", headers=headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_tokens_are_added_and_revoked_while_the_service_runs(run: Path) -> None:
    alice = new_token(run, "alice")
    with live(create_service(run)) as url:
        assert access(url, alice) == 200
        answer = CliRunner().invoke(app, ["serve", str(run), "--new-token", "bob", "--json"])
        bob = json.loads(answer.stdout)["token"]
        assert access(url, bob) == 200
        assert CliRunner().invoke(app, ["serve", str(run), "--revoke", "alice"]).exit_code == 0
        assert access(url, alice) == 401
        assert access(url, bob) == 200
        again = new_token(run, "alice")
        assert (access(url, alice), access(url, again)) == (401, 200)


def test_while_the_tokens_cannot_be_read_nobody_gets_in(run: Path) -> None:
    alice = new_token(run, "alice")
    with live(create_service(run)) as url:
        good = (run / "tokens.txt").read_bytes()
        (run / "tokens.txt").write_text("what is this line")
        assert access(url, alice) == 503
        (run / "tokens.txt").write_bytes(good)
        assert access(url, alice) == 200
        (run / "tokens.txt").unlink()
        assert access(url, alice) == 401


def test_revoking_nobody_says_who_there_is(tmp_path: Path) -> None:
    new_token(tmp_path, "alice")
    with pytest.raises(SottovoceError, match="did you mean 'alice'"):
        revoke_token(tmp_path, "alise")


def test_a_token_cannot_be_guessed_and_its_file_is_its_owners(tmp_path: Path) -> None:
    os.umask(0)
    token = new_token(tmp_path, "alice")
    os.umask(0o022)
    assert len(token) == 43  # 32 random bytes
    assert token != new_token(tmp_path, "bob")
    assert stat.S_IMODE((tmp_path / "tokens.txt").stat().st_mode) == 0o600
    known = Tokens(tmp_path)
    assert known.name(token) == "alice"
    for wrong in ("", token[:-1], token_hash(token), token.upper()):
        assert known.name(wrong) is None


def test_tokens_are_good_again_once_the_very_file_is_back(tmp_path: Path) -> None:
    alice, known = new_token(tmp_path, "alice"), Tokens(tmp_path)
    assert known.name(alice) == "alice"
    (tmp_path / "tokens.txt").rename(tmp_path / "aside")
    (tmp_path / "tokens.txt").write_text("what is this line")
    for _ in range(2):
        with pytest.raises(SottovoceError, match="damaged"):
            known.name(alice)
    (tmp_path / "aside").rename(tmp_path / "tokens.txt")
    assert known.name(alice) == "alice"


def test_tokens_are_made_and_revoked_under_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, held = onboarding.read_tokens, list[bool]()

    def read(run: Path, file: str) -> dict[str, str]:
        with (run / onboarding.LOCK_FILE).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
        return honest(run, file)

    monkeypatch.setattr(onboarding, "read_tokens", read)
    new_token(tmp_path, "alice")
    revoke_token(tmp_path, "alice")
    assert held == [True, True]
    assert honest(tmp_path) == {}
