"""A helper as a node: one answer a round, for one set, from its own copy of the agreement."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sottovoce.federation import agree
from sottovoce.federation.keys import PartyError
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.federation.server import Fields
from sottovoce.federation.sums import HelperNode, answered
from sottovoce.release.places.helper import Helper
from sottovoce.release.places.masks import ephemeral_of, unmasked
from tests.small import federated_plan

from .world import SHARED, World


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six masked messages of the first round. Who answers it, answers for all six; all else is refused."""
    world = World(
        tmp_path_factory.mktemp("world"), **{**SHARED, "context": "public", "prior": "none", "rounds": 2}
    )
    world.enrol_all()
    world.step()
    world.step()
    assert set(world.coordinator.missing().values()) == {"masks"}
    return world


def set_of(world: World, clients: list[int] | None = None, **changes: Any) -> Fields:
    messages = world.coordinator._masked()
    named = list(messages) if clients is None else clients
    keys = [ephemeral_of(messages[client % 6]) for client in named]
    return {**asked(world), "clients": named, "keys": keys, **changes}


def asked(world: World) -> Fields:
    agreement = world.agreement
    fields = {"run": world.coordinator.run, "agreement": agreement.digest(), "sizes": list(agreement.sizes)}
    return {**fields, "kind": "masks", "round": 1, "clients": [], "keys": []}


def test_a_helper_answers_the_set_that_came_and_then_the_sum_opens(world: World) -> None:
    answers = [world.helper(number).masks(set_of(world)) for number in range(3)]
    terms, messages = world.coordinator._sums.terms, world.coordinator._masked()  # type: ignore[union-attr]
    total = unmasked(terms, messages, [answer["masks"] for answer in answers])
    sharing = world.coordinator.blueprint.sharing
    assert sharing is not None
    assert sharing.plausible(total)
    assert [answer["next"] for answer in answers] == [2, 2, 2]
    assert not sharing.plausible(unmasked(terms, messages, [bytes(terms.length)] * 3))


def test_a_helper_refuses_every_set_but_one(world: World) -> None:
    helper, the_set = world.helper(0), partial(set_of, world, run="dddddddddddddddd")
    for request, match in (
        (the_set([0, 1, 2]), "at least 4"),
        (the_set([0, 0, 0, 0]), "each client once"),
        (the_set([0, 1, 2, 3, 3]), "each client once"),
        ({**the_set(), "keys": the_set()["keys"][1:]}, "with one key"),
        (the_set([0, 1, 2, 9]), "planned for its round"),
        (the_set(round=2), "no key of round 2"),
        (the_set(round=3), "not in the schedule"),
        (set_of(world, run="../../elsewhere"), "cannot name a run"),
        (the_set(agreement="0" * 32), "another agreement"),
        ({**the_set(), "keys": [bytes(32)] * 6}, "not an X25519 public key"),
    ):
        with pytest.raises((Declined, EnrolmentError), match=match):
            helper.masks(request)
    first = helper.masks(the_set())["masks"]
    for other in ([0, 1, 2, 3, 4], [0, 1, 2, 3], [2, 3, 4, 5]):
        with pytest.raises(Declined, match="answered before"):
            helper.masks(the_set(other))
    false = the_set() | {"keys": the_set()["keys"][::-1]}
    assert helper.masks(false)["masks"] == first  # whatever keys come with it


def test_another_run_has_other_masks(world: World) -> None:
    """A coordinator that gives a run a second name gets masks that fit no message."""
    here = world.helper(0).masks(set_of(world))["masks"]
    there = world.helper(0).masks(set_of(world, run="00ff00ff00ff00ff"))["masks"]
    assert np.mean(np.frombuffer(here, np.uint8) == np.frombuffer(there, np.uint8)) < 0.1


