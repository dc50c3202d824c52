"""A client that comes back with old state leaves its run, and pays before it takes part again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.federation.node import Node
from sottovoce.federation.sealing import KEY_BYTES, new_key, public_key, unseal
from sottovoce.federation.server import Coordinator, Fields
from sottovoce.federation.site.recovery import LEFT, Recovery
from sottovoce.federation.store import Store
from sottovoce.privacy.ledger import OWN_RECORDS, Overspent
from sottovoce.release.kind import asked_for

from ..test_noise_at_server import NOISE
from ..test_server import SHARES
from ..world import QUICK, SHARED, World, charged, everyone_paid, ledger, roll_back

Restore = Callable[[Path, Path], None]
QUICKLY = {**QUICK, "seeded": False, "clients_per_round": 3}


def whole_directory(backup: Path, mine: Path) -> None:
    shutil.rmtree(mine)
    shutil.copytree(backup, mine)


def whole_directory_with_its_times(backup: Path, mine: Path) -> None:
    """As `cp -a` or `tar` would, over what is there."""
    whole_directory(backup, mine)
    for path in mine.iterdir():
        old = (backup / path.name).stat()
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


def only_the_ledger(backup: Path, mine: Path) -> None:
    for leftover in mine.glob("ledger.sqlite*"):
        leftover.unlink()
    for part in backup.glob("ledger.sqlite*"):
        shutil.copy(part, mine)


def only_the_directory(backup: Path, mine: Path) -> None:
    """The ledger is the newest: nothing is lost, but nobody here can know that."""
    for path in backup.iterdir():
        if not path.name.startswith("ledger"):
            (mine / path.name).unlink(missing_ok=True)
            shutil.copy(path, mine)


def all_but_the_lock(backup: Path, mine: Path) -> None:
    """As `rsync` would half a minute later: files that look the same are left as they are."""
    for trace in backup.glob("trace-*.witness"):
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        old = [json.dumps({**line, "time": line["time"] - 30 * 10**9}) + "\n" for line in lines]
        trace.write_text("".join(old))
    shutil.copytree(backup, mine, dirs_exist_ok=True, ignore=lambda *_: ["lock"])


RESTORES = [
    whole_directory,
    whole_directory_with_its_times,
    only_the_ledger,
    only_the_directory,
    all_but_the_lock,
]
CASES = [
    *(
        ("client", channel)
        for channel in ("direct", "direct-q12", "lrsuq", "lrsuq-elias", "polar", "integers")
    ),
    *(("server", channel) for channel in ("direct", "direct-q12", "lrsuq", "lrsuq-elias", "polar")),
    ("shared", "integers"),
]


def world_of(folder: Path, place: str = "client", channel: str = "direct", **changes: Any) -> World:
    """A world whose rounds all call client 0."""
    plan = {**QUICKLY, **{"client": {}, "server": {**NOISE, "method": "direct"}, "shared": SHARED}[place]}
    return World(folder, **{**plan, "channel": channel, **changes})


def mine(world: World) -> Path:
    return world.folder / "clients" / "client-0"


def backed_up(world: World, rounds: int = 1) -> World:
    """The world when its client 0 has made a backup after so many rounds."""
    world.enrol_all()
    while world.coordinator.server.round < rounds:
        world.step()
    shutil.copytree(mine(world), world.folder / "backup")
    return world


def answered(world: World) -> tuple[Fields, Fields]:
    """The open request of client 0, and its answer to it."""
    while 0 not in world.coordinator.missing():
        world.step()
    request = world.coordinator.request(0, world.coordinator.missing()[0])
    answer = world.node(0).release(request)
    world.coordinator.accept(0, answer)
    return request, answer


def restored(world: World, restore: Restore = whole_directory) -> None:
    restore(world.folder / "backup", mine(world))


def spent(world: World) -> float:
    with ledger(world, 0) as book:
        return book.spent(OWN_RECORDS)


def lies(world: World, request: Fields) -> list[Fields]:
    """What a server that has had the answer may ask: the same again, for another key, of another model."""
    link = world.coordinator.blueprint.downlink("gradient")
    other = link.encode(torch.randn(link.size)) if "coefficients" in request else b""
    key = {"seal": public_key(new_key())}
    asked = {"received_rounds": [], "asked_rounds": []}  # what earlier versions said
    changed = {"coefficients": other} if other else {}
    return [{**request, **asked}, {**request, **asked, **key}, {**request, **asked, **key, **changed}]


@pytest.mark.parametrize(("place", "channel"), CASES)
def test_a_client_that_was_put_back_gives_a_lying_server_nothing(
    tmp_path: Path, place: str, channel: str
) -> None:
    """Rounds that left after the backup are asked for again: none is encoded a second time."""
    world = backed_up(world_of(tmp_path, place, channel, rounds=7))
    requests: list[Fields] = []
    while len(requests) < 5:
        requests.append(answered(world)[0])
    assert [request["round"] for request in requests] == [2, 3, 4, 5, 6]
    before = spent(world)
    restored(world)
    for request in requests:
        for lie in lies(world, request):
            answer = world.node(0).release(lie)
            assert answer == {"kind": "gradient", "round": request["round"], "left": LEFT}
    assert charged(world, 0) == [*([("context", 0)] if place != "server" else []), ("gradient", 1)]
    assert spent(world) < before


@pytest.mark.parametrize(("place", "channel"), CASES)
def test_a_client_that_has_its_answer_sends_that_one_or_refuses(
    tmp_path: Path, place: str, channel: str
) -> None:
    world = world_of(tmp_path, place, channel)
    world.enrol_all()
    request, answer = answered(world)
    while request["kind"] != "gradient":
        request, answer = answered(world)
    before = charged(world, 0)
    same, other_key, other_model = (world.node(0).release(lie) for lie in lies(world, request))
    assert same == answer
    assert "release" not in other_key
    assert "release" not in other_model
    assert world.node(0).release({**lies(world, request)[2], "seal": request["seal"]}) == answer
    assert charged(world, 0) == before


def decoded(world: World, request: Fields, answer: Fields, private: bytes) -> tuple[bytes, np.ndarray]:
    """What a client has drawn in the header for a key of the liar's, and what its message decodes to."""
    release = world.coordinator.blueprint.releases_of(0)["gradient"]
    stream, roster = (
        release.stream(world.store.run, "participant-0", request["round"]),
        world.coordinator.roster,
    )
    message = unseal(answer["release"], stream, private=private, agreed=roster.agreed(0))
    if world.agreement.plan.place.shared:
        return b"", np.frombuffer(message[KEY_BYTES:], np.int16).astype(float)
    sent = world.coordinator.blueprint.downlink("gradient").decode(request["coefficients"])
    bound = asked_for(sent, request["seal"])
    return message[5:7], release.decode(message, secret=roster.secret(0), stream=stream, request=bound)


