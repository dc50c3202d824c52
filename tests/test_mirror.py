"""Tests mirror the tree: every module that holds behaviour has its test module, under the same name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLONE = TESTS.parent
SOURCE = CLONE / "src" / "sottovoce"

THROUGH = {
    "audit/test_guessing.py": "game",
    "channel/test_channel.py": "direct lrsuq",
    "channel/test_rangecoder.py": "coding",
    "channel/polar/test_codec.py": "model surprises vector",
    "gradients/test_mean.py": "identity layers partitions vmap",
    "gradients/test_gpu.py": "kernels",
    "features/test_scattering.py": "fixed",
    "federation/flower/test_apps.py": "client_app server_app",
    "federation/test_sums.py": "sharing",
    "studies/test_index.py": "merge summary",
    "studies/test_execution.py": "pool work",
    "studies/test_own_splits.py": "heart school",
    "studies/test_reproduction.py": "figures",
    "plan/test_plan.py": "keys rules",
    "test_modelfile.py": "personal",
    "cli/test_application.py": "datasets display options",
    "cli/test_compare.py": "rehearsals",
    "cli/test_ledger.py": "keeping",
    "cli/test_runs.py": "outcome",
    "data/test_checking.py": "cells",
    "data/test_description.py": "section",
}
"""Parts of one thing that are tested through it, by the test module that does so."""

COVERED = {
    str(Path(test).with_name(f"{name}.py")) for test, names in THROUGH.items() for name in names.split()
}
MODULES = sorted(
    str(path.relative_to(root))
    for root, folder in ((SOURCE, SOURCE), (CLONE, CLONE / "studies"))
    for path in folder.rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_tests(module: str) -> None:
    path = TESTS / Path(module).with_name(f"test_{Path(module).name}")
    assert path.exists() != (module in COVERED), (
        f"write {path.relative_to(TESTS.parent)}, or say in THROUGH what {module} is tested through"
    )


@pytest.mark.parametrize("test", THROUGH)
def test_what_is_tested_through_something_is_still_there(test: str) -> None:
    assert (TESTS / test).exists()
    for name in THROUGH[test].split():
        assert _place(Path(test).with_name(f"{name}.py")).exists(), name


def test_every_package_of_tests_is_one_of_the_source_or_of_the_clone() -> None:
    packages = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    for package in packages - {Path("neighbours")}:  # from a file to a release, through all of them
        assert _place(package).is_dir(), package


def test_mutants_are_made_of_modules_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CLONE / "tools"))
    assert [name for name in import_module("mutants").CORE if not (SOURCE / f"{name}.py").exists()] == []


def _place(path: Path) -> Path:
    """Where a module or package lies: in the wheel, or beside it in the clone."""
    return (CLONE if path.parts and path.parts[0] in ("studies", "benchmarks") else SOURCE) / path
