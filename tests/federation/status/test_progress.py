"""What the server tells of a federation: who is there and what is waited for, and nothing of one client."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation.server import Options
from sottovoce.federation.status.progress import Progress
from sottovoce.machine.files import FileError
from sottovoce.report.look import look
from sottovoce.report.status import FILE, FORMAT
from tests.federation.test_tables import Tables
from tests.federation.world import QUICK, SHARED, World


class Told:
    """A world whose answers are told to its `Progress`, as a driver does."""

    def __init__(self, folder: Path, late: float = 0.0, **changes: Any) -> None:
        options = Options(patience=0.0) if changes.pop("hurried", False) else None
        self.world = World(folder, options=options, **{**QUICK, **changes})
        self.folder = folder
        self.late = late
        self.begin()

    def begin(self) -> None:
        self.progress = Progress(self.folder, self.world.coordinator, late=self.late)

    def answer(self, participant: int) -> int:
        fields = self.world.answer(participant)
        self.world.coordinator.accept(participant, fields)
        self.progress.received(participant, len(fields["release"]))
        return len(fields["release"])

    def phase(self) -> int:
        """Everybody answers, and the phase is closed; the bytes that came."""
        sent = sum(self.answer(participant) for participant in list(self.world.coordinator.missing()))
        self.update(self.world.coordinator.advance())
        return sent

    def update(self, line: dict[str, Any] | None = None, connected: tuple[int, ...] = (0, 1, 2)) -> None:
        self.progress._written = -100.0
        self.progress.update(connected, line)

    @property
    def file(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / FILE).read_text())
        return found


def test_who_has_not_enrolled_is_not_connected_or_is_late_is_named_and_nobody_else(tmp_path: Path) -> None:
    told = Told(tmp_path, late=0.0)
    told.world.enrol(0)
    told.world.enrol(1)
    told.update(connected=(0,))
    file = told.file
    assert (file["phase"], file["round"], len(file["waiting"])) == ("contexts", 0, 3)
    assert [one["why"] for one in file["waiting"]] == [
        "is late, and is asked again",
        "is not connected",
        "has not enrolled",
    ]
    told.progress._late = 3600.0  # the first is only busy
    told.answer(0)
    told.update(connected=(0,))
    assert [one["name"] for one in told.file["waiting"]] == ["client-1", "participant-2"]
    assert told.file["clients"][0] == {"name": "client-0", "enrolled": True, "connected": True, "late": False}
    assert oct((tmp_path / FILE).stat().st_mode & 0o777) == "0o600"


def test_bytes_are_the_total_of_a_closed_round_and_nothing_before(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.world.enrol_all()
    told.phase()
    first, *others = told.world.coordinator.missing()
    sent = told.answer(first)
    told.update()
    assert told.file["history"] == []
    text = (tmp_path / FILE).read_text()
    assert str(sent) not in text.replace(str(told.file["since"]), "")
    sent += sum(told.answer(participant) for participant in others)
    told.update(told.world.coordinator.advance())
    [line] = told.file["history"]
    assert (line["round"], line["bytes_up"]) == (1, sent)
    assert line["bytes_down"] > 0


@pytest.mark.parametrize("called", ["one is called", "one answers"])
def test_where_one_client_answers_a_round_its_bytes_are_not_told(tmp_path: Path, called: str) -> None:
    one = called == "one is called"
    told = Told(tmp_path, clients_per_round=1 if one else 3, hurried=not one)
    told.world.enrol_all()
    told.phase()
    told.answer(next(iter(told.world.coordinator.missing())))
    line = told.world.coordinator.advance()
    assert line is not None
    told.update(line)
    assert len(line["clients"]) == 1
    [line] = told.file["history"]
    assert (line["bytes_up"], line["bytes_down"]) == (None, None)


def test_a_total_of_which_a_killed_server_had_a_part_is_not_told(tmp_path: Path) -> None:
    """Else two rounds of a restarted server would tell one client's bytes."""
    told = Told(tmp_path, clients_per_round=3)  # two answer after the kill
    told.world.enrol_all()
    told.phase()
    told.phase()
    told.answer(next(iter(told.world.coordinator.missing())))
    told.world.kill()
    told.world.start()
    told.begin()
    told.phase()
    assert [line["bytes_up"] is None for line in told.file["history"]] == [False, True]


