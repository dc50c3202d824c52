"""The run directory: the files that one run leaves for people and other programs.

`plan.toml` (complete), `run.json` (its name in streams, and where its ledger lies), `rounds.jsonl` (a
line a round), `ledger.sqlite`, `checkpoint.safetensors` while it trains (with noise at the server also
`updates/` and `run.witness`, the rounds whose noise was drawn), `helpers/` where shares have masks,
`model.safetensors` and `result.json` when it is done, `report.html`. Files are replaced atomically and
rounds appended, so a run that is killed at any moment can be resumed, by one process at a time
(`run.lock`).

The noised sums of a run with noise at the server are `Updates`, each durable and noted before anything is
made from it. A sum is drawn once: a run that was killed finds the sums of the rounds since its last
checkpoint here, and uses them instead of drawing again. With the checkpoint that makes them superfluous
they are removed. A sum that was drawn and is not here was lost with files that were restored: its round
is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sottovoce.data.tables.schema import NAME as AGREED
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import PRIVATE, kept_secret, locked, private_folder, write_atomically
from sottovoce.plan import Plan, recipes
from sottovoce.plan.checks import read_toml
from sottovoce.report.result import FILE, RunResult


class RunError(SottovoceError):
    """A run directory that cannot be used as asked."""


def make_folder(path: Path) -> None:
    """A folder for what is made of a run, open to its owner only; one that is there stays as it is."""
    try:
        private_folder(path)
    except OSError as error:
        raise RunError(f"cannot create {path} ({error.strerror}): choose another folder") from None


def check_apart(path: Path) -> None:
    """Refuses a folder of records for what is made of a run: the next run on it would refuse those files."""
    if (path / AGREED).exists():
        raise RunError(
            f"{path} is a folder of records, and no run would read it with other files in it: choose another",
            "out",
        )


def round_line(
    number: int,
    clients: Sequence[str],
    *,
    downlink_bytes: int,
    gain: float,
    effective_gain: float | None,
    started: float,
    **observed: Any,
) -> dict[str, Any]:
    """A round's line of rounds.jsonl: what every engine knows of a round, and what this one has `observed`.

    `started` is what `time.perf_counter` said when the round began.
    """
    return {
        "round": number,
        "clients": list(clients),
        "downlink_bytes": downlink_bytes,
        "gain": gain,
        "effective_gain": effective_gain,
        "seconds": time.perf_counter() - started,
        **observed,
    }


class RunDirectory:
    """Paths and durable writes of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.plan_file = self.path / "plan.toml"
        self.rounds_file = self.path / "rounds.jsonl"
        self.ledger_file = self.path / "ledger.sqlite"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.model_file = self.path / "model.safetensors"
        self.updates_folder = self.path / "updates"
        self.result_file = self.path / FILE
        self.secret_file = self.path / "secret"
        self.identity_file = self.path / "run.json"
        self.helpers_folder = self.path / "helpers"
        self.lock_file = self.path / "run.lock"
        self.drawn = self.path / "run"
        """Beside which rounds with drawn noise are noted."""

    def reserve(self) -> None:
        """Makes room for a new run; an earlier run is never overwritten."""
        if self.plan_file.exists():
            raise RunError(
                f"{self.path} already holds a run: choose another folder, or resume it", "out", "resume"
            )
        check_apart(self.path)
        make_folder(self.path)

    def locked(self) -> AbstractContextManager[None]:
        """Keeps other processes from training here."""
        busy = f"another process is training in {self.path}: wait until it has ended"
        # Whoever only asks whether it is held (`status`) has it for a moment.
        return locked(self.lock_file, timeout=1.0, busy=busy)

    def start(self, plan: Plan, run: str, ledger: Path | None) -> None:
        """Writes down the plan, the run's name and its ledger: from here on there is a run to resume."""
        where = None if ledger is None else str(ledger.absolute())
        write_atomically(self.identity_file, json.dumps({"run": run, "ledger": where}).encode())
        write_atomically(self.plan_file, plan.to_toml().encode())

    def identity(self) -> tuple[str, Path]:
        """The run's name, and the ledger that it was started with."""
        try:
            found = json.loads(self.identity_file.read_text())
            return str(found["run"]), Path(found["ledger"] or self.ledger_file)
        except (OSError, ValueError, KeyError, TypeError):
            raise RunError(
                f"{self.identity_file} is missing or damaged: restore it, or start a new run elsewhere"
            ) from None

    def plan(self) -> Plan:
        """The resolved plan of the run; one of version 0.2.0 is read by the recipe that it had."""
        return Plan.load(overrides={"recipe": recipes.FIRST, **self._plan()})

    def _plan(self) -> dict[str, Any]:
        if not self.plan_file.exists():
            raise RunError(f"{self.path} holds no run (no plan.toml): give the folder that a training wrote")
        return read_toml(self.plan_file)

    def check_pinned(self) -> None:
        """Refuses to go on with a run that names no recipe: which numbers it began with nobody knows."""
        if "recipe" not in self._plan():
            raise RunError(
                f"{self.path} was begun by version 0.2.0 or earlier, which named no recipe: end it with the "
                f"version that began it, or train {self.plan_file} anew in another folder",
                "out",
            )

    def check_same_plan(self, plan: Plan) -> None:
        """Refuses to resume under another plan, naming what changed."""
        started = self.plan()
        if started.digest() == plan.digest():  # where the folder of runs lies is no change
            return
        names = (field.name for field in dataclasses.fields(plan))
        changed = [name for name in names if getattr(plan, name) != getattr(started, name)]
        if changed:
            name = changed[0]
            raise RunError(
                f"{self.path} was started with {name}={getattr(started, name)}, not {getattr(plan, name)}: "
                "resume without changes, or start a new run in another folder",
                "out",
            )

    def result(self) -> RunResult:
        """The finished run's result."""
        try:
            result: RunResult = json.loads(self.result_file.read_text(encoding="utf-8"))
            if not isinstance(result, dict):
                raise ValueError
        except (FileNotFoundError, NotADirectoryError):
            if not self.plan_file.exists():
                raise RunError(
                    f"{self.path} holds no run (no result.json, no plan.toml): give the folder that a "
                    "training wrote"
                ) from None
            raise RunError(f"{self.path} has no result.json yet: resume its training", "resume") from None
        except ValueError:
            raise RunError(
                f"{self.result_file} is damaged: delete it, and resume the training to make it again",
                "resume",
            ) from None
        return result

    def master_secret(self) -> bytes:
        """32 bytes behind the clients' channel secrets, created once, readable by the owner only."""
        return kept_secret(self.secret_file)

    def append_round(self, line: Mapping[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        descriptor = os.open(self.rounds_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        """The complete lines of rounds.jsonl; a line cut off by a kill is left out."""
        if not self.rounds_file.exists():
            return []
        try:
            lines = self.rounds_file.read_text(encoding="utf-8").split("\n")[:-1]
            rounds = [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            raise RunError(f"{self.rounds_file} is damaged: restore it from a backup") from None
        if [line.get("round") for line in rounds] != list(range(1, len(rounds) + 1)):
            raise RunError(
                f"{self.rounds_file} does not count its rounds 1, 2, 3, …: restore it from a backup"
            )
        return rounds

    def sync_rounds(self) -> None:
        """Makes the lines so far durable; a checkpoint counts on them."""
        if self.rounds_file.exists():
            with self.rounds_file.open("a") as file:
                os.fsync(file.fileno())

    def truncate_rounds(self, rounds: int) -> None:
        """Drops lines written after the checkpoint from which the run continues."""
        kept = [line for line in self.rounds() if line["round"] <= rounds]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.rounds_file, text.encode())
