"""The wheel as it is built: everything is in it, all that it offers is imported, and the command helps."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[1]
IMPORTS = """
import importlib, pkgutil, sottovoce
left = {"sottovoce.__main__", "sottovoce.gradients.kernels"}  # the command, and what needs a GPU's compiler
for module in pkgutil.walk_packages(sottovoce.__path__, "sottovoce."):
    module.name in left or importlib.import_module(module.name)
for name in sottovoce.__all__:
    getattr(sottovoce, name)
print(sottovoce.__file__)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds."""
    built, to = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=CLONE, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to)
    return to


def python(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}  # nothing is compiled
    return subprocess.run(
        [sys.executable, *words], cwd=site, env=variables, capture_output=True, text=True, check=True
    )


def test_every_file_of_the_package_is_in_the_wheel(unpacked: Path) -> None:
    source = CLONE / "src"
    files = {path.relative_to(source) for path in (source / "sottovoce").rglob("*") if path.is_file()}
    there = {path.relative_to(unpacked) for path in (unpacked / "sottovoce").rglob("*") if path.is_file()}
    compiled = {path for path in files if path.suffix in (".pyc", ".nbi", ".nbc")}
    assert files - compiled == there


def test_every_module_of_the_wheel_is_imported_from_it(unpacked: Path) -> None:
    assert python(unpacked, "-c", IMPORTS).stdout.strip() == str(unpacked / "sottovoce" / "__init__.py")


def test_the_command_of_the_wheel_helps_as_a_module_too(unpacked: Path) -> None:
    (entry,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "sottovoce = sottovoce.cli:main" in entry.read_text()
    told = python(unpacked, "-m", "sottovoce", "--help").stdout
    assert "Usage: python -m sottovoce " in told
    assert "quickstart" in told


def test_a_lower_bound_is_stated_of_everything_but_click() -> None:
    """`make wheel` installs the lowest; of click, which is not imported, typer says what it takes."""
    project = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    free = [each for each in stated if ">=" not in each and not each.startswith("sottovoce[")]
    assert free == ["click<8.5"]