@pytest.mark.parametrize(("place", "channel"), CASES)
def test_a_second_encoding_has_noise_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, channel: str
) -> None:
    """A machine put back as a whole notices nothing, encodes again and is charged once: that is admitted. But
    the noise of both is independent, for the same request, another key and another model, so that the second
    is worth its own μ² and no more."""
    world = world_of(tmp_path, place, channel, coefficients=0, model="linear", rounds=2)
    world.enrol_all()
    while world.coordinator.missing().get(0) != "gradient":
        world.step()
    shutil.copytree(mine(world), tmp_path / "backup")
    key, other = new_key(), new_key()
    request = {**world.coordinator.request(0, "gradient"), "seal": public_key(key)}
    model = {"coefficients": lies(world, request)[2]["coefficients"]}
    drawn, first = decoded(world, request, world.node(0).release(request), key)
    before, sigma = spent(world), world.coordinator.blueprint.releases_of(0)["gradient"].channel.sigma
    same_again, to_another_key = request, {**request, "seal": public_key(other)}
    for lie, private in ((same_again, key), (to_another_key, other), ({**request, **model}, key)):
        again = drawn
        while again in (drawn, b""):  # at once, but for a coincidence in 65,536 where two bytes are drawn
            roll_back(monkeypatch, tmp_path / "backup", mine(world))
            again, second = decoded(world, lie, world.node(0).release(lie), private)
            if place == "shared":
                break
        if place == "shared":
            assert (first != second).mean() > 0.99
            continue
        moved = float(((first - second) ** 2).mean() / (2 * sigma**2))
        assert moved > 0.8  # of 7,850 numbers with noise of their own; the same noise twice is 0
    assert spent(world) == before


