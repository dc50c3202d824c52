"""A service as a future client reaches it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sottovoce.onboarding import remote
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


@pytest.mark.parametrize("body", [b"", bytes(4), struct.pack("<256f", *[float("nan")] * 256)], ids=len)
def test_coefficients_of_another_size_or_not_finite_make_no_model(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with live(create_service(run, open_to_all=True)) as url:
        monkeypatch.setattr(remote.Connection, "post", lambda *_: body)
        with pytest.raises(OnboardingError, match="no model written"):
            onboard(url, records, records.with_name("one"))
    assert not records.with_name("one").exists()


def test_a_service_that_is_not_there_or_not_one_is_named_before_anything_is_charged(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OnboardingError, match="cannot reach"):
        onboard("http://127.0.0.1:9", records, records.with_name("one"))
    monkeypatch.setattr(remote.Connection, "get", lambda *_: b"<html>")
    with pytest.raises(OnboardingError, match="not an onboarding service"):
        onboard("http://127.0.0.1:9", records, records.with_name("one"))
    assert not records.with_suffix(".ledger.sqlite").exists()


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(OnboardingError, match="certificate of an authority"):
        remote.Connection("https://example.org", authority=tmp_path / "ca.crt")
