"""Trackers show what rounds.jsonl and result.json say, by their own readers; their absence is one line."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.report.tracking import (
    SCALARS,
    MLflow,
    TensorBoard,
    WeightsAndBiases,
    final_scalars,
    scalars,
)
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import train
from tests.run.test_dry_run import own, own_plan


def run(folder: Path, *callbacks: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rounds and the result of a small run that these follow."""
    train(own_plan(rounds=3, evaluate_every=2), folder / "run", dataset=own(), callbacks=callbacks)
    directory = RunDirectory(folder / "run")
    return directory.rounds(), directory.result()


def test_what_is_shown_of_a_result_is_what_it_says(tmp_path: Path) -> None:
    lines, result = run(tmp_path)
    found = final_scalars(result)
    assert found["final/accuracy/seen"] == result["accuracy"]["seen"]
    assert found["final/epsilon"] == result["epsilon"]["spent_max"]
    assert found["final/auroc/seen"] == result["metrics"]["seen"]["auroc"]
    assert "final/accuracy/future" not in found
    assert scalars(lines[0]).keys() == SCALARS.keys() - {"accuracy/seen", "accuracy/future"}


def test_tensorboard_has_every_round_and_the_result(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    lines, result = run(tmp_path, TensorBoard(tmp_path / "events"))
    events = reader.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    for name, key in SCALARS.items():
        expected = {line["round"]: line[key] for line in lines if line.get(key) is not None}
        logged = {event.step: event.value for event in events.Scalars(name)} if expected else {}
        assert logged == pytest.approx(expected, rel=1e-6)
    assert [event.step for event in events.Scalars("accuracy/seen")] == [2]
    assert events.Scalars("final/accuracy/seen")[0].value == pytest.approx(result["accuracy"]["seen"])
    assert "plan/text_summary" in events.Tags()["tensors"]


def test_mlflow_has_plan_rounds_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    lines, result = run(tmp_path, MLflow("mine", tracking_uri=tmp_path.joinpath("ml").as_uri(), name="first"))
    client = mlflow.MlflowClient(tmp_path.joinpath("ml").as_uri())
    [found] = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.params["epsilon"] == "4.0"
    assert found.data.metrics["final/accuracy/seen"] == pytest.approx(result["accuracy"]["seen"])
    history = client.get_metric_history(found.info.run_id, "uplink/bytes")
    assert [(one.step, one.value) for one in history] == [(line["round"], line["bytes"]) for line in lines]
    kept = client.download_artifacts(found.info.run_id, "result.json", str(tmp_path))
    assert json.loads(Path(kept).read_text()) == result


def logged(file: Path) -> Iterator[bytes]:
    """The records of a log of Weights & Biases: LevelDB's format, after a head of seven bytes."""
    data, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
def test_weights_and_biases_has_plan_rounds_and_result(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    lines, result = run(tmp_path, WeightsAndBiases("mine", mode="offline", dir=tmp_path, name="first"))
    [file] = tmp_path.rglob("run-*.wandb")
    records = [protocol.Record.FromString(data) for data in logged(file)]

    def items(found: Any) -> dict[str, Any]:
        return {
            item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in found
        }

    history = [items(record.history.item) for record in records if record.HasField("history")]
    assert [line["uplink/bytes"] for line in history] == [line["bytes"] for line in lines]
    [config] = [items(record.run.config.update) for record in records if record.HasField("run")][:1]
    assert config["epsilon"] == 4.0
    summary: dict[str, Any] = {}
    for record in records:
        summary |= items(record.summary.update) if record.HasField("summary") else {}
    assert summary["final/accuracy/seen"] == pytest.approx(result["accuracy"]["seen"])


@pytest.mark.parametrize(
    ("module", "tracker", "extra"),
    [
        ("torch.utils.tensorboard", TensorBoard, "tensorboard"),
        ("mlflow", MLflow, "mlflow"),
        ("wandb", WeightsAndBiases, "wandb"),
    ],
)
def test_without_the_package_the_user_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, tracker: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SottovoceError, match=rf"sottovoce\[{extra}\]"):
        tracker(str(tmp_path))
