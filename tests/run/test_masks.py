"""Shared noise in the simulator: with masks or without, resumed or not, the same sums and charges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce import data
from sottovoce.cli.result import show
from sottovoce.data import Dataset
from sottovoce.models.tensors import load_tensors
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.privacy.ledger import Ledger
from sottovoce.run.masks import Masks
from sottovoce.run.training import Interrupted, train
from tests.small import small_plan


@pytest.fixture(scope="module")
def records() -> Dataset:
    return data.load("mnist-small")


def shared_plan(**changes: Any) -> Plan:
    values = {"method": "blend", "noise": "shared", "context": "labels", "context_share": 0.05}
    parts = {"individual": 0.0, "weighting": 1.0, "channel": "integers", "learning_rate": 0.5}
    rest = {"rounds": 3, "clients_per_round": 6, "evaluate_every": 0}
    return small_plan(**{**values, **parts, **rest, **changes})


def model(out: Path) -> dict[str, torch.Tensor]:
    return load_tensors(out / "model.safetensors")[0]


def charges(out: Path, plan: Plan, records: Dataset) -> list[tuple[Any, ...]]:
    with Ledger.open(out / "ledger.sqlite", scope=data.scope(plan, records)) as ledger:
        return [(e.charge.client, e.charge.kind, e.charge.round, e.charge.place) for e in ledger.charges()]


def test_masks_change_nothing_but_what_travels(
    tmp_path: Path, records: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = shared_plan()
    plain = train(plan, tmp_path / "plain", dataset=records)
    masked = train(plan, tmp_path / "masked", dataset=records, masks=True)
    assert (plain["masks"], masked["masks"]) == (False, True)
    show(plain, tmp_path / "plain")
    show(masked, tmp_path / "masked")
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("shares were"))
    assert "not masked" in first
    assert "masked, and only sums unmasked" in second
    one, other = model(tmp_path / "plain"), model(tmp_path / "masked")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert masked["uplink"]["bytes"] == plain["uplink"]["bytes"] + 3 * 6 * 32
    assert plain["uplink"]["bytes"] == 3 * 6 * 800 * 2
    rows = charges(tmp_path / "masked", plan, records)
    assert rows == charges(tmp_path / "plain", plan, records)
    assert {place for _, kind, _, place in rows if kind == "gradient"} == {"shared"}
    assert {place for _, kind, _, place in rows if kind == "context"} == {"client"}
    assert masked["epsilon"]["spent_max"] == pytest.approx(plan.epsilon, rel=1e-9)


@pytest.mark.parametrize("seeded", [True, False])
def test_a_masked_run_that_was_killed_continues_with_the_same_messages_and_answers(
    tmp_path: Path, records: Dataset, seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, seen = shared_plan(seeded=seeded), []
    true = Masks.total

    def killed(self: Masks, number: int, messages: dict[int, bytes]) -> np.ndarray:
        found = true(self, number, messages)
        seen.append((number, messages, found))
        if len(seen) == 2:  # helpers have answered, and nothing was made of it yet
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Masks, "total", killed)
    with pytest.raises(Interrupted):
        train(plan, tmp_path / "cut", dataset=records, masks=True)
    result = train(plan, tmp_path / "cut", dataset=records, resume=True)
    assert result["masks"]
    # The second round, and perhaps the first, is made again of the messages and answers that there were.
    again = [entry for entry in seen[2:] if entry[0] == 2]
    assert len(again) == 1
    assert again[0][1] == seen[1][1]
    np.testing.assert_array_equal(again[0][2], seen[1][2])
    if seeded:
        monkeypatch.undo()
        train(plan, tmp_path / "whole", dataset=records)
        one, other = model(tmp_path / "whole"), model(tmp_path / "cut")
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_ledger_of_a_masked_run_holds_no_share_that_anybody_could_read(
    tmp_path: Path, records: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, shares, sealed = shared_plan(rounds=1), [], []
    true = Masks.seal

    def noting(self: Masks, participant: int) -> Any:
        put = true(self, participant)

        def note(message: bytes, stream: Any) -> bytes:
            if stream[2] == "gradient":
                shares.append(message)
                sealed.append(put(message, stream))
                return sealed[-1]
            return put(message, stream)

        return note

    monkeypatch.setattr(Masks, "seal", noting)
    train(plan, tmp_path / "run", dataset=records, masks=True)
    files = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert len(shares) == 6
    assert not any(share[:64] in files for share in shares)
    assert not any(share[:64] in message for share, message in zip(shares, sealed, strict=True))


def test_masks_are_for_shared_noise(tmp_path: Path, records: Dataset) -> None:
    with pytest.raises(PlanError, match="masks are for noise=shared"):
        train(small_plan(), tmp_path / "run", dataset=records, masks=True)


def test_all_helpers_of_a_plan_have_answered_every_round(tmp_path: Path, records: Dataset) -> None:
    train(shared_plan(helpers=2, rounds=2), tmp_path / "run", dataset=records, masks=True)
    stores = sorted(path.name for path in (tmp_path / "run" / "helpers").glob("*.sqlite"))
    assert stores == ["helper-1.sqlite", "helper-2.sqlite"]
    notes = (tmp_path / "run" / "helpers" / "helper-1.sqlite.witness").read_text().splitlines()
    assert json.loads(notes[-1])["closed"] == 2
