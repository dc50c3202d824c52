"""Summaries: one small JSON object per finished run, with every number that a table needs.

They travel where run directories are too large to, and add up over machines: `results/runs.jsonl` is nothing
but the summaries of all runs behind the published index.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import PUBLIC, write_atomically
from sottovoce.run.directory import RunDirectory
from studies.grid import CellRun

FILE = "summary.json"
GAIN_EVERY = 25  # rounds between the recorded values of ‖h‖² and of the effective gain


def summarize(run: CellRun, directory: RunDirectory, device: str, *, law: bool) -> dict[str, Any]:
    """What the tables need of a finished run.

    `law` says that only the decoded law of the channel was simulated: there are no coded bytes to count.
    """
    result, rounds = directory.result(), directory.rounds()
    accuracy, uplink = result["accuracy"], result["uplink"]
    law = law and run.law() != run.plan
    return {
        "run": run.digest,
        "cell": run.cell.id,
        "seed": run.plan.seed,
        "seeded": result["seeded"],
        "law": law,
        "uses_future_labels": result["uses_future_labels"],
        "coefficients": result["coefficients"],
        "basis": result["basis"],
        "releases_max": result["releases_max"],
        "sigma": result["sigma"],
        "epsilon_spent": result["epsilon"]["spent_max"],
        "epsilon_add_remove": result["epsilon"]["add_remove"],
        **{key: accuracy[key] for key in ("seen", "future", "seen_masked", "future_masked")},
        "uplink_bytes": None if law else uplink["bytes"],
        "bits_per_coefficient": None if law else uplink["bits_per_coefficient"],
        "signal_norm": _mean(line["signal_norm"] for line in rounds),
        "noise_norm": _mean(line["noise_norm"] for line in rounds),
        "gain": _trajectory(rounds, "gain"),
        "effective_gain": _trajectory(rounds, "effective_gain"),
        "seconds": result["seconds"],
        "device": device,
        "version": result["sottovoce"],
        "time": result["created"],
    }


def finished(root: Path, run: CellRun) -> bool:
    """Whether a run lies finished and summarized in a results folder."""
    return (root / run.name / FILE).exists()


def write_summary(root: Path, run: CellRun, device: str, *, law: bool) -> None:
    """Leaves the summary in the run's directory, which makes the run finished."""
    directory = RunDirectory(root / run.name)
    text = json.dumps(summarize(run, directory, device, law=law))
    write_atomically(directory.path / FILE, text.encode(), PUBLIC)


def collect(root: Path, runs: Iterable[CellRun]) -> list[dict[str, Any]]:
    """Summaries of the runs that are finished in a results folder."""
    return [json.loads((root / run.name / FILE).read_text()) for run in runs if finished(root, run)]


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Summaries from .jsonl files."""
    found = []
    for path in paths:
        try:
            found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise SottovoceError(f"{path} cannot be read as summaries of runs: {error}") from None
    return found


def write_lines(path: Path, summaries: Sequence[Mapping[str, Any]]) -> None:
    """Summaries as a .jsonl file, replaced in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in summaries).encode(), PUBLIC)


def united(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Summaries by run; one with coded bytes replaces one of the decoded law, else the first stays."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in summaries:
        known = found.get(line["run"])
        if known is None or (known["law"] and not line["law"]):
            found[line["run"]] = line
    return found


def _trajectory(rounds: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [line[key] for line in rounds if line["round"] == 1 or line["round"] % GAIN_EVERY == 0]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