def test_epsilon_is_that_of_what_came_from_who_spent_most(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.world.enrol_all()
    told.update()
    assert told.file["epsilon"] == {"target": 8.0, "spent": 0.0}
    while not told.world.coordinator.done:
        told.phase()
    found, blueprint = told.file["epsilon"], told.world.coordinator.blueprint
    counts = {"context": 1, "gradient": 2}
    assert found["spent"] == pytest.approx(blueprint.epsilon(counts, 0))
    assert found["gradient"] == pytest.approx(blueprint.epsilon({"gradient": 2}, 0))
    assert told.file["phase"] == "models"


def test_nothing_begins_before_all_have_declared_and_the_file_says_so(tmp_path: Path) -> None:
    world = Tables(tmp_path)
    world.enrol(0)
    progress = Progress(tmp_path, world.coordinator, late=0.0)
    progress.update([0])
    file = json.loads((tmp_path / FILE).read_text())
    assert (file["phase"], file["round"], file["epsilon"]["spent"]) == ("enrolment", 0, 0.0)
    assert {one["why"] for one in file["waiting"]} == {"has not enrolled"}
    assert len(file["waiting"]) == world.agreement.plan.participants - 1
    assert "Nothing begins before all have enrolled" in look(tmp_path).why


def test_an_error_is_told_once_and_names_the_client_as_others_know_it(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.world.enrol_all()
    name = told.world.coordinator.roster.names[1]
    for said in ("participant-1 declined: no", "participant-77 is nobody", "participant-1 declined: no"):
        told.progress.errors.emit(logging.makeLogRecord({"msg": said, "levelno": logging.WARNING}))
    told.update()
    assert name != "participant-1"
    assert [line["text"] for line in told.file["errors"]] == [
        "participant-77 is nobody",
        f"{name} declined: no",
    ]


def test_the_last_errors_and_the_number_of_refusals_outlive_the_server(tmp_path: Path) -> None:
    told = Told(tmp_path)
    logger = logging.getLogger("sottovoce.federation")
    logger.addHandler(told.progress.errors)
    for number in range(12):
        logger.warning("fault %d", number)
    logger.removeHandler(told.progress.errors)
    told.progress.refused()
    told.update()
    assert {error["time"] % 60 for error in told.file["errors"]} == {0.0}
    assert [error["text"] for error in told.file["errors"]] == [f"fault {number}" for number in range(2, 12)]
    told.begin()
    told.update()
    assert told.file["refusals"] == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99, "history": 3}'])
def test_a_damaged_file_or_a_full_disk_stops_no_server(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path)
    (tmp_path / FILE).write_text(content)
    told.begin()

    def full(*_: object) -> None:
        raise FileError("cannot write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.report.status.write_atomically", full)
        told.update()
    told.update()
    assert told.file["format"] == FORMAT


def test_a_helper_of_shared_noise_is_waited_for_by_its_name_and_nothing_goes_on_without_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, **SHARED)
    world.enrol_all()
    participants = world.agreement.plan.participants
    while min(world.coordinator.missing(), default=0) < participants:  # until the helpers' masks are due
        for participant in list(world.coordinator.missing()):
            world.coordinator.accept(participant, world.answer(participant))
        world.coordinator.advance()
    Progress(tmp_path, world.coordinator, late=0.0).update(range(participants))
    waiting = json.loads((tmp_path / FILE).read_text())["waiting"]
    assert {one["why"] for one in waiting} == {"is not connected"}
    assert all(one["name"].startswith("helper ") for one in waiting)
    assert "No sum opens without it" in look(tmp_path).why
