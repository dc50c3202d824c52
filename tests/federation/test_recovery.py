"""A client that comes back with old state pays for whatever may have left, and uses no stream twice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.directory import ClientLog, Recovery
from sottovoce.federation.server import Coordinator, Fields, Options
from sottovoce.federation.store import Store
from sottovoce.privacy.accounting import Budget, Charge, Total
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger

from .test_server import SHARES
from .world import World, charged, everyone_paid, ledger

Restore = Callable[[Path, Path], None]


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


def all_but_the_lock(backup: Path, mine: Path) -> None:
    """As `rsync` would half a minute later: files that look the same are left as they are."""
    for trace in backup.glob("trace-*.witness"):
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        old = [json.dumps({**line, "time": line["time"] - 30 * 10**9}) + "\n" for line in lines]
        trace.write_text("".join(old))
    shutil.copytree(backup, mine, dirs_exist_ok=True, ignore=lambda *_: ["lock"])


RESTORES = [whole_directory, whole_directory_with_its_times, only_the_ledger, all_but_the_lock]


def backed_up(tmp_path: Path) -> World:
    """A world whose client 0 made a backup after its first gradient."""
    world = World(tmp_path, seeded=False, rounds=6, clients_per_round=3, options=Options(patience=0.0))
    world.enrol_all()
    world.step()
    world.step()
    shutil.copytree(tmp_path / "clients" / "client-0", tmp_path / "backup")
    return world


def left_out(answer: Fields) -> bool:
    return "release" not in answer and "may have left before" in answer["left_out"]


def others_answer(world: World) -> None:
    for participant in (1, 2):
        world.coordinator.accept(participant, world.answer(participant))
    world.coordinator.advance()


@pytest.mark.parametrize("restore", RESTORES)
def test_a_backup_that_lacks_only_the_release_in_flight_is_noticed(tmp_path: Path, restore: Restore) -> None:
    world = backed_up(tmp_path)
    world.answer(0)  # leaves the client and is lost
    restore(tmp_path / "backup", tmp_path / "clients" / "client-0")
    for _ in range(2):
        assert left_out(world.answer(0))
    paid = [("context", 0), ("gradient", 1), ("gradient", 2)]
    assert charged(world, 0) == paid
    others_answer(world)
    world.finish()
    assert charged(world, 0) == sorted([*world.store.received(0), ("gradient", 2)])


def test_nobody_waits_for_what_a_restored_client_leaves_out(tmp_path: Path) -> None:
    """All with ten minutes of patience: a gradient is missing in its round, a context in the whole run."""
    world = World(tmp_path, seeded=False, clients_per_round=3)
    world.enrol_all()
    for participant in (0, 1):
        shutil.copytree(tmp_path / "clients" / f"client-{participant}", tmp_path / f"backup-{participant}")
    world.answer(0)  # its context leaves and is lost
    whole_directory(tmp_path / "backup-0", tmp_path / "clients" / "client-0")
    world.step()
    world.answer(1)  # its gradient too
    whole_directory(tmp_path / "backup-1", tmp_path / "clients" / "client-1")
    lines = [world.step() or {} for _ in range(4)]
    assert [line["clients"] for line in lines] == [
        ["participant-2"],
        *[["participant-1", "participant-2"]] * 3,
    ]
    assert world.coordinator.done


def test_what_is_left_out_is_of_the_open_round(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    for false in (
        {"kind": "gradient", "round": 1},
        {"kind": "gradient", "round": "2\n"},
        {"kind": "all", "round": 2},
    ):
        with pytest.raises(SottovoceError, match=r"not open|other than a release"):
            world.coordinator.accept(0, {**false, "left_out": "gone"})
    assert 0 in world.coordinator.missing()


def test_a_release_that_was_lost_in_an_earlier_round_is_charged_too(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    world.answer(0)
    others_answer(world)
    whole_directory(tmp_path / "backup", tmp_path / "clients" / "client-0")
    world.coordinator.accept(0, world.answer(0))  # round 3, which was not asked for before
    assert charged(world, 0) == [("context", 0), ("gradient", 1), ("gradient", 2), ("gradient", 3)]


@pytest.mark.parametrize("what", ["received", "asked"])
def test_a_forged_list_charges_only_what_the_schedule_asks_of_this_client(tmp_path: Path, what: str) -> None:
    world = World(tmp_path, seeded=False, rounds=4, clients_per_round=2, options=Options(patience=0.0))
    world.enrol_all()
    world.step()
    schedule = world.coordinator.blueprint.schedule
    mine = [number for number, called in enumerate(schedule, 1) if 0 in called]
    assert 0 < len(mine) < 4  # some rounds call others
    request = world.coordinator.request(0, "context")
    forged = [*range(-3, 400), *mine, 2**40]
    request = {**request, f"{what}_rounds": forged, f"{what}_confusion": True}
    if what == "asked":  # as far as a restored client believes it
        shutil.copytree(tmp_path / "clients" / "client-0", tmp_path / "backup")
        whole_directory(tmp_path / "backup", tmp_path / "clients" / "client-0")
    world.node(0).release(request)
    assert charged(world, 0) == [("context", 0), *(("gradient", number) for number in mine)]


def test_a_first_release_in_flight_is_noticed_too(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    mine = tmp_path / "clients" / "client-0"
    shutil.copytree(mine, tmp_path / "backup")
    world.answer(0)
    whole_directory(tmp_path / "backup", mine)
    assert left_out(world.answer(0))
    assert charged(world, 0) == [("context", 0)]


@pytest.mark.parametrize("restore", RESTORES)
def test_what_the_server_has_is_charged_and_training_continues(tmp_path: Path, restore: Restore) -> None:
    world = backed_up(tmp_path)
    world.step()
    world.step()
    restore(tmp_path / "backup", tmp_path / "clients" / "client-0")
    assert charged(world, 0) == [("context", 0), ("gradient", 1)]
    world.coordinator.accept(0, world.answer(0))
    assert charged(world, 0) == sorted(world.store.received(0))
    world.finish()
    assert everyone_paid(world)
    assert len(charged(world, 0)) == 7


def test_a_client_killed_between_charge_and_note_notices_a_restore_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = backed_up(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            world.answer(0)
    assert world.answer(0)["release"]  # as it was stored; leaves, and is lost on its way
    only_the_ledger(tmp_path / "backup", tmp_path / "clients" / "client-0")
    assert left_out(world.answer(0))
    assert charged(world, 0) == [("context", 0), ("gradient", 1), ("gradient", 2)]


def test_two_runs_in_one_directory_do_not_hide_each_others_losses(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False, rounds=6, clients_per_round=3)
    world.enrol_all()
    store = Store.open(tmp_path / "other.sqlite", world.agreement)
    other = Coordinator(world.agreement, store)
    other.roster.enrol(world.node(0).enrol(other.roster.offer()), "0")
    shutil.copytree(tmp_path / "clients" / "client-0", tmp_path / "backup")
    for coordinator in (other, world.coordinator):
        world.node(0).release(coordinator.request(0, "context"))  # leaves, and is lost on its way
    only_the_ledger(tmp_path / "backup", tmp_path / "clients" / "client-0")
    for coordinator in (world.coordinator, other):
        assert left_out(world.node(0).release(coordinator.request(0, "context")))
    assert charged(world, 0) == [("context", 0), ("context", 0)]


def test_a_restored_client_is_charged_for_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = backed_up(tmp_path)
    world.answer(0)
    others_answer(world)
    world.answer(0)
    whole_directory(tmp_path / "backup", tmp_path / "clients" / "client-0")
    append = Ledger._append

    def killed_at_the_second(ledger: Ledger, charge: Charge, message: bytes, budget: Budget) -> None:
        if charge.round == 3:
            raise KeyboardInterrupt
        append(ledger, charge, message, budget)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_append", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            world.answer(0)
    assert charged(world, 0) == [("context", 0), ("gradient", 1)]
    assert left_out(world.answer(0))
    assert charged(world, 0) == [("context", 0), ("gradient", 1), ("gradient", 2), ("gradient", 3)]


def test_a_request_that_was_lost_is_no_restored_backup(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    for _ in range(3):
        world.coordinator.request(0, "gradient")
    world.kill()
    world.start()
    world.finish()
    assert everyone_paid(world)
    assert len(charged(world, 0)) == 7


def test_a_request_is_remembered_before_it_leaves(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    first = world.coordinator.request(0, "gradient")
    world.kill()
    world.start()
    again = world.coordinator.request(0, "gradient")
    assert first["asked_rounds"] == [1]
    assert again["asked_rounds"] == [1, 2]


def test_the_clients_own_log_says_what_happened_and_nothing_about_records(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    mine = tmp_path / "clients" / "client-0"
    world.answer(0)
    world.answer(0)
    text = (mine / "client.log").read_text()
    for expected in (
        f"enrols in run {world.store.run} as participant-0",
        "sends the context of round 0, charged: these records have spent ε =",
        "sends the gradient of round 2, charged",
        "sends the gradient of round 2 again, as it was stored",
    ):
        assert expected in text
    (tmp_path / "backup" / "client.log").unlink()
    all_but_the_lock(tmp_path / "backup", mine)
    assert left_out(world.answer(0))
    world.node(0).refused(world.store.run, "the federation is full")
    text = (mine / "client.log").read_text()
    assert "was restored from a backup: charged for the gradient of round 2" in text
    assert "ERROR refused the gradient of round 2: the ledger was restored" in text
    assert "the server refused this client: the federation is full" in text
    assert (mine / "client.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("restore", RESTORES)
def test_a_confusion_that_may_have_left_before_the_restore_is_charged_and_left_out(
    tmp_path: Path, restore: Restore
) -> None:
    world = World(tmp_path, **{**SHARES, "seeded": False})
    world.enrol_all()
    while world.coordinator.server.round < 2:
        world.step()
    shutil.copytree(tmp_path / "clients" / "client-0", tmp_path / "backup")
    world.answer(0)  # lost on its way
    restore(tmp_path / "backup", tmp_path / "clients" / "client-0")
    assert left_out(world.answer(0))
    assert ("confusion", 0) in charged(world, 0)


@dataclass
class Books:
    """As much of a ledger as a recovery asks for."""

    released: int = 3
    copy: int = 0
    past: Any = None

    def __post_init__(self) -> None:
        self.past = self

    def releases(self, *_: object, run: str) -> int:
        return self.released

    def total_in(self, run: str) -> Total:
        return Total(OWN_RECORDS, run, self.released, 0.5, 1)


def recovery(folder: Path, books: Books) -> Recovery:
    return Recovery(folder, cast(Ledger, books), "0" * 16, ClientLog(folder / "client.log"))


def test_a_run_was_restored_if_its_memory_was_or_the_ledger_holds_less(tmp_path: Path) -> None:
    assert recovery(tmp_path, Books())._restored()  # nothing is remembered
    recovery(tmp_path, Books()).note()
    file = tmp_path / f"trace-{'0' * 16}.witness"
    before = file.stat().st_ino
    recovery(tmp_path, Books()).note()
    assert file.stat().st_ino == before  # nothing new
    assert json.loads(file.read_text()).items() >= {"releases": 3, "spent": 0.5, "server": 1}.items()
    for released, restored in ((3, False), (4, False), (2, True)):
        assert recovery(tmp_path, Books(released))._restored() is restored
    (tmp_path / "lock").rename(tmp_path / "old")
    (tmp_path / "lock").touch()
    assert recovery(tmp_path, Books())._restored()
    recovery(tmp_path, Books()).note()
    assert not recovery(tmp_path, Books())._restored()


def test_a_run_is_recovered_once_for_each_copy_of_its_ledger(tmp_path: Path) -> None:
    recovery(tmp_path, Books()).note()
    assert recovery(tmp_path, Books(copy=7))._restored()
    recovery(tmp_path, Books(copy=7)).note()
    assert not recovery(tmp_path, Books(copy=7))._restored()
    assert recovery(tmp_path, Books(copy=8))._restored()
    assert not recovery(tmp_path, Books())._restored()  # its owner trusts it by now


def test_a_request_that_was_lost_costs_nothing_while_the_ledger_is_a_copy(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    whole_directory(tmp_path / "backup", tmp_path / "clients" / "client-0")
    world.coordinator.accept(0, world.answer(0))
    others_answer(world)
    for _ in range(3):
        world.coordinator.request(0, "gradient")
    assert "release" in world.answer(0)
    with ledger(world, 0) as book:
        assert book.past.copied


def test_what_a_client_of_version_0_1_noted_is_still_charged(tmp_path: Path) -> None:
    world = backed_up(tmp_path)
    mine = tmp_path / "clients" / "client-0"
    [trace] = mine.glob("trace-*.witness")
    fields = json.loads(trace.read_text().splitlines()[-1])
    old = {"lock": 1, "releases": 5, "spent": fields["spent"] + 0.75, "server": 0, "time": 1}
    trace.with_suffix(".json").write_text(json.dumps(old))
    trace.unlink()
    world.answer(0)
    with ledger(world, 0) as book:
        assert book.past.lost_in(world.store.run).spent == pytest.approx(0.75)
