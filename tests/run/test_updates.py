"""A sum is drawn once: killed and resumed runs use what was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce import data
from sottovoce.central import Update
from sottovoce.data import Dataset
from sottovoce.modelfile import ModelFileError, load_tensors
from sottovoce.plan import Plan
from sottovoce.run import rounds
from sottovoce.run.directory import RunError
from sottovoce.run.training import train
from sottovoce.run.updates import Updates
from sottovoce.server import Server
from tests.small import noise_draws, small_plan

IDENTITY = {"run": "run", "reference": "reference"}


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def records() -> Dataset:
    return data.load("mnist-small")


def server_plan(**changes: Any) -> Plan:
    values = {"method": "blend", "noise": "server", "context": "public", "individual": 0.1}
    return small_plan(**{**values, "learning_rate": 0.5, "evaluate_every": 0, "seeded": False, **changes})


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds for which noise was drawn."""
    return noise_draws(monkeypatch, rounds)


def test_a_sum_comes_back_as_it_was_and_is_never_replaced(tmp_path: Path) -> None:
    updates = Updates(tmp_path / "updates", IDENTITY)
    update = Update(3, (0, 4), torch.randn(5, 2))
    assert updates.get(3) is None
    updates.commit(update)
    found = Updates(tmp_path / "updates", IDENTITY).get(3)
    assert found is not None
    assert found.participants == (0, 4)
    assert torch.equal(found.columns, update.columns)
    with pytest.raises(ModelFileError, match="not drawn again"):
        updates.commit(Update(3, (0, 4), torch.randn(5, 2)))
    with pytest.raises(ModelFileError, match="another run"):
        Updates(tmp_path / "updates", {**IDENTITY, "run": "other"}).get(3)
    updates.forget(up_to=3)
    assert not (tmp_path / "updates").exists()


@pytest.mark.parametrize("moment", ["before it is applied", "after it is applied"])
def test_a_killed_and_resumed_run_never_draws_twice(
    tmp_path: Path, records: Dataset, draws: list[int], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    seen: list[torch.Tensor] = []
    real = Server.receive_update

    def killed(self: Server, update: Update) -> None:
        seen.append(update.columns.clone())
        if update.round == 3 and moment == "before it is applied":
            raise Killed
        real(self, update)
        if update.round == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Server, "receive_update", killed)
        with pytest.raises(Killed):
            train(server_plan(), tmp_path / "run", dataset=records)
    assert draws == [1, 2, 3]
    again: list[torch.Tensor] = []

    def watched(self: Server, update: Update) -> None:
        again.append(update.columns.clone())
        real(self, update)

    monkeypatch.setattr(Server, "receive_update", watched)
    train(server_plan(), tmp_path / "run", dataset=records, resume=True)
    assert draws == [1, 2, 3, 4]
    assert all(torch.equal(one, other) for one, other in zip(seen, again, strict=False))


def test_a_sum_is_on_the_disk_before_anything_is_made_from_it(
    tmp_path: Path, records: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, found = Server.receive_update, []

    def checked(self: Server, update: Update) -> None:
        tensors, metadata = load_tensors(tmp_path / "run" / "updates" / f"{update.round}.safetensors")
        found.append((torch.equal(tensors["columns"], update.columns), metadata["participants"]))
        real(self, update)

    monkeypatch.setattr(Server, "receive_update", checked)
    train(server_plan(), tmp_path / "run", dataset=records)
    assert [same for same, _ in found] == [True] * 4
    assert not (tmp_path / "run" / "updates").exists()


def test_a_run_whose_sums_were_lost_is_not_resumed(tmp_path: Path, records: Dataset) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train(server_plan(), tmp_path / "run", dataset=records, on_round=stop)
    (tmp_path / "run" / "updates" / "2.safetensors").unlink()
    with pytest.raises(RunError, match="lacks round 2"):
        train(server_plan(), tmp_path / "run", dataset=records, resume=True)


def test_a_seeded_run_gives_the_same_numbers_again_and_logs_nothing_from_before_the_noise(
    tmp_path: Path, records: Dataset
) -> None:
    lines: list[dict[str, Any]] = []
    results = [
        train(server_plan(seeded=True), tmp_path / name, dataset=records, on_round=lines.append)
        for name in ("one", "other")
    ]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert all(line["signal_norm"] is None and line["effective_gain"] is None for line in lines)
