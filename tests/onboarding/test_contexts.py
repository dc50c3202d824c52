"""The contexts that a service has received."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import SottovoceError
from sottovoce.onboarding.contexts import Contexts, SecondContext
from sottovoce.onboarding.remote import OnboardingError, onboard
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.tokens import new_token

from .live import live


def test_a_second_context_from_one_client_is_refused(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    restored = Path(shutil.copy(records, records.with_name("restored.npz")))
    with live(create_service(run)) as url:
        onboard(url, records, records.with_name("one"), token=token)
        with pytest.raises(OnboardingError, match="another context before"):
            onboard(url, restored, records.with_name("two"), token=token)
    assert not records.with_name("two").exists()


def test_a_context_is_remembered_with_the_bytes_it_came_in(tmp_path: Path) -> None:
    contexts, vector = Contexts(tmp_path / "contexts.sqlite"), np.array([0.1, -2.0, 1e-300])
    assert contexts.known("alice", b"body") is None
    contexts.remember("alice", b"body", vector)
    contexts.close()
    again = Contexts(tmp_path / "contexts.sqlite")
    found = again.known("alice", b"body")
    assert found is not None
    assert (found == vector).all()
    assert again.known("bob", b"body") is None
    with pytest.raises(SecondContext, match="another context before"):
        again.known("alice", b"other")
    with pytest.raises(SottovoceError):
        again.remember("alice", b"other", vector)
    assert stat.S_IMODE((tmp_path / "contexts.sqlite").stat().st_mode) == 0o600
    assert b"body" not in (tmp_path / "contexts.sqlite").read_bytes()


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "contexts.sqlite").write_bytes(b"not a database at all, but long enough for one" * 100)
    with pytest.raises(SottovoceError, match="restore a backup"):
        Contexts(tmp_path / "contexts.sqlite")


def test_a_context_is_known_by_its_bytes_and_a_second_one_is_refused(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "contexts.sqlite")
    vector = np.linspace(-1.0, 1.0, 7)
    assert contexts.known("alice", b"key and message") is None
    contexts.remember("alice", b"key and message", vector)
    contexts.close()
    contexts = Contexts(tmp_path / "contexts.sqlite")
    known = contexts.known("alice", b"key and message")
    assert known is not None
    assert known.tolist() == vector.tolist()
    for other in (b"key and messagf", b"key", b""):  # the same key with another body, too
        with pytest.raises(SecondContext):
            contexts.known("alice", other)
    assert contexts.known("bob", b"key and message") is None
    contexts.close()


def test_contexts_survive_a_power_cut_and_deleted_bytes_are_overwritten(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "contexts.sqlite")
    assert contexts.query("PRAGMA synchronous") == [(2,)]
    assert contexts.query("PRAGMA secure_delete") == [(1,)]
    assert contexts.query("PRAGMA journal_mode") == [("wal",)]
    contexts.close()


def test_contexts_restored_for_all_to_read_are_their_owners_again(tmp_path: Path) -> None:
    file = tmp_path / "contexts.sqlite"
    contexts = Contexts(file)
    contexts.remember("alice", b"body", np.zeros(2))
    contexts.close()
    file.chmod(0o644)
    contexts = Contexts(file)
    contexts.remember("bob", b"body", np.zeros(2))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    contexts.close()
    assert modes == {0o600}


@pytest.mark.parametrize("row", ["('alice', NULL, X'00')", "('alice', X'00', NULL)"])
def test_no_context_is_kept_without_its_digest_or_its_numbers(tmp_path: Path, row: str) -> None:
    contexts = Contexts(tmp_path / "contexts.sqlite")
    with pytest.raises(SottovoceError, match="NOT NULL"):
        contexts.query(f"INSERT INTO context VALUES {row}")
    contexts.close()
