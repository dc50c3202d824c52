"""What a client keeps of its enrolments; what its own log says, and what it never says."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.site.directory import ClientLog, Enrolment
from sottovoce.privacy.ledger import OWN_RECORDS, Charge

from ..world import World, charged, ledger


def test_a_refused_enrolment_is_forgotten_unless_its_run_has_releases(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    world.answer(0)
    world.node(0).refused(world.store.run, "a mistake")
    assert world.enrol(0) == 0
    with ledger(world, 1) as book:
        elsewhere = Charge("0" * 16, OWN_RECORDS, "context", 0, sensitivity=0.01, sigma=1.0)
        book.commit(elsewhere, b"", world.coordinator.blueprint.budget)
    world.node(1).refused(world.store.run, "the index is taken")
    assert not list((tmp_path / "clients" / "client-1").glob("enrolment-*"))


EXAMPLE = Enrolment("0" * 16, 3, "digest", "aa", "bb", "cc")


def test_an_enrolment_is_kept_for_its_owner_only_one_for_each_run(tmp_path: Path) -> None:
    EXAMPLE.write(tmp_path)
    other = replace(EXAMPLE, run="1" * 16)
    other.write(tmp_path)
    assert Enrolment.read(tmp_path, EXAMPLE.run) == EXAMPLE
    assert Enrolment.read(tmp_path, other.run) == other
    assert Enrolment.read(tmp_path, "2" * 16) is None
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("run", ["", "../" + "0" * 16, "0" * 15, "0" * 17, "G" * 16, "0" * 16 + "\n"])
def test_a_run_whose_name_could_be_a_path_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(EnrolmentError, match="not the name of a run"):
        Enrolment.read(tmp_path, run)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"run": 3, "nonsense": 1}'])
def test_a_damaged_enrolment_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    Enrolment.file(tmp_path, EXAMPLE.run).write_text(text)
    with pytest.raises(EnrolmentError, match="damaged"):
        Enrolment.read(tmp_path, EXAMPLE.run)


def test_what_strangers_say_is_one_short_line_of_a_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    long = "x\n2026 ERROR all is lost\x1b[2J" * 1000
    for refused in (
        lambda: world.coordinator.accept(0, {"error": long}),
        lambda: world.coordinator.accept(0, {"kind": "context", "round": long, "release": b""}),
        lambda: world.coordinator.roster.enrol({"error": long}, "9"),
        lambda: world.coordinator.roster.enrol(
            {"agreement": world.agreement.digest(), "participant": long, "key": b"", "proof": b""}, "9"
        ),
    ):
        with pytest.raises(SottovoceError) as error:
            refused()
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 300
    request = world.coordinator.request(0, "context")
    world.node(0).release({**request, "refused": long})
    world.node(0).refused(world.store.run, long)
    with pytest.raises(SottovoceError):
        world.node(0).release({**request, "kind": long, "agreement": long})
    lines = (tmp_path / "clients" / "client-0" / "client.log").read_text().splitlines()
    assert len(lines) == 5
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def test_a_client_reads_in_its_own_log_why_its_answer_was_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    answer = world.answer(0)
    damaged = answer["release"][:-1] + bytes([answer["release"][-1] ^ 1])
    with pytest.raises(SottovoceError, match="does not match its seal"):
        world.coordinator.accept(0, {**answer, "release": damaged})
    assert world.answer(0) == answer
    log = tmp_path / "clients" / "client-0" / "client.log"
    assert "ERROR the server refused an answer: message does not match its seal" in log.read_text()
    assert world.coordinator.request(0, "context")["refused"] == ""
    assert charged(world, 0) == [("context", 0)]


def test_lines_are_appended_for_their_owner_and_errors_are_noted_and_raised(tmp_path: Path) -> None:
    own = ClientLog(tmp_path / "client.log")
    own.note("enrols")
    with pytest.raises(ZeroDivisionError), own.refusals("the context of round 0"):
        raise ZeroDivisionError("1/0")
    first, second = (tmp_path / "client.log").read_text().splitlines()
    assert first.endswith(" INFO enrols")
    assert second.endswith(" ERROR refused the context of round 0: ZeroDivisionError('1/0')")
    assert stat.S_IMODE((tmp_path / "client.log").stat().st_mode) == 0o600
