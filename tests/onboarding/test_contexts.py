"""The contexts that a service has received."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
