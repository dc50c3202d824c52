"""`sottovoce reproduce` and `bench`: commands of the studies, which lie in a clone and not in the wheel."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from sottovoce.errors import SottovoceError

CLONE = Path(__file__).parents[3]
"""Where the studies lie if the package is that of a clone."""

COMMANDS = {
    "reproduce": "Regenerate a table or figure of the paper; needs a clone of the repository.",
    "bench": "Measure channels, gradients and rounds on this machine; needs a clone of the repository.",
}
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Adds the commands to the application; where there is no clone they say how to get one."""
    if _in_clone():
        study("reproduce").register(app)
        app.add_typer(study("bench.command").app, name="bench", cls=app.info.cls)
        return
    for name, about in COMMANDS.items():
        app.command(name, help=about, context_settings=ANYTHING)(_missing)


def study(name: str) -> Any:
    """A module of the studies."""
    if not _in_clone():
        raise SottovoceError(
            "the studies are not in the installed package: clone the repository, and there "
            "'pip install --editable .'"
        )
    if str(CLONE) not in sys.path:
        sys.path.append(str(CLONE))
    return import_module(f"studies.{name}")


def _in_clone() -> bool:
    return (CLONE / "studies" / "reproduce.py").exists()


def _missing() -> None:
    study("reproduce")
