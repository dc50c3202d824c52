"""What a node's owner agrees to, and no agreement decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation import Agreement
from sottovoce.federation.keys import fingerprint
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.site.consent import check_consent
from sottovoce.privacy.terms import Terms

from ..test_noise_at_server import NOISE
from ..world import QUICK, SHARED, World


def agreed(folder: Path, **changes: Any) -> Agreement:
    """An agreement of sites with real records."""
    agreement = World(folder, **{**QUICK, **changes}).agreement
    return replace(agreement, plan=agreement.plan.replace(seeded=False))


def consenting(agreement: Agreement, **changes: Any) -> Terms:
    assert agreement.parties is not None
    marks = frozenset(fingerprint(public).replace(" ", "") for _, public in agreement.parties.helpers)
    return Terms(**{"noise_shared": True, "honest": 3, "helpers": marks, **changes})


def test_an_owner_agrees_to_shared_noise_in_the_nodes_own_config(tmp_path: Path) -> None:
    agreement = agreed(tmp_path, **SHARED)
    check_consent(agreement, consenting(agreement))
    check_consent(agreement, consenting(agreement, honest=2))  # more honest ones than asked for
    some = sorted(consenting(agreement).helpers)[1:]
    for terms, match in (
        (Terms(), "noise_shared = true"),
        (consenting(agreement, noise_shared=False), "noise_shared = true"),
        (consenting(agreement, honest=0), "honest = 3 in node.toml"),
        (consenting(agreement, honest=4), "counts on 3 honest sites"),
        (consenting(agreement, helpers=frozenset()), "helper-0, helper-1, helper-2: refused"),
        (consenting(agreement, helpers=frozenset(some)), "has not accepted the helpers helper-"),
    ):
        with pytest.raises(EnrolmentError, match=match) as refusal:
            check_consent(agreement, terms)
        assert "\n" not in str(refusal.value)


def test_noise_at_the_server_is_refused_until_the_owner_trusts_it(tmp_path: Path) -> None:
    agreement = agreed(tmp_path, **{**NOISE, "method": "direct"})
    with pytest.raises(EnrolmentError, match="says noise_at_server = true in node"):
        check_consent(agreement, Terms())
    check_consent(agreement, Terms(noise_at_server=True))


def test_noise_that_protects_nobody_is_refused_whatever_the_owner_says(tmp_path: Path) -> None:
    agreement = World(tmp_path, **QUICK).agreement
    with pytest.raises(EnrolmentError, match="protects nobody: refused"):
        check_consent(agreement, Terms(noise_at_server=True, looked_up=True))
    check_consent(replace(agreement, plan=agreement.plan.replace(seeded=False)), Terms())
