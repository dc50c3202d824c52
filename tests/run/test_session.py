from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from sottovoce import data
from sottovoce.data import Dataset, Facts, scope
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import FileError
from sottovoce.models.tensors import ModelFileError, load_tensors
from sottovoce.privacy.history import Copied
from sottovoce.privacy.ledger import Budget, Charge, Ledger, LedgerError, Overspent
from sottovoce.run.directory import RunDirectory, RunError
from sottovoce.run.prepare import prepare
from sottovoce.run.session import Session
from sottovoce.run.training import Interrupted, train
from tests.small import small_plan

from .interrupting import interrupted

PLENTY = Budget(epsilon=1e6, delta=1e-5, accounting="exact")


@pytest.fixture(scope="module")
def records() -> Dataset:
    return data.load("mnist-small")


def opened(plan, out, records, **options) -> Session:
    return Session.open(prepare(plan, records, trusted=True), out, **options)


def ledger_rows(path: Path, plan, records) -> list[tuple]:
    with Ledger.open(path, scope=scope(plan, records)) as ledger:
        return [(e.charge.client, e.charge.kind, e.charge.round, e.charge.sigma) for e in ledger.charges()]


def comparable(result: dict) -> dict:
    return {key: value for key, value in result.items() if key not in ("seconds", "created")}


@pytest.mark.parametrize("seeded", [True, False])
def test_an_interrupted_run_resumes_bit_for_bit_with_its_ledger(tmp_path, records, seeded: bool) -> None:
    plan = small_plan(rounds=6, momentum=0.5, averaging=0.5, seeded=seeded)

    def stop_in_round_four(line: dict) -> None:
        if line["round"] == 4:
            raise KeyboardInterrupt

    if seeded:
        whole = train(plan, tmp_path / "whole", dataset=records)
    with pytest.raises(Interrupted, match="resume the training"):
        train(plan, tmp_path / "cut", dataset=records, on_round=stop_in_round_four)
    charged = ledger_rows(tmp_path / "cut" / "ledger.sqlite", plan, records)
    result = train(plan, tmp_path / "cut", dataset=records, resume=True)
    rows = ledger_rows(tmp_path / "cut" / "ledger.sqlite", plan, records)
    assert rows[: len(charged)] == charged
    assert len(rows) == len(set(rows)) == 6 * 3 + 6 + 2
    if seeded:
        assert comparable(result) == comparable(whole)
        first, _ = load_tensors(tmp_path / "whole" / "model.safetensors")
        second, _ = load_tensors(tmp_path / "cut" / "model.safetensors")
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert rows == ledger_rows(tmp_path / "whole" / "ledger.sqlite", plan, records)


def test_resuming_after_a_checkpoint_continues_there(tmp_path, records) -> None:
    plan = small_plan(rounds=6)
    whole = train(plan, tmp_path / "whole", dataset=records)
    session = opened(plan, tmp_path / "cut", records, checkpoint_seconds=0.0)
    for _ in range(3):
        session.record(session.simulation.step())
    session.simulation.step()  # released and applied, but neither logged nor checkpointed
    session.close()
    again = opened(plan, tmp_path / "cut", records, resume=True)
    assert again.simulation.server.round == 3
    again.close()
    assert comparable(train(plan, tmp_path / "cut", dataset=records, resume=True)) == comparable(whole)


CHILD = """
import sys
from pathlib import Path
from sottovoce.run.training import train
from tests.small import small_plan
train(small_plan(rounds=20, evaluate_every=0), sys.argv[1], resume=Path(sys.argv[1], "plan.toml").exists(),
      on_round=lambda line: print(line["round"], flush=True))
"""


def test_a_killed_process_leaves_nothing_uncharged_or_charged_twice(tmp_path, records) -> None:
    plan = small_plan(rounds=20, evaluate_every=0)
    out = tmp_path / "killed"
    for rounds in (3, 9):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(out)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= rounds:
                time.sleep(0.01)
                os.kill(child.pid, signal.SIGKILL)
                break
        child.wait()
        with Ledger.open(out / "ledger.sqlite", scope=scope(plan, records)) as ledger:
            charged = [entry.charge for entry in ledger.charges() if entry.charge.kind == "gradient"]
        # All that was reported had been charged before.
        assert len({(c.client, c.round) for c in charged}) == len(charged) >= 3 * rounds
    result = train(plan, out, dataset=records, resume=True)
    whole = train(plan, tmp_path / "whole", dataset=records)
    assert comparable(result) == comparable(whole)
    assert ledger_rows(out / "ledger.sqlite", plan, records) == ledger_rows(
        tmp_path / "whole" / "ledger.sqlite", plan, records
    )


