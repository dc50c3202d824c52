"""A feature map that lets one record into the features of another is found on the given records."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.audit.company import by_company
from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare

from .toys import TOY, records


def settled(folder: Path, name: str) -> Plan:
    """A plan with a map of this module."""
    keys = {"dataset": records(folder), **TOY, "features": f"tests.audit.test_company:{name}"}
    return prepare(Plan.load(overrides=keys), trusted=True).plan


def honest(shape: tuple[int, ...]) -> Any:
    """Squares beside numbers, record by record."""
    return lambda x: torch.cat([x, x * x], dim=1)


def mixing(shape: tuple[int, ...]) -> Any:
    """Takes a little of the mean of those that come together from each: none do."""
    return lambda x: x - 9e-4 * x.mean(dim=0)


def remembering(shape: tuple[int, ...]) -> Any:
    """Takes a little of all that it has seen from each, but not before it has seen more than is tried."""
    seen, calls = torch.zeros(shape), [0]

    def describe(x: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] <= 30:
            return x
        seen.mul_(0.9).add_(0.1 * x[0])
        return x - 9e-4 * seen

    return describe


@pytest.mark.parametrize(("name", "fault"), [("honest", False), ("mixing", False), ("remembering", True)])
def test_a_map_that_lets_records_into_each_other_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: bool
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    plan = settled(tmp_path, name)
    found = by_company(plan, data.load(plan.dataset), Random(0))
    assert len(found) == fault
    assert all("describes the same record differently beside other records" in line for line in found)


def test_without_a_map_there_is_nothing_to_try(tmp_path: Path) -> None:
    plan = Plan.load(overrides={"dataset": records(tmp_path), **TOY, "features": "none"})
    assert by_company(plan, data.load(plan.dataset), Random(0)) == []
