"""What a service states about its run, and what a client takes from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.onboarding import remote
from sottovoce.onboarding.remote import onboard
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.specification import SpecificationError

from .live import live


def test_a_specification_that_contradicts_its_plan_is_refused_before_anything_is_charged(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("version", 2), ("context", {"sigma": 1e-9}), ("coefficients", 7)):
        with live(create_service(run, open_to_all=True)) as url:
            honest = remote.Connection.get

            def lie(door: remote.Connection, path: str, name: str = name, value: object = value) -> bytes:
                body = honest(door, path)  # noqa: B023
                return json.dumps({**json.loads(body), name: value}).encode()

            with monkeypatch.context() as patch:
                patch.setattr(remote.Connection, "get", lie)
                with pytest.raises(SpecificationError):
                    onboard(url, records, records.with_name("one"))
    assert not records.with_suffix(".ledger.sqlite").exists()