def test_spending_stays_within_the_target_and_uses_it(tmp_path, records) -> None:
    plan = small_plan(epsilon=3.0, context="labels")  # charged by what σ is calibrated for
    result = train(plan, tmp_path / "run", dataset=records)
    assert 2.999 < result["epsilon"]["spent_max"] <= 3.0
    assert result["releases_max"] == 2


def test_budgets_add_up_over_runs_that_share_a_ledger(tmp_path, records) -> None:
    shared = tmp_path / "shared.sqlite"
    train(small_plan(epsilon=2.0), tmp_path / "first", dataset=records, ledger=shared)
    with pytest.raises(Overspent, match="raise budget"):
        train(small_plan(epsilon=2.0, clip=0.9), tmp_path / "second", dataset=records, ledger=shared)
    assert not (tmp_path / "second" / "plan.toml").exists()
    result = train(
        small_plan(epsilon=2.0, clip=0.9, budget=3.5), tmp_path / "second", dataset=records, ledger=shared
    )
    # Two Gaussian mechanisms compose to μ√2, so less than 2 + 2 is spent.
    assert 2.0 < result["epsilon"]["spent_max"] < 3.5


def test_a_ledger_of_other_records_is_refused(tmp_path, records) -> None:
    shared = tmp_path / "shared.sqlite"
    train(small_plan(), tmp_path / "first", dataset=records, ledger=shared)
    with pytest.raises(Exception, match="about other records"):
        train(small_plan(seed=7), tmp_path / "second", dataset=records, ledger=shared)
    shared.write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(Exception, match=r"shared\.sqlite"):
        train(small_plan(), tmp_path / "third", dataset=records, ledger=shared)


def test_a_damaged_checkpoint_is_refused(tmp_path, records) -> None:
    session = opened(small_plan(), tmp_path / "run", records, checkpoint_seconds=0.0)
    session.record(session.simulation.step())
    session.close()
    checkpoint = RunDirectory(tmp_path / "run").checkpoint_file
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ModelFileError, match="damaged"):
        opened(small_plan(), tmp_path / "run", records, resume=True)


def test_messages_are_forgotten_once_a_checkpoint_covers_them(tmp_path, records) -> None:
    plan = small_plan()
    session = opened(plan, tmp_path / "run", records)
    session.record(session.simulation.step())
    run = plan.replace(gradient_records=96).digest()
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", scope=scope(plan, records)) as ledger:
        charge = next(entry.charge for entry in ledger.charges() if entry.charge.kind == "gradient")
        assert ledger.stored(run, charge.client, "gradient", charge.round) is not None
        session.checkpoint()
        with pytest.raises(Exception, match="forgotten"):
            ledger.stored(run, charge.client, "gradient", charge.round)
    session.close()


def test_a_resumed_run_goes_on_in_the_ledger_it_was_started_with(tmp_path, records) -> None:
    plan, shared = small_plan(), tmp_path / "shared.sqlite"
    interrupted(plan, tmp_path / "run", records, ledger=shared)
    with pytest.raises(RunError, match="started with the ledger"):
        train(plan, tmp_path / "run", dataset=records, resume=True, ledger=tmp_path / "other.sqlite")
    train(plan, tmp_path / "run", dataset=records, resume=True)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()
    assert len(ledger_rows(shared, plan, records)) == 4 * 3 + 6 + 2


def test_a_run_whose_ledger_is_gone_is_not_resumed(tmp_path, records) -> None:
    plan = small_plan()
    interrupted(plan, tmp_path / "run", records)
    for path in (tmp_path / "run").glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(RunError, match="would forget what was spent"):
        train(plan, tmp_path / "run", dataset=records, resume=True)


def test_the_checkpoint_of_another_run_is_refused(tmp_path, records) -> None:
    for seed in (1, 2):
        session = opened(small_plan(seed=seed), tmp_path / str(seed), records, checkpoint_seconds=0.0)
        session.record(session.simulation.step())
        session.close()
    foreign = RunDirectory(tmp_path / "1").checkpoint_file.read_bytes()
    RunDirectory(tmp_path / "2").checkpoint_file.write_bytes(foreign)
    with pytest.raises(ModelFileError, match="belongs to another run"):
        opened(small_plan(seed=2), tmp_path / "2", records, resume=True)


def test_a_finished_run_is_not_taken_for_that_of_another_plan(tmp_path, records) -> None:
    train(small_plan(), tmp_path / "run", dataset=records)
    with pytest.raises(RunError, match="was started with"):
        train(small_plan(epsilon=2.0), tmp_path / "run", dataset=records, resume=True)


