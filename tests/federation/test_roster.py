"""Who takes part, and who may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.federation.keys import EnrolmentError

from .world import World


def test_an_index_belongs_to_the_directory_that_enrolled_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.enrol(0) == 0
    assert world.enrol(0) == 0
    assert world.coordinator.addresses() == {0: "0"}
    twin = world.node(0, directory="twin").enrol(world.coordinator.offer())
    with pytest.raises(EnrolmentError, match="another key"):
        world.coordinator.enrol(twin, "9")
    assert world.enrol(0) == 0


def test_an_enrolment_must_prove_its_key(tmp_path: Path) -> None:
    world = World(tmp_path)
    answer = world.node(0).enrol(world.coordinator.offer())
    with pytest.raises(EnrolmentError, match="prove"):
        world.coordinator.enrol({**answer, "proof": bytes(32)}, "9")
    with pytest.raises(EnrolmentError, match="no participant 7"):
        world.coordinator.enrol({**answer, "participant": 7}, "9")
    assert world.coordinator.enrolled == set()


def test_indices_are_proposed_in_turn_until_all_are_taken(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert [world.coordinator.offer()["proposal"] for _ in range(4)] == [0, 1, 2, 0]
    world.enrol(1)
    assert [world.coordinator.offer()["proposal"] for _ in range(3)] == [2, 0, 2]
    world.enrol_all()
    assert world.coordinator.offer()["proposal"] == -1


def test_a_restarted_server_knows_its_clients_and_shares_the_same_secrets(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    offered = world.coordinator.offer()
    world.kill()
    world.start()
    assert world.coordinator.enrolled == {0, 1, 2}
    again = world.coordinator.offer()
    assert (again["run"], again["key"]) == (offered["run"], offered["key"])
    assert again["nonce"] != offered["nonce"]
    world.finish()


@pytest.mark.parametrize("changes", [{"key": b""}, {"key": None}, {"proof": None}, {"participant": "0"}])
def test_an_incomplete_enrolment_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    world = World(tmp_path)
    answer = world.node(0).enrol(world.coordinator.offer())
    with pytest.raises(EnrolmentError):
        world.coordinator.enrol({**answer, **changes}, "9")
    assert world.coordinator.enrolled == set()