@pytest.mark.parametrize("restore", RESTORES)
def test_a_restore_of_any_kind_is_noticed_told_and_not_waited_for(
    tmp_path: Path, restore: Restore, caplog: pytest.LogCaptureFixture
) -> None:
    """With ten minutes of patience; one release was in flight when the files were put back."""
    world = backed_up(world_of(tmp_path, rounds=3))
    world.answer(0)
    restored(world, restore)
    before = charged(world, 0)
    for number in (2, 3):
        assert answered(world)[1] == {"kind": "gradient", "round": number, "left": LEFT}
    assert charged(world, 0) == before
    world.step()
    assert world.coordinator.done
    assert world.coordinator.left == {0}
    assert f"participant-0 leaves out its gradient: {LEFT}" in caplog.text
    said = (mine(world) / "client.log").read_text()
    assert (
        f"has left run {world.store.run}; "
        "to take part again start it once with the option rejoin (to rejoin: ε" in said
    )
    assert (mine(world) / "client.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("restore", RESTORES)
def test_a_client_that_rejoins_has_paid_for_all_that_may_have_left_and_pays_for_what_it_sends(
    tmp_path: Path, restore: Restore
) -> None:
    world = backed_up(world_of(tmp_path, rounds=5))
    release = world.coordinator.blueprint.releases_of(0)
    context, each = release["context"].mu_squared, release["gradient"].mu_squared
    for _ in range(2):
        answered(world)
        world.step()
    assert spent(world) == pytest.approx(context + 3 * each)
    restored(world, restore)
    made = 3 if restore is only_the_directory else 1
    owner = raised(world)
    [line] = owner.rejoin()
    # Rounds up to the last may have been asked for; whatever the ledger lacks may be asked for again.
    assert spent(world) == pytest.approx(context + 5 * each)
    with ledger(world, 0) as book:
        told = book.allowed
        together = told.price(context + (5 + 5 - made) * each)
        assert line.startswith(f"rejoins run {world.store.run}; to rejoin: ε")
        assert f"together {together:.3g} of 30" in line
        assert book.releases(OWN_RECORDS) == 6
    assert "left" not in answered(world)[1]
    world.finish()
    assert world.coordinator.left == set()
    assert spent(world) == pytest.approx(context + (5 + 2) * each)
    assert charged(world, 0)[-2:] == [("gradient", 4), ("gradient", 5)]


def raised(world: World, epsilon: float = 30.0) -> Node:
    """The node of an owner who allows more than the run was to cost."""
    with ledger(world, 0) as book:
        book.raise_budget(epsilon)
    return world.node(0)


def test_a_client_rejoins_only_what_it_left_and_once(tmp_path: Path) -> None:
    world = backed_up(world_of(tmp_path))
    owner = raised(world)
    assert owner.rejoin() == []
    restored(world)
    owner = raised(world)
    assert len(owner.rejoin()) == 1
    before = spent(world)
    assert owner.rejoin() == []
    assert spent(world) == before


def test_what_the_budget_does_not_cover_is_not_rejoined_and_nothing_is_charged(tmp_path: Path) -> None:
    world = backed_up(world_of(tmp_path, rounds=4))
    restored(world)
    before = spent(world)
    with pytest.raises(
        Overspent, match=r"to rejoin: ε .*which the budget does not cover: nothing was released"
    ):
        world.node(0).rejoin()
    assert spent(world) == before
    assert answered(world)[1]["left"] == LEFT
    with ledger(world, 0) as book:
        unmade = world.coordinator.blueprint.releases_of(0)["gradient"].mu_squared
        exact = book.allowed.price(before + 2 * 3 * unmade)
    for epsilon, covered in ((exact * (1 - 1e-6), False), (exact * (1 + 1e-6), True)):
        owner = raised(world, epsilon)
        if covered:
            owner.rejoin()
            continue
        with pytest.raises(Overspent):
            owner.rejoin()
    assert "release" in answered(world)[1]


def test_a_rejoin_that_was_cut_short_is_done_again_and_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = backed_up(world_of(tmp_path))
    restored(world)
    owner = raised(world)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "_remember", killed)
        with pytest.raises(KeyboardInterrupt):
            owner.rejoin()
    after = spent(world)
    assert answered(world)[1]["left"] == LEFT
    owner.rejoin()
    assert spent(world) == after


def test_the_first_backup_put_back_twice_forgets_the_first_rejoin(tmp_path: Path) -> None:
    """Admitted, where nothing outside of the machine knows better: the second charges like the first."""
    world = backed_up(world_of(tmp_path, rounds=4))
    charges = []
    for _ in range(2):
        restored(world)
        owner = raised(world)
        owner.rejoin()
        charges.append(spent(world))
        answered(world)
        world.step()
    assert charges[0] == pytest.approx(charges[1])


def test_a_backup_of_after_the_first_rejoin_is_charged_for_both(tmp_path: Path) -> None:
    world = backed_up(world_of(tmp_path, rounds=4))
    release = world.coordinator.blueprint.releases_of(0)
    context, each = release["context"].mu_squared, release["gradient"].mu_squared
    restored(world)
    raised(world).rejoin()
    shutil.rmtree(world.folder / "backup")
    shutil.copytree(mine(world), world.folder / "backup")
    answered(world)
    restored(world)
    owner = raised(world)
    owner.rejoin()
    assert spent(world) == pytest.approx(context + (4 + 3) * each)