def test_a_lost_result_is_made_again_from_the_model(tmp_path, records) -> None:
    plan = small_plan(averaging=0.5)
    result = train(plan, tmp_path / "run", dataset=records)
    (tmp_path / "run" / "result.json").unlink()
    assert comparable(train(plan, tmp_path / "run", dataset=records, resume=True)) == comparable(result)


def test_a_refused_run_leaves_no_ledger_behind(tmp_path, records) -> None:
    full = tmp_path / "shared.sqlite"
    train(small_plan(epsilon=2.0), tmp_path / "first", dataset=records, ledger=full)
    with pytest.raises(Overspent):
        train(small_plan(epsilon=2.0, clip=0.9), tmp_path / "second", dataset=records, ledger=full)
    assert full.exists()
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["run.lock"]


def test_budgets_do_not_add_up_where_records_have_other_owners() -> None:
    x, y = torch.zeros(4, 1), torch.zeros(4).long()
    one, other = (
        Dataset("own", x, y, Facts(x.shape[1:], 2), client=torch.tensor(owner))
        for owner in ([0, 0, 1, 1], [0, 1, 0, 1])
    )
    plan = small_plan(partition="client", records_per_client=0)
    assert scope(plan, one) != scope(plan, other)


def test_a_refused_start_deletes_no_ledger_that_another_run_has_charged(
    tmp_path, records, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, plan = tmp_path / "shared.sqlite", small_plan()

    def charged_meanwhile(*_: object) -> None:
        with Ledger.open(shared, scope=scope(plan, records)) as other:
            other.commit(Charge("other", "participant-0", "context", 0, 0.1, 1.0), b"m", PLENTY)
        raise RunError("the disk is full")

    monkeypatch.setattr(RunDirectory, "start", charged_meanwhile)
    with pytest.raises(RunError, match="full"):
        train(plan, tmp_path / "run", dataset=records, ledger=shared)
    with Ledger.open(shared, scope=scope(plan, records)) as ledger:
        assert ledger.releases("participant-0") == 1


def test_a_run_on_a_ledger_that_was_deleted_since_the_last_starts_where_that_ended(tmp_path, records) -> None:
    shared = tmp_path / "shared.sqlite"
    plan = small_plan(epsilon=2.0, context="labels", seeded=False)
    train(plan, tmp_path / "first", dataset=records, ledger=shared)
    for end in ("", "-wal", "-shm"):
        shared.with_name(shared.name + end).unlink(missing_ok=True)
    with pytest.raises(Overspent, match=r"has spent ε=2\.000"):
        train(plan, tmp_path / "second", dataset=records, ledger=shared)


def test_a_run_is_not_resumed_on_a_ledger_that_has_lost_some_of_it(tmp_path, records) -> None:
    plan = small_plan(seeded=False)
    interrupted(plan, tmp_path / "run", records)
    ledger = tmp_path / "run" / "ledger.sqlite"
    ledger.unlink()
    with Ledger.open(ledger, scope=None):  # by another command
        pass
    with pytest.raises(LedgerError, match="has lost releases of this run"):
        train(plan, tmp_path / "run", dataset=records, resume=True)


def test_a_copied_ledger_is_not_spent_from_unless_its_noise_is_seeded(tmp_path, records) -> None:
    for seeded in (True, False):
        plan, out = small_plan(seeded=seeded), tmp_path / str(seeded)
        interrupted(plan, out, records)
        shutil.copytree(out, tmp_path / f"copy-{seeded}")
    train(small_plan(), tmp_path / "copy-True", dataset=records, resume=True)
    with pytest.raises(Copied, match="ledger vouch"):
        train(small_plan(seeded=False), tmp_path / "copy-False", dataset=records, resume=True)


def test_a_plan_cannot_spend_more_than_the_owner_of_the_ledger_allows(tmp_path, records) -> None:
    plan, shared = small_plan(epsilon=4.0), tmp_path / "shared.sqlite"
    with Ledger.open(shared, scope=scope(plan, records)) as ledger:
        ledger.willing(2.0)
    with pytest.raises(Overspent, match=r"may spend ε=2 .* this run would take it to"):
        train(plan, tmp_path / "run", dataset=records, ledger=shared)


def test_two_processes_never_train_in_one_directory(tmp_path, records) -> None:
    plan, out = small_plan(), tmp_path / "run"
    with closing(opened(plan, out, records)) as session:
        session.record(session.simulation.step())
        for resume in (True, False):
            with pytest.raises(SottovoceError, match=r"already holds a run|another process is training in"):
                opened(plan, out, records, resume=resume)
        with pytest.raises(FileError, match=r"another process is training in .*: wait until it has ended"):
            train(plan, out, dataset=records, resume=True)
        assert len(session.directory.rounds()) == 1
    train(plan, out, dataset=records, resume=True)
