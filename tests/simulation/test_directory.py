"""The files of a run: never overwritten, never half written, never of two plans."""

from __future__ import annotations

import pytest

from sottovoce.simulation.directory import RunError
from sottovoce.simulation.training import train
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
