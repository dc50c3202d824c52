"""What a client keeps of its enrolment."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.federation.enrolment import Enrolment
from sottovoce.federation.keys import EnrolmentError
from sottovoce.privacy.ledger import OWN_RECORDS, Charge

from .world import World, ledger


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
    assert (EXAMPLE.records, EXAMPLE.ledger, EXAMPLE.frozen) == (0, "", "")
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
