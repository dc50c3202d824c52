"""Given records: every kind of release is there, none moves further than its charge, and cheating shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.audit.sensitivity import ratios
from sottovoce.data import dataset as dataset_module
from sottovoce.errors import SottovoceError
from tests.run.test_folder import planned, sites
from tests.small import small_plan

from .test_sensitivity import SHARES


def kinds(found: Any) -> set[tuple[str, str]]:
    return {(row["kind"], row["place"]) for row in found.releases}


@pytest.mark.parametrize("noise", ["client", "server"])
def test_a_folder_of_sites(tmp_path: Path, noise: str) -> None:
    folder = sites(tmp_path / "sites")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    steps: list[tuple[int, int]] = []
    found = ratios(
        planned(folder, noise=noise, future_clients="3", **SHARES),
        families=4,
        size=5,
        progress=lambda done, of: steps.append((done, of)),
    )
    assert found.faults == []
    assert kinds(found) == {
        ("gradient", noise),
        ("context shares", "client"),
        ("context shares of a future client", "client"),
        ("confusion", "client"),
        ("calibration", "client"),
        ("centre", "client"),
    }
    assert 0.3 < max(row["ratio"] for row in found.releases) <= 1 + 1e-9
    assert found.pairs + sum(found.refused.values()) == 40
    assert steps[-1] == (4, 4)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_units_that_are_drawn_by_rank_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(sites(tmp_path / "sites", unit=True), **{**SHARES, "context_records": 5})
    assert ratios(plan, families=6, size=5).faults == []
    by_rank = dataset_module.units.order

    def ranks(identity: Any, seed: int) -> Any:
        return by_rank(identity * 0 + torch.arange(len(identity))[:, None], seed)

    monkeypatch.setattr(dataset_module.units, "order", ranks)
    assert any("of what is charged" in fault for fault in ratios(plan, families=6, size=5).faults)


def test_one_file_and_a_bare_npz_with_clients(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    for partition in ({"partition": "iid", "participants": 4}, {"partition": "client", "participants": 1}):
        alone = planned(folder / "north.csv", **partition, future_clients=0, clients_per_round=1)
        assert ratios(alone, families=2, size=4).faults == []
    rng = np.random.default_rng(0)
    x, y, client = rng.normal(size=(90, 3)).astype(np.float32), np.arange(90) % 2, np.arange(90) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y, client=client, classes=2)
    plan = planned(tmp_path / "a.npz", partition="client", participants=3, future_clients=0, model="linear")
    found = ratios(plan, families=4, size=5)
    assert found.faults == []
    assert ("gradient", "client") in kinds(found)


def test_a_dealt_dataset_whose_pictures_are_described() -> None:
    found = ratios(small_plan(context="moments", context_records=20), families=1, size=4)
    assert (found.faults, found.pairs) == ([], 6)
    assert kinds(found) == {("gradient", "client"), ("context moments", "client")}


def test_a_plan_that_the_given_records_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="no client is called"):
        ratios(planned(sites(tmp_path / "sites"), future_clients="nobody"), families=1)
