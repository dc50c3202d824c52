"""Metrics tell a good model from a lazy one, in people's units, and only what records can say."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch

from sottovoce.data import Facts
from sottovoce.data.tables.schema import Description
from sottovoce.errors import SottovoceError
from sottovoce.models.metrics import Evaluation, check_own, own_metrics
from sottovoce.models.tasks import open_task
from sottovoce.plan import catalog
from sottovoce.report.table import label, measure
from sottovoce.run.summary import measured
from tests.data.hospitals import folder
from tests.models.test_tasks import AGE


def test_metrics_of_a_number_are_in_its_own_units(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    agreed = Description.load(folder(tmp_path / "f", AGE, north="height,age\n1,2\n") / "records.toml")
    task = open_task(agreed.facts())
    y = torch.tensor([-1.0, 0.0, 1.0])
    found = task.metrics(torch.tensor([[-1.0], [0.5], [1.0]]), y)
    assert found["mean_absolute_error"] == pytest.approx(10.0)
    assert found["r2"] == pytest.approx(1 - 30**2 / (2 * 60**2))
    assert task.score(torch.tensor([[-1.0], [0.5], [1.0]]), y) == pytest.approx(100 * found["r2"])
    assert task.metrics(torch.zeros(1, 1), y[:1])["r2"] is None


def test_metrics_of_classes_know_how_to_tell_a_good_model_from_a_lazy_one() -> None:
    pytest.importorskip("torchmetrics")
    task = open_task(Facts((1,), 3))
    y = torch.tensor([0] * 8 + [1, 1])
    lazy, good = torch.zeros(10, 3), torch.zeros(10, 3)
    lazy[:, 0] = 4.0
    good[torch.arange(10), y] = 4.0
    found, better = task.metrics(lazy, y), task.metrics(good, y)
    assert (found["accuracy"], found["balanced_accuracy"], found["auroc"]) == (80.0, 50.0, 0.5)
    assert (better["accuracy"], better["balanced_accuracy"], better["auroc"]) == (100.0, 100.0, 1.0)
    assert found["log_loss"] > better["log_loss"]
    assert found["calibration_error"] == pytest.approx(float(task.values(lazy)[0, 0]) - 0.8, abs=1e-5)


def test_one_class_alone_says_nothing_about_an_auroc() -> None:
    pytest.importorskip("torchmetrics")
    found = open_task(Facts((1,), 2)).metrics(torch.zeros(3, 2), torch.zeros(3).long())
    assert found["auroc"] is None
    assert found["accuracy"] == 100.0


def test_metrics_of_labels_count_each_label() -> None:
    pytest.importorskip("torchmetrics")
    task = open_task(Facts((1,), 2, task="labels"))
    y = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    outputs = torch.where(y > 0.5, 3.0, -3.0)
    outputs[0, 1] = 3.0
    found = task.metrics(outputs, y)
    assert found["accuracy"] == task.score(outputs, y) == 87.5
    assert found["balanced_accuracy"] == 87.5
    assert found["exact_match"] == 75.0
    assert found["auroc"] == pytest.approx((1 + 0.75) / 2)


@pytest.mark.parametrize("task", catalog.TASKS)
def test_every_metric_of_a_task_opens_and_is_judged_by_one_of_them(task: str) -> None:
    names = [name for name, metric in catalog.METRICS.items() if task in metric.measured]
    assert catalog.TASKS[task].metric in names
    for name in names:
        assert callable(catalog.function(catalog.METRICS[name].measured[task]))


def test_a_metric_is_told_as_its_entry_says() -> None:
    assert [label(name) for name in ("balanced_accuracy", "auroc", "r2")] == [
        "balanced accuracy",
        "AUROC",
        "R²",
    ]
    assert measure("exact_match", 75.0).startswith("75")
    assert measure("exact_match", 75.0).endswith("%")
    assert measure("log_loss", 0.5) == "0.5"
    assert label("of_a_later_version") == "of a later version"


def test_metrics_of_ones_own_get_what_scikit_learns_get(caplog: pytest.LogCaptureFixture) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(50, 2, generator=generator)
    y = torch.randint(2, (50,), generator=generator)
    task = open_task(Facts((1,), 2))
    area = lambda true, decided, probabilities: sklearn.roc_auc_score(true, probabilities[:, 1])  # noqa: E731
    own = {"f1": sklearn.f1_score, "area": area, "broken": lambda *_: 1 / 0, "text": lambda *_: "x"}
    with caplog.at_level(logging.WARNING):
        found = own_metrics(task, outputs, y, own)
    assert found["f1"] == pytest.approx(sklearn.f1_score(y, outputs.argmax(dim=1)))
    assert found["area"] == pytest.approx(task.metrics(outputs, y)["auroc"], abs=1e-6)
    assert (found["broken"], found["text"]) == (None, None)
    assert [record.message.split("'")[1] for record in caplog.records] == ["broken", "text"]
    assert own_metrics(task, outputs[:0], y[:0], own) == {}


def test_the_constant_of_newcomers_who_tell_no_label_is_made_of_the_participants_labels() -> None:
    pytest.importorskip("torchmetrics")
    task, none = open_task(Facts((1,), 2)), torch.empty(0).long()
    y = torch.tensor([0, 0, 0, 1])
    seen = {
        "north": Evaluation(task, torch.zeros(4, 2), y, known=torch.tensor([0, 0, 0, 0, 0, 1])),
        "south": Evaluation(task, torch.zeros(4, 2), y, known=torch.tensor([1, 1])),
    }
    for untold in (none, None):
        newcomer = Evaluation(task, torch.zeros(4, 2), y, known=untold)
        constant = measured(seen, {"west": newcomer})["constant"]
        assert constant["future"]["accuracy"] == 75.0  # 5 of 8 are zeros: a constant says zero
        assert constant["future"]["log_loss"] == pytest.approx(-(3 * math.log(0.6) + math.log(0.4)) / 4)
        assert constant["seen"]["accuracy"] == 50.0  # each its own: north says zero, south one
    told = Evaluation(task, torch.zeros(4, 2), y, known=torch.tensor([1, 1, 1]))
    assert measured(seen, {"west": told})["constant"]["future"]["accuracy"] == 25.0
    assert measured(seen, {})["constant"]["future"] == {}


def test_a_metric_that_cannot_be_told_is_refused_before_training() -> None:
    for own in ({"accuracy": max}, {1: max}, {"f1": 0.5}):
        with pytest.raises(SottovoceError, match="metric"):
            check_own(own)  # type: ignore[arg-type]
    check_own({"f1": max})
    check_own(None)
