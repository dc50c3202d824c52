"""What a client's owner sees of it: what its records have spent and will, its last contact, its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sottovoce.machine.files import FileError, locked
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger
from sottovoce.report import status
from sottovoce.report.look import look
from sottovoce.report.status import FILE, Status

from .world import QUICK, World


class Watched(World):
    """A world whose nodes note what comes, as the Flower app lets them."""

    def directory(self, index: int) -> Path:
        return self.folder / "clients" / f"client-{index}"

    def enrol(self, index: int) -> int:
        offer = self.coordinator.roster.offer()
        joined = super().enrol(index)
        self.node(index).contacted("enrolment", offer)
        return joined

    def answer(self, participant: int) -> dict[str, Any]:
        kind = self.coordinator.missing()[participant]
        request = {"run": self.coordinator.run}
        request |= {} if kind == "model" else {"round": self.coordinator.round + 1}
        fields = super().answer(participant)
        self.node(participant).contacted("model" if kind == "model" else "release", request)
        return fields


@pytest.fixture
def world(tmp_path: Path) -> Watched:
    world = Watched(tmp_path, **QUICK)
    world.enrol_all()
    return world


def seen(folder: Path) -> Status:
    found = look(folder)
    assert found.role == "client"
    return found


def test_the_owner_reads_what_is_spent_and_what_the_run_will_spend(world: Watched) -> None:
    found = seen(world.directory(0))
    assert (found.state, found.exit_code, found.client) == ("waiting", 4, "client-0")
    assert found.headroom.startswith("ε 0 of 8 spent; this run will spend ")
    assert found.epsilon["together"] == found.epsilon["run"] > 0
    while not world.coordinator.done:
        world.step()
    found = seen(world.directory(0))
    with Ledger.open(world.directory(0) / "ledger.sqlite", scope=None) as ledger:
        spent = ledger.epsilon(OWN_RECORDS, 1e-5, "exact")
    assert found.epsilon["spent"] == found.epsilon["run_spent"] == pytest.approx(spent)
    assert found.epsilon["together"] == pytest.approx(spent)  # a run costs what was said before it
    called = sum(0 in chosen for chosen in world.coordinator.blueprint.schedule)
    assert (found.gradients, found.rounds) == (called, 2)
    world.deliver_models()
    found = seen(world.directory(0))
    assert (found.state, found.why) == ("finished", "it has its model")
    assert found.round == max(
        i + 1 for i, chosen in enumerate(world.coordinator.blueprint.schedule) if 0 in chosen
    )
    assert "this run has spent 5.3" in found.headroom
    assert found.seconds_since is not None


def test_what_other_runs_have_spent_and_a_stricter_budget_are_counted(world: Watched) -> None:
    world.finish()
    with Ledger.open(world.directory(1) / "ledger.sqlite", scope=None) as ledger:
        ledger.willing(2.0)
    noted = json.loads((world.directory(1) / FILE).read_text())
    (world.directory(1) / FILE).write_text(
        json.dumps({**noted, "run": "f" * 16, "cost": 0.0})
    )  # an earlier run's charges
    found = seen(world.directory(1))
    assert found.epsilon["budget"] == 2.0
    assert found.epsilon["spent"] > found.epsilon["run_spent"] == 0.0
    assert "run" not in found.epsilon


def test_a_refusal_is_told_to_the_owner_with_its_reason(world: Watched) -> None:
    directory = world.directory(2)
    world.node(2).contacted("release", {"run": world.coordinator.run}, refused="beyond the budget of 0.001")
    found = seen(directory)
    assert (found.state, found.exit_code, found.refusals) == ("failed", 1, 1)
    assert "beyond the budget" in found.why
    with locked(directory / "lock"):
        assert seen(directory).state == "running"


def test_looking_writes_nothing(world: Watched) -> None:
    folder = world.folder / "clients"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for index in range(3):
        seen(world.directory(index))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_node_that_was_never_asked_waits_and_one_without_a_directory_leaves_none(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK)
    world.node(0).contacted("enrolment", world.coordinator.roster.offer(), refused="no")
    directory = tmp_path / "clients" / "client-0"
    assert not directory.exists()
    directory.mkdir()
    (directory / "client.log").write_text("2026 ERROR not ready, and nothing was charged: no such column\n")
    found = seen(directory)
    assert (found.state, len(found.errors)) == ("waiting", 1)
    assert "no such column" in found.why


@pytest.mark.parametrize(
    ("content", "why"), [("{", "damaged"), ('{"format": 7}', "another version"), ('{"format": 2}', "damaged")]
)
def test_what_cannot_be_read_is_unknown_in_one_line(world: Watched, content: str, why: str) -> None:
    (world.directory(0) / FILE).write_text(content)
    found = seen(world.directory(0))
    assert (found.state, found.exit_code) == ("unknown", 2)
    assert why in found.why


def test_a_ledger_that_is_gone_is_said_to_be(world: Watched) -> None:
    (world.directory(0) / "ledger.sqlite").rename(world.folder / "elsewhere")
    found = seen(world.directory(0))
    assert found.epsilon == {}
    assert found.headroom == "the ledger cannot be read"


def test_a_note_that_cannot_be_written_is_no_reason_not_to_answer(
    world: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FileError("cannot write: No space left on device")

    monkeypatch.setattr(status, "write_atomically", full)
    assert world.step() is None
