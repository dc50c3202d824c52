"""Runs a written app on a SuperLink until it is finished, through crashes of everything but this command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.errors import shown
from sottovoce.federation.status.supervisor import RunFailed, Silent, Supervisor, alone

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
SILENT = "the SuperLink does not answer"
_UNREACHED = "SuperLink is unavailable"


def run_app(
    app: str | Path,
    superlink: str,
    *,
    give_up: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Submits and watches until Flower calls a run of the app completed; returns its id.

    `superlink` is a name in Flower's config.toml. `give_up`: after so many seconds without progress; never by
    default. `say` is called with a line for everything new, and once a minute with what is waited for.
    """
    directory = _run_directory(Path(app))
    with alone(directory):
        return Runs(str(app), superlink, directory, give_up, say).run()


class Runs(Supervisor):
    """The runs of an app on a SuperLink."""

    completed = "finished:completed"
    starting = "the SuperLink has the app, and starts the server"

    def __init__(
        self, app: str, superlink: str, directory: Path, give_up: float | None, say: Callable[[str], None]
    ) -> None:
        super().__init__(directory, give_up, say)
        self._app, self._superlink = app, superlink

    def submit(self) -> tuple[str, str]:
        submitted = _flwr("run", self._app, self._superlink)
        if submitted is not None and submitted.get("success"):
            return str(submitted["run-id"]), ""
        said = shown(" ".join(str((submitted or {}).get("error-message", submitted)).split()))
        return "", SILENT if submitted is None else f"the SuperLink refused the app: {said}"

    def ended(self, run: str) -> str | None:
        listed = _flwr("ls", self._superlink)
        if listed is None:
            raise Silent(SILENT)
        for entry in listed.get("runs", []):
            if entry["run-id"] == run and entry["status"].startswith("finished"):
                return str(entry["status"])
        return None


def _run_directory(app: Path) -> Path:
    """Returns where the server of an app has its store."""
    try:
        settings = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        return Path(settings["tool"]["flwr"]["app"]["config"]["run-directory"])
    except FileNotFoundError:
        raise RunFailed(
            f"{app} holds no app: write one there, with 'sottovoce federate' and a plan", "out", "plan"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RunFailed(f"{app / 'pyproject.toml'} is not that of an app of ours: write it again") from None


def _flwr(*arguments: str) -> dict[str, Any] | None:
    """The JSON answer of a `flwr` command; None if it could not reach the SuperLink."""
    done = subprocess.run(
        [program("flwr"), *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return None if _UNREACHED in str(answer.get("error-message")) else answer


def program(name: str) -> str:
    """A program of Flower's, beside this Python or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RunFailed(f"the command '{name}' is missing: install sottovoce[flower]")
    return found
