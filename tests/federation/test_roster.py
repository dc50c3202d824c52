"""Who takes part, and who may not."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation import MOST_RECORDS, agree
from sottovoce.federation.roster import Roster
from sottovoce.federation.sealing import EnrolmentError, agreed_secret, new_key, proof, public_key
from sottovoce.federation.store import Store
from tests.small import federated_plan

from .world import World


def test_an_index_belongs_to_the_directory_that_enrolled_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.enrol(0) == 0
    assert world.enrol(0) == 0
    assert world.coordinator.store.addresses() == {0: "0"}
    twin = world.node(0, directory="twin").enrol(world.coordinator.roster.offer())
    with pytest.raises(EnrolmentError, match="another key"):
        world.coordinator.roster.enrol(twin, "9")
    assert world.enrol(0) == 0


def test_an_enrolment_must_prove_its_key(tmp_path: Path) -> None:
    world = World(tmp_path)
    answer = world.node(0).enrol(world.coordinator.roster.offer())
    with pytest.raises(EnrolmentError, match="prove"):
        world.coordinator.roster.enrol({**answer, "proof": bytes(32)}, "9")
    with pytest.raises(EnrolmentError, match="no participant 7"):
        world.coordinator.roster.enrol({**answer, "participant": 7}, "9")
    assert world.coordinator.roster.enrolled == set()


def test_indices_are_proposed_in_turn_until_all_are_taken(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert [world.coordinator.roster.offer()["proposal"] for _ in range(4)] == [0, 1, 2, 0]
    world.enrol(1)
    assert [world.coordinator.roster.offer()["proposal"] for _ in range(3)] == [2, 0, 2]
    world.enrol_all()
    assert world.coordinator.roster.offer()["proposal"] == -1


def test_a_restarted_server_knows_its_clients_and_shares_the_same_secrets(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    offered = world.coordinator.roster.offer()
    world.kill()
    world.start()
    assert world.coordinator.roster.enrolled == {0, 1, 2}
    again = world.coordinator.roster.offer()
    assert (again["run"], again["key"]) == (offered["run"], offered["key"])
    assert again["nonce"] != offered["nonce"]
    world.finish()


@pytest.mark.parametrize("changes", [{"key": b""}, {"key": None}, {"proof": None}, {"participant": "0"}])
def test_an_incomplete_enrolment_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    world = World(tmp_path)
    answer = world.node(0).enrol(world.coordinator.roster.offer())
    with pytest.raises(EnrolmentError):
        world.coordinator.roster.enrol({**answer, **changes}, "9")
    assert world.coordinator.roster.enrolled == set()


class Enrolling:
    """A roster by itself, and clients that are a key each."""

    def __init__(self, folder: Path, **changes: object) -> None:
        agreement = agree(federated_plan(seeded=False))
        self.agreement = replace(agreement, plan=agreement.plan.replace(**changes))
        self.store = Store.open(folder / "server.sqlite", self.agreement, timeout=0.0)
        self.roster = Roster(self.agreement, self.store)
        self.private = [new_key() for _ in range(4)]

    def answer(self, participant: int, /, **changes: Any) -> dict[str, Any]:
        private, offer = self.private[participant], self.roster.offer()
        name = f"participant-{participant}"
        agreed = agreed_secret(private, offer["key"], run=offer["run"], name=name)
        answer = {"participant": participant, "key": public_key(private), "agreement": offer["agreement"]}
        return {
            **answer,
            "proof": proof(agreed, offer["nonce"]),
            "records": 90,
            "name": f"c{participant}",
            **changes,
        }

    def refused(self, participant: int, said: str, /, **changes: Any) -> None:
        with pytest.raises(EnrolmentError, match=said):
            self.roster.enrol(self.answer(participant, **changes), "9")
        assert self.roster.enrolled == set()


@pytest.fixture
def enrolling(tmp_path: Path) -> Iterator[Enrolling]:
    made = Enrolling(tmp_path, gradient_records=0)
    yield made
    made.store.close()


def test_who_enrols_says_who_it_is_with_a_key_that_it_proves(enrolling: Enrolling) -> None:
    enrolling.refused(0, "not today", error="not today")
    enrolling.refused(0, "another agreement", agreement="other")
    enrolling.refused(0, "no participant", participant=3)
    for wrong in (-1, "0", None, 1.0, True):
        enrolling.refused(0, "incomplete: participant", participant=wrong)
    for wrong in (bytes(31), "k" * 32, base64.b64encode(bytes(32)).decode(), None):
        enrolling.refused(0, "incomplete: key", key=wrong)
    for wrong in (None, "p"):
        enrolling.refused(0, "incomplete: proof", proof=wrong)
    enrolling.refused(0, "does not prove", proof=bytes(32))
    enrolling.refused(0, "does not prove", participant=2)
    assert [enrolling.roster.enrol(enrolling.answer(p), f"at {p}") for p in (0, 2, 1)] == [0, 2, 1]
    assert enrolling.store.addresses() == {0: "at 0", 1: "at 1", 2: "at 2"}
    assert len(enrolling.roster.offer()["nonce"]) == 16
    assert enrolling.roster.offer()["proposal"] == -1


def test_an_open_agreement_wants_numbers_of_records_and_a_stated_one_does_not(
    enrolling: Enrolling, tmp_path: Path
) -> None:
    enrolling.refused(0, "does not declare", records=0)
    for wrong in (-1, True, "90", 90.0, None, MOST_RECORDS + 1):
        enrolling.refused(0, "incomplete: records", records=wrong)
    silent = {name: value for name, value in enrolling.answer(0).items() if name != "records"}
    with pytest.raises(EnrolmentError, match="does not declare"):
        enrolling.roster.enrol(silent, "9")
    assert enrolling.roster.sizes() is None
    for participant, records in ((0, 1), (1, MOST_RECORDS)):
        enrolling.roster.enrol(enrolling.answer(participant, records=records), "9")
    assert enrolling.roster.sizes() is None
    enrolling.roster.enrol(enrolling.answer(2), "9")
    assert enrolling.roster.sizes() == [1, MOST_RECORDS, 90]
    stated = Enrolling(tmp_path / "stated")
    stated.refused(0, "incomplete: records", records=-1)
    answer = stated.answer(0)
    del answer["records"]
    assert stated.roster.enrol(answer, "9") == 0
    assert stated.store.declared() == {0: 0}
    stated.store.close()


def test_clients_have_names_of_their_own_or_numbers(enrolling: Enrolling) -> None:
    names = ("north", "north", "<b>")
    for participant, name in enumerate(names):
        enrolling.roster.enrol(enrolling.answer(participant, name=name), "9")
    assert enrolling.roster.names == ["north", "participant-1", "participant-2"]
    again = Roster(enrolling.agreement, enrolling.store)
    assert again.names == enrolling.roster.names
    assert again.enrolled == {0, 1, 2}


def test_a_name_stays_taken_when_the_server_is_back(enrolling: Enrolling) -> None:
    enrolling.roster.enrol(enrolling.answer(0, name="north"), "9")
    enrolling.roster = Roster(enrolling.agreement, enrolling.store)
    enrolling.roster.enrol(enrolling.answer(0, name="south"), "9")  # known, and keeps its name
    enrolling.roster.enrol(enrolling.answer(1, name="north"), "9")
    enrolling.roster.enrol(enrolling.answer(2, name=None), "9")
    assert enrolling.roster.names == ["north", "participant-1", "participant-2"]


def test_both_ends_have_one_secret(enrolling: Enrolling) -> None:
    roster, store = enrolling.roster, enrolling.store
    roster.enrol(enrolling.answer(1), "9")
    mine = agreed_secret(enrolling.private[1], public_key(store.key), run=store.run, name="participant-1")
    assert roster.secret(1) == roster.secret(1) == roster.agreed(1) == mine
