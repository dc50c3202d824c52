"""The public facts about records, as they travel, and what a stranger may not make of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from sottovoce.data.dataset import Facts
from sottovoce.data.section import DescriptionError

CIFAR = Facts((3, 32, 32), 10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


@pytest.mark.parametrize("facts", [CIFAR, Facts((5,), 2), Facts((1, 28, 28), 10, (0.1307,), (0.3081,))])
def test_facts_survive_json_and_model_files(facts: Facts) -> None:
    assert Facts.parse(json.loads(json.dumps(facts.fields()))) == facts
    assert Facts.from_metadata(facts.metadata()) == facts


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": []},
        {"shape": 3},
        {"shape": [0, 2]},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": [2.0]},
        {"shape": [1] * 7},
        {"shape": [2**20, 2**20]},
        {"shape": "abc"},
        {"classes": 0},
        {"classes": 2**17},
        {"classes": "10"},
        {"mean": [float("nan")]},
        {"mean": [0.0, 0.0]},
        {"mean": ["0"]},
        {"std": [0.0]},
        {"std": [-1.0]},
        {"std": []},
        {"std": [float("inf")]},
    ],
    ids=str,
)
def test_what_cannot_describe_records_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError) as error:
        Facts.parse({**CIFAR.fields(), **changes})
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("missing", ["shape", "classes", "mean", "std"])
def test_a_missing_fact_is_an_error(missing: str) -> None:
    fields, metadata = CIFAR.fields(), CIFAR.metadata()
    del fields[missing], metadata[missing]
    with pytest.raises(DescriptionError):
        Facts.parse(fields)
    with pytest.raises(DescriptionError):
        Facts.from_metadata(metadata)


def test_bytes_are_divided_by_255_and_each_channel_has_its_constants() -> None:
    x = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    normalized = CIFAR.normalize(x)
    assert normalized.dtype == torch.float32
    for channel in range(3):
        expected = (x[:, channel] / 255 - CIFAR.mean[channel]) / CIFAR.std[channel]
        assert torch.allclose(normalized[:, channel], expected, atol=1e-6)
    floats = torch.randn(4, 5)
    assert torch.equal(Facts((5,), 2).normalize(floats), floats)
