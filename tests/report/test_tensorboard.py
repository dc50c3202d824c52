"""TensorBoard shows what rounds.jsonl says, and its absence is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.report.tensorboard import SCALARS, round_scalars
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import train


def test_every_round_of_a_run_is_logged_with_its_values(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tiny = "participants=4 future_clients=2 records_per_client=100 context_records=20 clients_per_round=2"
    tiny += " preset=tuned"
    choice = "rounds=3 coefficients=256 basis=unstructured channel=direct seeded=true evaluate_every=2"
    plan = Plan.load(overrides=f"{tiny} {choice}".split())
    with round_scalars(tmp_path / "events") as on_round:
        train(plan, tmp_path / "run", on_round=on_round)
    events = reader.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    lines = RunDirectory(tmp_path / "run").rounds()
    for name, key in SCALARS.items():
        logged = {event.step: event.value for event in events.Scalars(name)}
        expected = {line["round"]: line[key] for line in lines if line[key] is not None}
        assert logged == pytest.approx(expected, rel=1e-6)
    assert [event.step for event in events.Scalars("accuracy/future")] == [2]


def test_without_the_package_the_user_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SottovoceError, match=r"sottovoce\[tensorboard\]"), round_scalars(tmp_path):
        pass
