"""Callbacks get what the files of a run have, cannot change it, and cannot end it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sottovoce.api import train
from sottovoce.errors import SottovoceError
from sottovoce.run.directory import RunDirectory
from tests.run.test_dry_run import own, own_plan


class Following:
    """Keeps what it is told, and spoils it afterwards."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def _keep(self, moment: str, said: Any) -> None:
        self.told.append((moment, json.dumps(said)))
        said.clear()

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        self._keep("plan", plan)

    def on_round(self, line: Mapping[str, Any]) -> None:
        self._keep("round", line)

    def on_result(self, result: Mapping[str, Any]) -> None:
        self._keep("result", result)


def test_they_get_what_the_files_have_and_nothing_else(tmp_path: Path) -> None:
    following, directory = Following(), RunDirectory(tmp_path / "run")
    plan = own_plan(rounds=3, evaluate_every=2)
    result = train(plan, tmp_path / "run", dataset=own(), callbacks=[following])
    lines = [("round", json.dumps(line)) for line in directory.rounds()]
    written = ("plan", json.dumps(asdict(directory.plan())))
    assert following.told == [written, *lines, ("result", json.dumps(directory.result()))]
    assert directory.result() == result
    assert len(lines) == 3


def test_one_that_fails_is_not_called_again_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    class Unreachable:
        def on_round(self, line: Mapping[str, Any]) -> None:
            calls.append(line["round"])
            raise ConnectionError("no route\nto the tracker")

    following = Following()
    with caplog.at_level(logging.WARNING):
        train(own_plan(), tmp_path / "run", dataset=own(), callbacks=[Unreachable(), following])
    assert calls == [1]
    said = [record.message for record in caplog.records if "Unreachable" in record.message]
    assert said == [
        "Unreachable.on_round failed and is not called again: ConnectionError: no route to the tracker"
    ]
    assert [moment for moment, _ in following.told] == ["plan", "round", "round", "result"]


def test_what_is_no_callback_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="function is no callback: give objects with on_plan"):
        train(own_plan(), tmp_path / "run", dataset=own(), callbacks=[lambda line: None])
    assert not (tmp_path / "run").exists()
