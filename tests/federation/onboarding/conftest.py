"""A finished run of a small federation, shared by the tests of the service."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sottovoce.federation.onboarding import remote
from sottovoce.federation.status.progress import write_run
from tests.federation.world import World


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A federation whose run directory is `folder / "run"`."""
    world = World(tmp_path_factory.mktemp("finished"), context="labels", seeded=False)
    world.enrol_all()
    world.finish()
    write_run(world.folder / "run", world.coordinator)
    return world


@pytest.fixture
def run(finished: World, tmp_path: Path) -> Path:
    """A fresh copy of the finished run, without tokens and contexts of other tests."""
    return Path(shutil.copytree(finished.folder / "run", tmp_path / "run"))


@pytest.fixture
def records(finished: World, tmp_path: Path) -> Path:
    """The future client's file, with nothing charged yet."""
    return Path(shutil.copy(finished.folder / "clients" / "future-0.npz", tmp_path / "mine.npz"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TRIES", 1)
