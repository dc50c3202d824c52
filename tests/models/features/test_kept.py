"""What encoders made of contents, kept: for the owner alone, by encoder and content."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from sottovoce.models.features.cache import clean
from sottovoce.models.features.kept import FILE, Kept, features_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))


def test_a_row_is_found_by_its_encoder_and_its_content_alone() -> None:
    row, digest = torch.rand(12).half().float(), b"d" * 16
    kept = Kept()
    kept.keep("one", {digest: row})
    assert kept.found("two", [digest]) == {}
    assert kept.found("one", [b"e" * 16]) == {}
    kept.close()
    again = Kept()
    [(found, same)] = again.found("one", [b"e" * 16, digest]).items()
    assert found == digest
    assert torch.equal(same, row)
    again.close()


def test_many_are_found_at_once() -> None:
    rows = {place.to_bytes(16, "big"): torch.full((3,), float(place)) for place in range(1200)}
    kept = Kept()
    kept.keep("one", rows)
    found = kept.found("one", list(rows))
    assert len(found) == 1200
    assert all(torch.equal(found[digest], row.half().float()) for digest, row in rows.items())


def test_the_file_is_its_owners_and_names_no_content_and_clean_removes_it() -> None:
    digest = bytes(range(16))
    kept = Kept()
    kept.keep("one", {digest: torch.rand(12)})
    kept.close()
    file = features_folder() / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(features_folder().stat().st_mode) == 0o700
    assert digest not in file.read_bytes()
    assert clean() > 0
    assert not file.exists()
