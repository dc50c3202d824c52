"""A sum is drawn once: killed and resumed runs use what was drawn."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sottovoce import data
from sottovoce import run as api
from sottovoce.cli.application import app
from sottovoce.cli.result import show
from sottovoce.data import Dataset
from sottovoce.models.tensors import ModelFileError, load_tensors
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.places.server import AlreadyDrawn, DrawnRounds, Update, Updates
from sottovoce.run import simulation as rounds
from sottovoce.run.training import train
from sottovoce.training.server import Server
from tests.small import aged, noise_draws, small_plan

runner = CliRunner()
IDENTITY = {"run": "run", "reference": "reference"}


class Killed(Exception):
    """Stands for the end of the process."""


def killed(*given: object) -> None:
    raise Killed


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


def begun(folder: Path) -> Updates:
    return Updates(folder / "updates", IDENTITY, DrawnRounds.begin(folder / "run", "run"))


def reopened(folder: Path, **identity: str) -> Updates:
    drawn = DrawnRounds.reopen(folder / "run", "run")
    return Updates(folder / "updates", {**IDENTITY, **identity}, drawn)


def test_a_sum_comes_back_as_it_was_and_is_never_replaced(tmp_path: Path) -> None:
    updates = begun(tmp_path)
    update = Update(3, (0, 4), torch.randn(5, 2))
    assert updates.get(3) is None
    updates.commit(update)
    found = reopened(tmp_path).get(3)
    assert found is not None
    assert found.participants == (0, 4)
    assert torch.equal(found.columns, update.columns)
    with pytest.raises(AlreadyDrawn, match="not drawn again"):
        updates.commit(Update(3, (0, 4), torch.randn(5, 2)))
    with pytest.raises(ModelFileError, match="another run"):
        reopened(tmp_path, run="other").get(3)
    updates.forget(up_to=3)
    assert not (tmp_path / "updates").exists()
    with pytest.raises(AlreadyDrawn, match="not drawn again"):  # also when it is forgotten
        reopened(tmp_path).commit(update)


def test_a_sum_that_is_not_the_one_that_was_drawn_is_refused(tmp_path: Path) -> None:
    begun(tmp_path).commit(Update(1, (0,), torch.zeros(5, 2)))
    shutil.copytree(tmp_path, tmp_path / "other")
    begun(tmp_path / "other")
    (tmp_path / "other" / "updates" / "1.safetensors").unlink()
    reopened(tmp_path / "other").commit(Update(1, (0,), torch.ones(5, 2)))
    shutil.copy(tmp_path / "other" / "updates" / "1.safetensors", tmp_path / "updates")
    with pytest.raises(AlreadyDrawn, match="not the sum that was drawn"):
        reopened(tmp_path).get(1)


def test_a_sum_that_was_stored_and_not_noted_is_used_and_noted(tmp_path: Path) -> None:
    """A process was killed between the two: nothing was made from the sum, and it is not drawn again."""
    updates, update = begun(tmp_path), Update(1, (0,), torch.randn(5, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DrawnRounds, "note", killed)
        with pytest.raises(Killed):
            updates.commit(update)
    found = reopened(tmp_path).get(1)
    assert found is not None
    assert torch.equal(found.columns, update.columns)
    assert DrawnRounds.reopen(tmp_path / "run", "run").digests == {1: update.digest()}


@pytest.mark.parametrize("moment", ["before it is applied", "after it is applied"])
def test_a_killed_and_resumed_run_never_draws_twice(
    tmp_path: Path, records: Dataset, draws: list[int], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    seen: list[torch.Tensor] = []
    real = Server.receive_update

    def until_round_3(self: Server, update: Update) -> None:
        seen.append(update.columns.clone())
        if update.round == 3 and moment == "before it is applied":
            raise Killed
        real(self, update)
        if update.round == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Server, "receive_update", until_round_3)
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
    with pytest.raises(AlreadyDrawn, match="lacks round 2"):
        train(server_plan(), tmp_path / "run", dataset=records, resume=True)


def put_back_whole(backup: Path, run: Path) -> Path:
    """The directory is deleted, and restored from a backup."""
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    return run


def put_back_in_place(backup: Path, run: Path) -> Path:
    """All files are restored one by one, and younger sums removed; the lock stays."""
    shutil.rmtree(run / "updates", ignore_errors=True)
    shutil.copytree(backup, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns("run.lock"))
    return run


def put_back_rounds(backup: Path, run: Path) -> Path:
    """Only the log of rounds and their sums are restored."""
    shutil.rmtree(run / "updates", ignore_errors=True)
    shutil.copytree(backup / "updates", run / "updates")
    shutil.copy(backup / "rounds.jsonl", run)
    return run


def put_elsewhere(backup: Path, run: Path) -> Path:
    """The run goes on in a copy."""
    copies = len(list(run.parent.iterdir()))
    return Path(shutil.copytree(backup, run.parent / f"copy-{copies}"))


def put_back_without_notes(backup: Path, run: Path) -> Path:
    """A backup tool has left the notes out."""
    put_back_whole(backup, run)
    (run / "run.witness").unlink(missing_ok=True)
    return run


@pytest.mark.parametrize(
    "put", [put_back_whole, put_back_in_place, put_back_rounds, put_elsewhere, put_back_without_notes]
)
def test_a_restored_directory_never_draws_the_noise_of_a_sum_again(
    tmp_path: Path, records: Dataset, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], Path]
) -> None:
    """The attack: restore a directory from before a round, resume it, collect draws; the ledger sees none."""
    run, ledger = tmp_path / "runs" / "run", tmp_path / "ledger.sqlite"
    seen: set[bytes] = set()
    real = Server.receive_update

    def collected(self: Server, update: Update) -> None:
        if update.round == 2:
            seen.add(update.columns.numpy().tobytes())
        real(self, update)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 1 and not (tmp_path / "backup").exists():
            aged(Path(shutil.copytree(run, tmp_path / "backup")) / "run.witness")
        if line["round"] == 2:
            raise Killed

    monkeypatch.setattr(Server, "receive_update", collected)
    with pytest.raises(Killed):
        train(server_plan(), run, dataset=records, ledger=ledger, on_round=stop)
    with Ledger.open(ledger, scope=None) as book:
        charged = book.past.totals()
    refusals = 0
    for _ in range(4):
        where = put(tmp_path / "backup", run)
        try:
            train(server_plan(), where, dataset=records, ledger=ledger, resume=True, on_round=stop)
        except AlreadyDrawn:
            refusals += 1
        except Killed:
            pass
    with Ledger.open(ledger, scope=None) as book:
        assert book.past.totals() == charged
    assert len(seen) == 1
    assert refusals == 4


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


@pytest.mark.parametrize(("together", "told"), [(1, False), (2, True)])
def test_the_length_of_a_lone_message_is_in_no_file_of_a_run(
    tmp_path: Path, together: int, told: bool
) -> None:
    """It tells of the clipped mean, which only noise in the sum protects; here the sum is of one."""
    out = tmp_path / "run"
    result = api.train(server_plan(clients_per_round=together, rounds=2, channel="lrsuq"), out)
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [set(line) >= {"bytes"} for line in lines] == [told, told]
    assert (result["uplink"]["bytes"] > 0) == (result["uplink"]["bits_per_coefficient"] is not None) == told
    show(result, out)
    assert (out / "report.html").exists()


def chowned(folder: Path) -> None:
    """Another owner of all files, as `chown -R` makes it; to the same one, which a test may."""
    for path in folder.rglob("*"):
        os.chown(path, os.getuid(), os.getgid())


def test_another_owner_of_its_files_ends_a_run_until_he_says_that_nothing_else_was_done(
    tmp_path: Path,
) -> None:
    update = Update(1, (0,), torch.randn(5, 2))
    begun(tmp_path).commit(update)
    chowned(tmp_path)
    with pytest.raises(AlreadyDrawn, match=f"ledger vouch {tmp_path}"):
        reopened(tmp_path)
    vouched = runner.invoke(app, ["ledger", "vouch", str(tmp_path), "--yes"])
    assert vouched.exit_code == 0
    found = reopened(tmp_path).get(1)
    assert found is not None
    assert torch.equal(found.columns, update.columns)


def test_no_word_makes_notes_true_that_were_put_back(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    updates = begun(tmp_path / "run")
    updates.commit(Update(1, (0,), torch.zeros(5, 2)))
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    updates.commit(Update(2, (0,), torch.zeros(5, 2)))
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(tmp_path / "backup", tmp_path / "run")
    chowned(tmp_path / "run")
    refused = runner.invoke(app, ["ledger", "vouch", str(tmp_path / "run"), "--yes"])
    assert refused.exit_code == 1
    assert "no word undoes that" in str(refused.exception)
    with pytest.raises(AlreadyDrawn, match="copied or restored"):
        reopened(tmp_path / "run")
    nothing = runner.invoke(app, ["ledger", "vouch", str(tmp_path / "backup" / "updates"), "--yes"])
    assert nothing.exit_code == 1
