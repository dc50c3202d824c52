"""A site under shared noise: what its owner must have said, and what it refuses before any record is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import SiteKey
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.federation.server import Coordinator, Fields, Options
from sottovoce.privacy.ledger import OWN_RECORDS
from sottovoce.release.places.masks import RoundKey

from .world import SHARED, World, charged, ledger


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six sites that have released their contexts, and three helpers whose keys are there."""
    world = World(tmp_path_factory.mktemp("world"), **SHARED)
    world.enrol_all()
    world.step()
    for member in list(world.coordinator.missing()):
        world.coordinator.accept(member, world.answer(member))
    assert set(world.coordinator.missing().values()) == {"gradient"}
    return world


def test_a_node_without_its_owners_consent_neither_enrols_nor_releases(world: World, tmp_path: Path) -> None:
    agreement = replace(world.agreement, plan=world.agreement.plan.replace(seeded=False), simulation=False)
    key = world.key("client-0")
    node = Node(tmp_path / "node", world.files[0], agreement, key=key)
    with pytest.raises(EnrolmentError, match="noise_shared = true"):
        node.enrol({**world.coordinator.roster.offer(), "agreement": agreement.digest()})
    assert not list(tmp_path.glob("**/*.sqlite"))


def request(world: World, **changes: Any) -> Fields:
    return {**world.coordinator.request(0, "gradient"), **changes}


@pytest.mark.parametrize(
    "change",
    ["not signed", "signed by another", "of another round", "of another helper", "one missing", "none"],
)
def test_a_key_that_the_agreed_helper_has_not_signed_for_this_round_is_refused(
    world: World, change: str, tmp_path: Path
) -> None:
    asked, before = request(world), charged(world, 0)
    publics, signatures = list(asked["helper_keys"]), list(asked["helper_signatures"])
    terms = world.coordinator._sums.terms  # type: ignore[union-attr]
    if change == "not signed":
        signatures[1] = bytes(64)
    elif change == "signed by another":
        publics[1] = SiteKey.make(tmp_path / "k").exchange.public_key().public_bytes_raw()
        signing = SiteKey.read(tmp_path / "k").signing
        signatures[1] = RoundKey.signed(terms, 1, 1, publics[1], signing).signature
    elif change == "of another round":
        signatures[1] = RoundKey.signed(terms, 1, 2, publics[1], world.key("helper-1").signing).signature
    elif change == "of another helper":
        publics[1], signatures[1] = publics[0], signatures[0]
    else:
        publics, signatures = (publics[1:], signatures[1:]) if change == "one missing" else ([], [])
    with pytest.raises(Declined, match="helper"):
        world.node(0).release({**asked, "helper_keys": publics, "helper_signatures": signatures})
    assert charged(world, 0) == before


def test_a_node_refuses_diagnostics_and_so_does_its_server(world: World) -> None:
    before = charged(world, 0)
    with pytest.raises(Declined, match="diagnostics are refused"):
        world.node(0).release(request(world, diagnostics=True))
    assert charged(world, 0) == before
    with pytest.raises(SottovoceError, match="leave diagnostics out"):
        Coordinator(world.agreement, world.store, Options(diagnostics=True))


def test_a_site_is_who_its_key_says_whatever_a_server_proposes(world: World, tmp_path: Path) -> None:
    def enrol(key: SiteKey | None) -> Fields:
        node = Node(tmp_path / "n", world.files[4], world.agreement, wish=1, simulated=True, key=key)
        return node.enrol({**world.coordinator.roster.offer(), "proposal": 2})

    with pytest.raises(EnrolmentError, match="this node has none"):
        enrol(None)
    with pytest.raises(SottovoceError, match="not that of any site"):
        enrol(SiteKey.make(tmp_path / "stranger"))
    assert enrol(world.key("client-4"))["participant"] == 4


def test_the_ledger_keeps_what_the_price_rests_on(world: World) -> None:
    """H shares, the noise of one, and whose masks; a release asked for again is the same bytes."""
    asked = request(world)
    message = world.node(0).release(asked)["release"]
    assert world.node(0).release(asked)["release"] == message
    sharing = world.coordinator.blueprint.sharing
    assert sharing is not None
    with ledger(world, 0) as book:
        [context, gradient] = [entry.charge for entry in book.charges(OWN_RECORDS)]
        assert (context.place, context.honest, context.helpers) == ("client", 0, "")
        assert (gradient.place, gradient.honest) == ("shared", 3)
        assert gradient.helpers == "helper-0, helper-1, helper-2"
        alone = sharing.weakened(1)
        assert gradient.mu_squared + gradient.masked == pytest.approx(alone, rel=1e-5)
        assert book.masked(OWN_RECORDS) == pytest.approx(gradient.masked)
