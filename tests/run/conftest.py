"""Records and one finished run, shared by the tests of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.run.training import train
from tests.small import LEARNING, small_plan


@pytest.fixture(scope="session")
def records() -> Dataset:
    return data.load("mnist-small")


@pytest.fixture(scope="module")
def factorized_run(tmp_path_factory: pytest.TempPathFactory, records: Dataset) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs") / "factorized"
    return out, train(small_plan(**LEARNING, context="public"), out, dataset=records)
