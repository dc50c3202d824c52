"""The files of a run: never overwritten, never half written, never of two plans."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sottovoce.run.directory import RunDirectory, RunError
from sottovoce.run.training import train
from tests.small import small_plan

from .interrupting import interrupted


@pytest.mark.parametrize("damage", ["garbage\n", '{"foreign": 1}\n'])
def test_damaged_rounds_are_refused(tmp_path, records, damage: str) -> None:
    interrupted(small_plan(), tmp_path / "run", records)
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write(damage)
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        train(small_plan(), tmp_path / "run", dataset=records, resume=True)


def test_a_run_is_neither_overwritten_nor_resumed_under_another_plan(tmp_path, records) -> None:
    train(small_plan(), tmp_path / "run", dataset=records)
    with pytest.raises(RunError, match="already holds a run"):
        train(small_plan(), tmp_path / "run", dataset=records)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match=r"clip=1\.0, not 0\.5"):
        train(small_plan(clip=0.5), tmp_path / "run", dataset=records, resume=True)


def test_the_name_and_the_ledger_of_a_run_are_kept(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.reserve()
    directory.start(small_plan(), "0123", None)
    assert directory.identity() == ("0123", directory.ledger_file)
    assert directory.plan() == small_plan()
    other = RunDirectory(tmp_path / "other")
    other.reserve()
    other.start(small_plan(), "4567", tmp_path / "shared.sqlite")
    assert other.identity() == ("4567", tmp_path / "shared.sqlite")
    other.identity_file.write_text("{}")
    with pytest.raises(RunError, match="missing or damaged"):
        other.identity()


def test_a_line_that_a_kill_cut_off_is_left_out_and_a_hole_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.rounds() == []
    for number in (1, 2, 3):
        directory.append_round({"round": number})
    with directory.rounds_file.open("a") as file:
        file.write('{"round": 4, "by')
    assert [line["round"] for line in directory.rounds()] == [1, 2, 3]
    directory.truncate_rounds(2)
    assert directory.rounds_file.read_text() == '{"round": 1}\n{"round": 2}\n'
    directory.append_round({"round": 4})
    with pytest.raises(RunError, match="1, 2, 3"):
        directory.rounds()


def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(RunError, match=r"no plan\.toml"):
        directory.plan()
    with pytest.raises(RunError, match="holds no run"):
        directory.result()
    directory.plan_file.touch()
    with pytest.raises(RunError, match="resume"):
        directory.result()
    for damage in (b"{", b"[]", b"\xff"):
        directory.result_file.write_bytes(damage)
        with pytest.raises(RunError, match="damaged"):
            directory.result()


def test_the_master_secret_stays_and_is_for_its_owner(tmp_path: Path) -> None:
    secret = RunDirectory(tmp_path).master_secret()
    assert RunDirectory(tmp_path).master_secret() == secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
