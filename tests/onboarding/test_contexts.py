"""What the service keeps of a client: one context, durably, for its owner's eyes only."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from sottovoce.onboarding.contexts import Contexts, SecondContext


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
