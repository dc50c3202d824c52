"""What both ends hold before anything is released."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.federation.agreement import Agreement, AgreementError
from sottovoce.federation.client_files import agree

from .world import small_plan


def test_an_agreement_survives_its_file_and_every_key_counts(tmp_path: Path) -> None:
    agreement = agree(small_plan())
    file = tmp_path / "agreement.toml"
    file.write_text(agreement.to_toml())
    assert Agreement.load(file) == agreement
    assert Agreement.load(file).digest() == agreement.digest()
    other = agree(small_plan(clip=0.5))
    assert other.digest() != agreement.digest()
    assert agreement.difference(other) == "clip is 1.0 here and 0.5 there"
    rescaled = Agreement(agreement.plan, replace(agreement.facts, mean=(0.5,)))
    assert "mean" in (agreement.difference(rescaled) or "")
    assert rescaled.digest() != agreement.digest()


@pytest.mark.parametrize("text", ["", "not toml [", "epsilon = 8.0", "[records]\nshape = 3", "\x00"])
def test_what_is_no_agreement_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agreement.toml"
    file.write_text(text)
    with pytest.raises(AgreementError, match="is not an agreement"):
        Agreement.load(file)


def test_a_missing_agreement_says_whom_to_ask(tmp_path: Path) -> None:
    with pytest.raises(AgreementError, match="ask the server"):
        Agreement.load(tmp_path / "none.toml")


def test_a_federation_needs_noise_and_a_number_of_records() -> None:
    agreement = agree(small_plan())
    with pytest.raises(AgreementError, match="simulator only"):
        Agreement(agreement.plan.replace(epsilon=float("inf")), agreement.facts)
    with pytest.raises(AgreementError, match="every client can give"):
        Agreement(agreement.plan.replace(gradient_records=0), agreement.facts)
