"""A service as a future client reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.onboarding.remote import OnboardingError, onboard
from sottovoce.onboarding.service import create_service
from sottovoce.onboarding.tokens import new_token

from .live import live
from .web import headers, post


def test_a_wrong_token_is_refused_before_anything_is_charged(run: Path, records: Path) -> None:
    new_token(run, "alice")
    with live(create_service(run)) as url:
        with pytest.raises(OnboardingError, match="no such token"):
            onboard(url, records, records.with_name("one"), token="guess")
        assert post(url, bytes(64), headers(url, "guess"))[0] == 401
    assert not records.with_suffix(".ledger.sqlite").exists()


def test_records_do_not_travel_unencrypted(records: Path) -> None:
    with pytest.raises(OnboardingError, match="not encrypted"):
        onboard("http://example.org", records, records.with_name("one"))