def test_a_context_that_a_client_left_out_is_asked_for_when_it_has_come_back(tmp_path: Path) -> None:
    world = world_of(tmp_path, rounds=3)
    world.enrol_all()
    shutil.copytree(mine(world), tmp_path / "backup")
    restored(world)
    assert answered(world)[1] == {"kind": "context", "round": 0, "left": LEFT}
    world.step()
    assert world.coordinator.missing()[0] == "context"
    world.step()
    raised(world).rejoin()
    assert answered(world)[1]["kind"] == "context"
    assert answered(world)[1]["kind"] == "gradient"
    world.finish()
    assert charged(world, 0) == [("context", 0), ("gradient", 2), ("gradient", 3)]


@pytest.mark.parametrize("restore", RESTORES)
def test_what_is_released_after_the_rounds_is_left_out_too(tmp_path: Path, restore: Restore) -> None:
    world = World(tmp_path, **{**SHARES, "seeded": False})
    world.enrol_all()
    while world.coordinator.server.round < 2:
        world.step()
    shutil.copytree(mine(world), tmp_path / "backup")
    world.answer(0)  # lost on its way
    restored(world, restore)
    assert world.answer(0) == {"kind": "confusion", "round": 0, "left": LEFT}
    with ledger(world, 0) as book:
        whole = book.past.total_in(world.store.run).spent
    raised(world).rejoin()
    confusion = world.coordinator.blueprint.releases_of(0)["confusion"].mu_squared
    assert spent(world) == pytest.approx(
        whole if restore in (only_the_ledger, only_the_directory) else whole + confusion
    )
    assert "release" in world.answer(0) or restore is only_the_directory


def test_a_client_killed_between_charge_and_note_has_not_left_and_notices_a_restore_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = backed_up(world_of(tmp_path))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            world.answer(0)
    assert world.answer(0)["release"]  # as it was stored; leaves, and is lost on its way
    restored(world, only_the_ledger)
    assert world.answer(0)["left"] == LEFT


def test_all_runs_of_a_directory_that_was_put_back_are_left_and_rejoined_one_by_one(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.enrol_all()
    store = Store.open(tmp_path / "other.sqlite", world.agreement)
    other = Coordinator(world.agreement, store)
    raised(world)
    other.roster.enrol(world.node(0).enrol(other.roster.offer()), "0")
    shutil.copytree(mine(world), tmp_path / "backup")
    for coordinator in (other, world.coordinator):
        world.node(0).release(coordinator.request(0, "context"))  # leaves, and is lost on its way
    restored(world, only_the_ledger)
    for coordinator in (world.coordinator, other):
        assert world.node(0).release(coordinator.request(0, "context"))["left"] == LEFT
    lines = raised(world).rejoin()
    assert sorted(line.split()[2] for line in lines) == sorted(
        f"{run};" for run in (world.store.run, store.run)
    )
    with ledger(world, 0) as book:
        once = book.past.total_in(store.run).spent
        assert once == pytest.approx(book.past.total_in(world.store.run).spent)
    for coordinator in (world.coordinator, other):
        assert "release" in world.node(0).release(coordinator.request(0, "context"))


def test_a_request_that_was_lost_is_no_restored_backup(tmp_path: Path) -> None:
    world = backed_up(world_of(tmp_path))
    for _ in range(3):
        world.coordinator.request(0, "gradient")
    world.kill()
    world.start()
    world.finish()
    assert everyone_paid(world)
    assert len(charged(world, 0)) == 3


def test_a_request_says_nothing_of_what_the_server_has(tmp_path: Path) -> None:
    """A client believes no server about that, and asks none."""
    world = backed_up(world_of(tmp_path))
    asked = {
        "run",
        "agreement",
        "sizes",
        "kind",
        "round",
        "seal",
        "bucket",
        "diagnostics",
        "refused",
        "coefficients",
    }
    assert world.coordinator.request(0, "gradient").keys() == asked


def test_the_ledger_of_a_client_that_rejoined_stays_a_copy_for_everything_else(tmp_path: Path) -> None:
    world = backed_up(world_of(tmp_path, rounds=3))
    restored(world)
    [line] = raised(world).rejoin()
    assert f"sottovoce ledger vouch {mine(world) / 'ledger.sqlite'}" in line
    assert "release" in answered(world)[1]
    with ledger(world, 0) as book:
        assert book.past.copied
    restored(world)  # another copy of the same
    assert answered(world)[1]["left"] == LEFT


def test_what_a_client_of_version_0_1_noted_is_still_charged(tmp_path: Path) -> None:
    world = backed_up(world_of(tmp_path))
    [trace] = mine(world).glob("trace-*.witness")
    fields = json.loads(trace.read_text().splitlines()[-1])
    old = {"lock": 1, "releases": 5, "spent": fields["spent"] + 0.75, "server": 0, "time": 1}
    trace.with_suffix(".json").write_text(json.dumps(old))
    trace.unlink()
    world.answer(0)
    with ledger(world, 0) as book:
        assert book.past.lost_in(world.store.run).spent == pytest.approx(0.75)
