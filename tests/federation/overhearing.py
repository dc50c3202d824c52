"""What must not be readable on any disk, and whether it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sottovoce.release.kind import Release

Secrets = list[bytes]


def overheard(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """Every message that any channel makes from now on, as it is before its seal."""
    made: Secrets = []
    encode = Release.encode

    def overhearing(self: Release, *values: Any, **options: Any) -> bytes:
        made.append(encode(self, *values, **options))
        return made[-1]

    monkeypatch.setattr(Release, "encode", overhearing)
    return made


def found(files: Iterable[Path], needles: Secrets) -> set[str]:
    """Names of the files that hold a piece of one of the needles."""
    pieces = [needle[at : at + 12] for needle in needles for at in range(0, max(1, len(needle) - 11), 24)]
    assert pieces
    assert min(map(len, pieces)) >= 8
    contents = [(path.name, path.read_bytes()) for path in files]
    return {name for name, content in contents if any(piece in content for piece in pieces)}
