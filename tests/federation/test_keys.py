"""Long-term keys of sites and helpers, and the agreement that binds them."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.federation import Agreement, AgreementError, agree
from sottovoce.federation.keys import Parties, PartyError, SiteKey, accepted, fingerprint
from sottovoce.federation.sums import terms_of
from tests.small import federated_plan

from .world import SHARED


@pytest.fixture(scope="module")
def agreement(tmp_path_factory: pytest.TempPathFactory) -> Agreement:
    plan = federated_plan(**SHARED)
    return agree(plan, parties=Parties.dealt(tmp_path_factory.mktemp("keys"), plan))


def test_a_key_is_made_once_and_its_owner_alone_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "site.key"
    key = SiteKey.make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SiteKey.read(path).public == key.public
    with pytest.raises(PartyError, match="there already"):
        SiteKey.make(path)
    assert SiteKey.read(path).public == key.public
    path.chmod(0o644)  # as some backups put files back
    SiteKey.read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PartyError, match="sottovoce site key"):
        SiteKey.read(tmp_path / "none.key")
    for content in ("", "words", "00" * 63):
        (tmp_path / "bad.key").write_text(content)
        with pytest.raises(PartyError, match="holds no key"):
            SiteKey.read(tmp_path / "bad.key")


def test_a_fingerprint_is_read_aloud_and_written_down_in_any_spacing(tmp_path: Path) -> None:
    one, other = (fingerprint(SiteKey.make(tmp_path / name).public) for name in "ab")
    assert one != other
    assert len(one.replace(" ", "")) == 30
    both = {one.replace(" ", ""), other.replace(" ", "")}
    assert accepted(f"{one}, {other}") == accepted(f"{one.replace(' ', '-')},{other}") == both
    assert accepted("") == frozenset()
    with pytest.raises(PartyError, match="30 digits"):
        accepted(one[:-1])


def test_an_agreement_on_shared_noise_survives_its_file_with_its_keys(agreement: Agreement) -> None:
    again = Agreement.parse(agreement.to_toml(), simulation=True)
    assert again == agreement
    assert again.full_digest() == agreement.full_digest()
    assert agreement.digest() == agreement.full_digest()[:32]
    assert len(bytes.fromhex(agreement.full_digest())) == 32


def test_every_name_key_and_place_counts_in_the_digest(agreement: Agreement, tmp_path: Path) -> None:
    parties = agreement.parties
    assert parties is not None
    (first, key), (second, other) = parties.sites[:2]
    changed = [
        replace(parties, sites=((second, other), (first, key), *parties.sites[2:])),
        replace(parties, sites=((first, other), (second, key), *parties.sites[2:])),
        replace(parties, sites=(("renamed", key), *parties.sites[1:])),
        replace(parties, helpers=parties.helpers[::-1]),
        replace(parties, helpers=(("board", SiteKey.make(tmp_path / "k").public), *parties.helpers[1:])),
    ]
    digests = {replace(agreement, parties=one).full_digest() for one in (parties, *changed)}
    assert len(digests) == 1 + len(changed)
    for one in changed:
        assert agreement.difference(replace(agreement, parties=one)) == "the keys of sites or helpers differ"


def test_what_masks_are_derived_from_follows_every_number_of_the_agreement(agreement: Agreement) -> None:
    def digest(agreed: Agreement, run: str = "3f2a") -> bytes:
        assert agreed.parties is not None
        return terms_of(agreed, agreed.blueprint(), run).digest

    plan = agreement.plan
    others = [
        replace(agreement, plan=plan.replace(**change))
        for change in ({"threshold": 5}, {"colluding": 2}, {"epsilon": 7.0}, {"clip": 0.9}, {"rounds": 2})
    ]
    assert len({digest(agreement), digest(agreement, "3f2b"), *map(digest, others)}) == 2 + len(others)


def test_shared_noise_needs_keys_and_other_noise_has_none(agreement: Agreement) -> None:
    with pytest.raises(AgreementError, match="collect them first"):
        replace(agreement, parties=None)
    with pytest.raises(AgreementError, match="only there"):
        replace(agree(federated_plan()), parties=agreement.parties)


def test_lists_of_keys_that_nobody_can_have_agreed_on_are_refused(agreement: Agreement) -> None:
    parties = agreement.parties
    assert parties is not None
    sites, helpers = parties.sites, parties.helpers
    for wrong, match in (
        (Parties(sites[1:], helpers), "5 sites and 3 helpers"),
        (Parties(sites, helpers[1:]), "6 sites and 2 helpers"),
        (Parties((sites[0], (sites[0][0], sites[1][1]), *sites[2:]), helpers), "have one name"),
        (Parties((sites[0], (sites[1][0], sites[0][1]), *sites[2:]), helpers), "have one key"),
        (Parties(sites, ((helpers[0][0], sites[0][1]), *helpers[1:])), "another key for that"),
    ):
        with pytest.raises(PartyError, match=match):
            replace(agreement, parties=wrong)
    values = {"sites": dict(sites), "helpers": dict(helpers)}
    assert Parties.parse(values) == parties
    for foreign in (
        [],
        {"sites": dict(sites)},
        {**values, "sites": 3},
        {**values, "sites": {"a/b": sites[0][1]}},
        {**values, "sites": {"a": sites[0][1].upper() + "0"}},
        {**values, "helpers": {"a": 7}},
    ):
        with pytest.raises(PartyError):
            Parties.parse(foreign)


def test_a_helper_may_be_a_site_as_well_under_its_name(agreement: Agreement) -> None:
    parties = agreement.parties
    assert parties is not None
    assert parties.both == []
    named = replace(parties, helpers=(("client-2", parties.helpers[0][1]), *parties.helpers[1:]))
    assert replace(agreement, parties=named).parties == named
    assert named.both == ["client-2"]
