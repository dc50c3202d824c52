"""Features are computed once, kept for their owner alone, and the same with and without the cache."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.models.features import cache as kept
from sottovoce.models.features.cache import clean, described, described_client
from sottovoce.plan import Plan

PLAN = Plan.load(overrides={"preset": "tuned", "features": "scattering", "feature_size": 64})


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    whole = data.load("mnist-small")
    return replace(whole, x=whole.x[:40], y=whole.y[:40])


def test_features_are_computed_once(pictures: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = described(pictures, PLAN)

    def never(*_: object) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr(kept, "_computed", never)
    assert torch.equal(described(pictures, PLAN).x, first.x)


def test_kept_and_fresh_features_are_the_same(pictures: Dataset) -> None:
    fresh = described(pictures, PLAN, cache=False)
    described(pictures, PLAN)
    assert torch.equal(described(pictures, PLAN).x, fresh.x)
    assert fresh.facts.shape == (64,)
    assert fresh.facts.source == pictures.facts


def test_kept_features_are_for_their_owner_and_their_names_say_nothing(pictures: Dataset) -> None:
    described(pictures, PLAN)
    folder = data.cache_folder() / "features"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert pictures.digest not in file.name


def test_another_map_or_other_records_have_features_of_their_own(pictures: Dataset) -> None:
    described(pictures, PLAN)
    described(pictures, PLAN.replace(mirror=True))
    described(replace(pictures, x=255 - pictures.x), PLAN)
    assert len(list((data.cache_folder() / "features").glob("*.npy"))) == 3


def test_clean_removes_everything_that_was_kept(pictures: Dataset) -> None:
    described(pictures, PLAN)
    assert clean() > 0
    assert not (data.cache_folder() / "features").exists()
    assert clean() == 0


def test_a_plan_without_features_leaves_records_alone(pictures: Dataset) -> None:
    assert described(pictures, PLAN.replace(features="none")) is pictures


def test_progress_ends_at_the_number_of_records(pictures: Dataset) -> None:
    heard: list[tuple[int, int]] = []
    described(pictures, PLAN, progress=lambda done, of: heard.append((done, of)))
    described(pictures, PLAN, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(40, 40), (40, 40)]


def test_a_clients_own_file_is_described_like_the_dataset(pictures: Dataset, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=pictures.x.numpy(), y=pictures.y.numpy())
    whole = described(pictures, PLAN)
    mine = described_client(tmp_path / "mine.npz", PLAN, whole.facts, needed=10)
    assert torch.equal(mine.x, whole.x.float())
    assert torch.equal(mine.y, whole.y)


def test_features_of_turned_pictures_are_made_after_the_turn(pictures: Dataset) -> None:
    turned = described(pictures, PLAN.replace(shift="turns"))
    assert turned.x.shape == (40, 4, 64)
    for turn in range(4):
        seen = replace(pictures, x=torch.rot90(pictures.x, turn, (2, 3)))
        assert torch.equal(turned.x[:, turn], described(seen, PLAN, cache=False).x)