def test_a_helper_with_another_threshold_opens_nothing(world: World, tmp_path: Path) -> None:
    """Same roster, other t: it refuses what is asked under the sites' agreement; its masks fit nothing."""
    lower = replace(world.agreement, plan=world.agreement.plan.replace(threshold=2))
    deceived = HelperNode(tmp_path, lower, world.key("helper-0"))
    with pytest.raises(EnrolmentError, match="another agreement"):
        deceived.masks(set_of(world, [0, 1]))
    fooled = deceived.masks(set_of(world, agreement=lower.digest()))["masks"]
    honest = [world.helper(number).masks(set_of(world))["masks"] for number in (1, 2)]
    terms, sharing = world.coordinator._sums.terms, world.coordinator.blueprint.sharing  # type: ignore[union-attr]
    assert sharing is not None
    assert not sharing.plausible(unmasked(terms, world.coordinator._masked(), [fooled, *honest]))


def test_asking_for_a_later_key_gives_rounds_up_for_ever(world: World) -> None:
    helper, run = world.helper(0), {"run": "aaaaaaaaaaaaaaaa"}
    later = {**asked(world), **run, "round": 2}
    assert (helper.masks(later)["next"], helper.masks(later)["masks"]) == (2, b"")
    with pytest.raises(Declined, match="answered before, or given up"):
        helper.masks(set_of(world, **run))
    assert helper.masks({**later, "round": 3})["next"] == 0
    [done] = [one for one in answered(world.folder / "clients" / "helper-0") if one["run"] == run["run"]]
    assert done == {**run, "answered": 0, "given_up": 2, "round": 0}
    assert "gives up round 1" in (world.folder / "clients" / "helper-0" / "helper.log").read_text()


def test_a_helper_killed_before_its_answer_left_answers_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Helper, *given: object) -> None:
        answer(self, *given)
        raise Killed

    answer, run = cast("Callable[..., bytes]", Helper.answer), {"run": "bbbbbbbbbbbbbbbb"}
    with monkeypatch.context() as patch:
        patch.setattr(Helper, "answer", killed)
        with pytest.raises(Killed):
            world.helper(0).masks(set_of(world, **run))
    with pytest.raises(Declined, match="answered before"):
        world.helper(0).masks(set_of(world, [0, 1, 2, 3], **run))
    first = world.helper(0).masks(set_of(world, **run))
    assert first == world.helper(0).masks(set_of(world, **run))
    assert len(first["masks"]) == world.coordinator._sums.terms.length  # type: ignore[union-attr]


def test_a_copied_helper_refuses_its_run_and_the_server_hears_why(world: World) -> None:
    folder, run = world.folder / "clients" / "helper-2", {"run": "cccccccccccccccc"}
    world.helper(2).masks({**asked(world), **run})
    for path in folder.glob("masks-cccc*"):
        shutil.copy(path, folder.parent / path.name)
    world.helper(2).masks(set_of(world, **run))
    for path in folder.glob("masks-cccc*"):
        shutil.copy(folder.parent / path.name, path)
    with pytest.raises(Declined, match="restored or copied"):
        world.helper(2).masks(set_of(world, [0, 1, 2, 3], **run))


def test_a_helper_is_known_by_its_key(world: World) -> None:
    offer = world.coordinator.roster.offer()
    answer = world.helper(1).enrol(offer)
    assert world.coordinator.roster.enrol(answer, "7") == 7
    for wrong in ({"helper": 0}, {"helper": 3}, {"helper": "1"}, {"proof": b""}, {"proof": bytes(64)}):
        with pytest.raises(EnrolmentError, match="helper"):
            world.coordinator.roster.enrol({**answer, **wrong}, "7")
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.helper(0).enrol({**offer, "agreement": "0" * 32})
    world.helper(0).refused(world.coordinator.run, "not today")
    assert "not today" in (world.folder / "clients" / "helper-0" / "helper.log").read_text()


def test_an_agreement_without_shared_noise_has_no_helper(world: World, tmp_path: Path) -> None:
    with pytest.raises(EnrolmentError, match="has no helpers"):
        HelperNode(tmp_path, agree(federated_plan()), world.key("helper-0"))
    with pytest.raises(PartyError, match="not that of any helper"):
        HelperNode(tmp_path, world.agreement, world.key("client-0"))
