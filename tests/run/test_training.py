from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.privacy.ledger import Ledger
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import evaluate, train
from tests.run.test_dry_run import own, own_plan
from tests.small import LEARNING, SMALL, small_plan, tiny

CHANCE = 10.0


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "global"},
        {"method": "full"},
        {"method": "deep-linear"},
        {"method": "factorized"},
        {"method": "factorized", "context": "standardized"},
        {"method": "factorized", "context": "labels"},
        {"method": "factorized", "context": "predictions", "context_round": 10},
        {"method": "factorized", "basis": "unstructured", "momentum": 0.5, "averaging": 0.3},
        {"method": "deep-linear", "context": "public"},
        {"method": "direct", "learning_rate": 2.0},
        {"method": "radial"},
        {"method": "factorized", "epsilon": float("inf")},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_every_method_trains_above_chance(tmp_path, records, changes) -> None:
    result = train(small_plan(**{**LEARNING, **changes}), tmp_path / "run", dataset=records)
    # 360 held-out records: chance reaches 20 % with probability below 1e-8.
    assert result["accuracy"]["seen"] > 2 * CHANCE
    assert result["method"] == changes["method"]
    assert result["uses_future_labels"] == (changes.get("context") == "labels")


def test_global_pays_for_no_context_and_controls_get_the_same_noise(tmp_path, records) -> None:
    sigma = {}
    for method in ("global", "direct", "factorized"):
        result = train(small_plan(method=method), tmp_path / method, dataset=records)
        sigma[method] = result["sigma"]
        with Ledger.open(tmp_path / method / "ledger.sqlite", scope=_scope(method, records)) as ledger:
            kinds = {entry.charge.kind for entry in ledger.charges()}
        assert kinds == ({"gradient", "context"} if method == "factorized" else {"gradient"})
    assert sigma["direct"] == sigma["factorized"] > sigma["global"]


def _scope(method: str, records: Dataset) -> str:
    return data.scope(small_plan(method=method), records)


def test_evaluating_again_gives_the_same_accuracies(factorized_run, records) -> None:
    out, result = factorized_run
    assert evaluate(out, dataset=records, module=SMALL["model"])["accuracy"] == result["accuracy"]


def test_an_own_module_and_an_own_dataset_train_from_python(tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (300,), generator=generator)
    x = torch.randn(300, 1, 6, 6, generator=generator) + y[:, None, None, None]
    own = data.from_torch(torch.utils.data.TensorDataset(x, y), classes=3)
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    )
    plan = small_plan(
        records_per_client=37, context_records=20, coefficients=200, partition="iid", rounds=20, epsilon=64.0
    )
    result = train(plan, tmp_path / "run", dataset=own, module=module)
    assert result["accuracy"]["future"] > 50
    assert result["model_parameters"] == 36 * 8 + 8 + 8 * 3 + 3


def test_naturally_partitioned_records_keep_their_clients(tmp_path) -> None:
    rng = np.random.default_rng(0)
    sizes = [60, 70, 80, 90, 100, 110, 120, 130]
    owner = np.repeat(np.arange(8), sizes)
    y = rng.integers(3, size=owner.size)
    x = rng.normal(size=(owner.size, 1, 28, 28)).astype(np.float32) + y[:, None, None, None]
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=y, client=owner)
    plan = small_plan(dataset=str(path), partition="client", records_per_client=0, context_records=30)
    result = train(plan, tmp_path / "run")
    assert len(result["accuracy"]["seen_per_client"]) == 6


def test_tiny_is_the_model_of_these_tests() -> None:
    assert sum(p.numel() for p in tiny((1, 28, 28), 10).parameters()) == 12_730


# Callbacks get what the files of a run have, cannot change it, and cannot end it.


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
