"""A future client's key for one run, and what it tells about a restored ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.onboarding import remote
from sottovoce.onboarding.future_client import personalize
from sottovoce.onboarding.keys import Keys
from sottovoce.onboarding.remote import OnboardingError, onboard
from sottovoce.onboarding.service import create_service
from sottovoce.privacy.ledger import Ledger

from .live import live
from .web import get, spent


def test_a_restored_ledger_pays_for_the_lost_context_and_encodes_under_a_new_key(
    run: Path, records: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[bytes] = []

    class Lost(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            sent.append(body)
            raise OnboardingError("lost on the way")

    with pytest.MonkeyPatch.context() as patch, live(create_service(run, open_to_all=True)) as url:
        patch.setattr(remote, "Connection", Lost)
        for _ in range(2):
            with pytest.raises(OnboardingError, match="lost on the way"):
                onboard(url, records, records.with_name("model"))
        for file in records.parent.glob("*.ledger.sqlite*"):
            if file.suffix != ".key":
                file.unlink()  # the backup is from before the release
        with pytest.raises(OnboardingError, match="lost on the way"):
            onboard(url, records, records.with_name("model"))
        with pytest.raises(OnboardingError, match="lost on the way"):
            onboard(url, records, records.with_name("model"))
    assert sent[0] == sent[1]
    assert sent[2][:32] != sent[0][:32]
    assert sent[3] == sent[2]
    assert spent(records) == 2
    assert "charged for a context that left" in caplog.text


def test_a_client_killed_before_its_charge_pays_once(run: Path, records: Path) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with live(create_service(run, open_to_all=True)) as url:
        for name in ("commit", "keep"):  # before the charge; after it, before anything leaves
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Ledger if name == "commit" else Keys, name, killed)
                with pytest.raises(KeyboardInterrupt):
                    onboard(url, records, records.with_name("model"))
        onboard(url, records, records.with_name("model"))
    assert spent(records) == 1
    assert not list(records.parent.glob("*.draft"))


def test_a_context_whose_key_is_gone_is_not_sent(run: Path, records: Path) -> None:
    personalize(run, records, records.with_name("at-home"))
    with live(create_service(run, open_to_all=True)) as url:
        with pytest.raises(SottovoceError, match="was made for another key"):
            onboard(url, records, records.with_name("model"))
        assert b'sottovoce_requests_total{status="422"}' not in get(f"{url}/metrics")
