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
    "channel/polar/test_codec.py": "model payload vector",
    "channel/test_channel.py": "direct lrsuq",
    "channel/test_rangecoder.py": "coding",
    "cli/test_application.py": "data display options",
    "cli/test_compare.py": "rehearsals",
    "cli/test_ledger.py": "ledgers",
    "cli/test_runs.py": "result",
    "data/tables/test_columns.py": "words",
    "data/tables/test_schema.py": "data/section registry",
    "data/test_checking.py": "data/tables/checks",
    "federation/flower/test_apps.py": "client_app server_app",
    "federation/nvflare/test_kit.py": "executor",
    "federation/flower/test_running.py": "federation/status/supervisor",
    "federation/onboarding/test_tokens.py": "machine/tokens",
    "gradients/test_gpu.py": "kernels",
    "gradients/test_mean.py": "identity layers partitions vmap",
    "models/features/test_scattering.py": "fixed",
    "models/test_architectures.py": "imports parameters",
    "plan/test_plan.py": "keys checks",
    "release/test_blueprint.py": "secrets",
    "report/test_look.py": "status",
    "report/test_result.py": "reading",
    "run/test_modelcard.py": "personal/card",
    "studies/test_execution.py": "pool work",
    "studies/test_index.py": "merge summary",
    "studies/test_own_splits.py": "heart school",
    "studies/test_reproduction.py": "figures",
    "test_wheel.py": "__main__",
    "training/test_server.py": "newcomers",
}
"""Parts of one thing that are tested through it, by the test module that does so; by path where they lie
elsewhere."""


def _through(test: str, name: str) -> Path:
    return Path(f"{name}.py") if "/" in name else Path(test).with_name(f"{name}.py")


COVERED = {str(_through(test, name)) for test, names in THROUGH.items() for name in names.split()}
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
        assert _place(_through(test, name)).exists(), name


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
