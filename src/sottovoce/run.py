"""The run directory: the files that one run leaves for people and other programs.

`plan.toml` (complete), `rounds.jsonl` (a line a round), `ledger.sqlite`, `checkpoint.safetensors` while it
trains, `model.safetensors` and `result.json` when it is done, `report.html`. Every file is replaced
atomically, so a run that is killed at any moment can be resumed.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan

FORMAT = "1"


class RunError(SottovoceError):
    """A run directory that cannot be used as asked."""


class RunDirectory:
    """Paths and durable writes of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.plan_file = self.path / "plan.toml"
        self.rounds_file = self.path / "rounds.jsonl"
        self.ledger_file = self.path / "ledger.sqlite"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.model_file = self.path / "model.safetensors"
        self.result_file = self.path / "result.json"
        self.secret_file = self.path / "secret"
        self.name_file = self.path / "run-name"

    def reserve(self) -> None:
        """Makes room for a new run; an earlier run is never overwritten."""
        if self.plan_file.exists():
            raise RunError(
                f"{self.path} already holds a run: choose another --out, or continue it with --resume"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create {self.path}: {error.strerror}") from None

    def start(self, plan: Plan) -> None:
        """Writes the resolved plan: from here on there is a run that can be resumed."""
        write_atomically(self.plan_file, plan.to_toml().encode())

    def plan(self) -> Plan:
        """The resolved plan of the run."""
        if not self.plan_file.exists():
            raise RunError(f"{self.path} holds no run: it has no plan.toml")
        return Plan.load(self.plan_file)

    def check_same_plan(self, plan: Plan) -> None:
        """Refuses to resume under another plan, naming what changed."""
        started = self.plan()
        changed = [name for name in vars(plan) if getattr(plan, name) != getattr(started, name)]
        if changed:
            name = changed[0]
            raise RunError(
                f"{self.path} was started with {name}={getattr(started, name)}, not {getattr(plan, name)}: "
                "resume without changes, or start a new run with another --out"
            )

    def result(self) -> dict[str, Any]:
        """The finished run's result."""
        try:
            result: dict[str, Any] = json.loads(self.result_file.read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} has no result.json yet: finish it with train --resume") from None
        except json.JSONDecodeError:
            raise RunError(f"{self.result_file} is damaged: make it again with evaluate") from None
        return result

    def master_secret(self) -> bytes:
        """32 bytes behind the clients' channel secrets, created once, readable by the owner only."""
        if not self.secret_file.exists():
            write_atomically(self.secret_file, secrets.token_bytes(32), mode=0o600)
        return self.secret_file.read_bytes()

    def append_round(self, line: Mapping[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        with self.rounds_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        """The complete lines of rounds.jsonl; a line cut off by a kill is left out."""
        if not self.rounds_file.exists():
            return []
        lines = self.rounds_file.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def truncate_rounds(self, rounds: int) -> None:
        """Drops lines written after the checkpoint from which the run goes on."""
        kept = [line for line in self.rounds() if line["round"] <= rounds]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.rounds_file, text.encode())


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file of ours, written atomically."""
    data = save(dict(tensors), {"format": "sottovoce", "version": FORMAT, **metadata})
    write_atomically(path, data)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file of ours; a damaged or foreign one is refused."""
    if not path.exists():
        raise RunError(f"{path} is missing: the run has not come that far")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged or no safetensors file: {error}") from None
    if metadata.get("format") != "sottovoce" or metadata.get("version") != FORMAT:
        raise RunError(f"{path} was not written by this version of sottovoce: use the one that wrote it")
    return tensors, metadata


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replaces `path` durably: after a crash it holds the old bytes or the new ones, nothing between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # or a power cut could bring the old file back
        finally:
            os.close(directory)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}; free some space, then --resume") from None
