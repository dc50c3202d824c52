"""Runs a written app on a SuperLink until it is finished, through crashes of everything but this command.

A run that ends early (a killed ServerApp, a restarted SuperLink) is submitted again and continues from the
server's store, as does one that this command finds nobody working on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError

WATCH_SECONDS = 5.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class RunFailed(SottovoceError):
    """The run cannot be submitted, or fails again and again."""


def run_app(
    app: str | Path, superlink: str, *, tries: int = 20, say: Callable[[str], None] = lambda text: None
) -> str:
    """Submits and watches until Flower calls a run of the app completed; returns its id.

    `superlink` is a name in Flower's config.toml. A run is submitted at most `tries` times.
    """
    if not (Path(app) / "pyproject.toml").exists():
        raise RunFailed(
            f"{app} holds no app: write one there, with 'sottovoce federate' and a plan", "out", "plan"
        )
    reason = ""
    for _ in range(tries):
        submitted = _flwr("run", str(app), superlink)
        if submitted is None or not submitted.get("success"):
            reason = "the SuperLink did not take the run" if submitted is None else str(submitted)
            say(f"{reason}: trying again")
            time.sleep(WATCH_SECONDS)
            continue
        run = str(submitted["run-id"])
        say(f"run {run} submitted")
        reason = _watch(run, superlink)
        if reason == "finished:completed":
            return run
        say(f"run {run} ended as {reason}: continuing from the server's store")
    raise RunFailed(f"gave up after {tries} tries ({reason}): see the log of the SuperLink")


def _watch(run: str, superlink: str) -> str:
    """The status with which a run ended."""
    while True:
        time.sleep(WATCH_SECONDS)
        listed = _flwr("ls", superlink) or {}
        for entry in listed.get("runs", []):
            if entry["run-id"] == run and entry["status"].startswith("finished"):
                return str(entry["status"])


def _flwr(*arguments: str) -> dict[str, Any] | None:
    """The JSON answer of a `flwr` command; None if it could not reach the SuperLink."""
    beside = Path(sys.executable).with_name("flwr")
    command = str(beside) if beside.exists() else shutil.which("flwr")
    if command is None:
        raise RunFailed("the command 'flwr' is missing: install sottovoce[flower]")
    done = subprocess.run(
        [command, *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return answer
