"""results/index.json: one object per cell, ours over seeds beside the published values.

Means and deviations are over seeds, after averaging over clients within a seed, as in the paper; the
deviation is the sample deviation (n − 1). Every object names the command that makes the cell again.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import PUBLIC, write_atomically
from studies.cells import EXPERIMENTS, Cell
from studies.grid import run_of
from studies.summary import united

Indexed = Mapping[str, Any]
"""One object of the index."""

PUBLISHED = (
    "seen_mean",
    "seen_std",
    "future_mean",
    "future_std",
    "uplink_mb",
    "bits_per_coefficient",
    "noise_norm",
    "ms_per_event",
)


def build_index(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    summaries: Iterable[Mapping[str, Any]],
    events: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """The objects of all cells of which at least one seed is finished, in the order of the cells.

    `events` has the milliseconds of one encoding and decoding by channel, where they were measured.
    """
    known = united(summaries)
    index = []
    for cell in cells:
        digests = {seed: run_of(cell, seed).digest for seed in seeds}
        found = {seed: known[digest] for seed, digest in digests.items() if digest in known}
        if found:
            index.append(_object(cell, found, events or {}))
    return index


def write_index(path: Path, index: Sequence[Mapping[str, Any]]) -> None:
    """Writes index.json in one step; equal results give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(list(index), indent=1, ensure_ascii=False) + "\n").encode(), PUBLIC)


def read_index(path: Path) -> list[dict[str, Any]]:
    """The objects of an index.json."""
    try:
        index: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SottovoceError(f"{path} cannot be read as an index of results: {error}") from None
    return index


def add_to_index(path: Path, new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds cells to an index.json, or starts one; cells with the same id are replaced. Returns all of it."""
    old = read_index(path) if path.exists() else []
    entries = {entry["id"]: entry for entry in [*old, *new]}
    index = sorted(entries.values(), key=lambda entry: EXPERIMENTS.index(entry["experiment"]))
    write_index(path, index)
    return index


def command_of(cell: Cell, seeds: Sequence[int], device: str, law: bool) -> str:
    """The command that makes a cell with these seeds (and the other rows of its column)."""
    words = ["sottovoce", "reproduce", cell.experiment, "--dataset", cell.dataset]
    epsilon = cell.settings["epsilon"]
    if cell.across == "epsilon":
        words += ["--epsilon", f"{epsilon:g}"]
    words += ["--seeds", ",".join(map(str, seeds))]
    words += [] if device == "cpu" else ["--device", "cuda"]
    words += ["--law"] if law else []
    return shlex.join([*words, "--quick"] if cell.quick else words)


def _object(
    cell: Cell, found: Mapping[int, Mapping[str, Any]], events: Mapping[str, float]
) -> dict[str, Any]:
    seeds = sorted(found)
    lines = [found[seed] for seed in seeds]
    run = run_of(cell, seeds[0])
    plan = run.plan
    last = max(lines, key=lambda line: str(line["time"]))
    devices = sorted({line["device"] for line in lines})
    private = math.isfinite(plan.epsilon)
    uplink = _mean(lines, "uplink_bytes")
    return {
        "experiment": cell.experiment,
        "id": cell.id,
        "label": cell.label,
        "beside": cell.beside,
        "dataset": cell.dataset,
        "method": run.method,
        "preset": plan.preset,
        "context": plan.context,
        "channel": plan.channel,
        "epsilon": plan.epsilon if private else None,
        "delta": plan.delta,
        "alpha": plan.alpha,
        "coefficients": lines[0]["coefficients"],
        "basis": lines[0]["basis"],
        "noise": private,
        "accounting": plan.accounting,
        "rounds": plan.rounds,
        "quick": cell.quick,
        "seeded": all(line["seeded"] for line in lines),
        "uses_future_labels": lines[0]["uses_future_labels"],
        "releases_max": max(line["releases_max"] for line in lines),
        "epsilon_spent": max(line["epsilon_spent"] for line in lines) if private else None,
        "epsilon_add_remove": _largest(lines, "epsilon_add_remove"),
        "seeds": seeds,
        "seen_mean": _mean(lines, "seen"),
        "seen_std": _deviation(lines, "seen"),
        "future_mean": _mean(lines, "future"),
        "future_std": _deviation(lines, "future"),
        "seen_masked_mean": _mean(lines, "seen_masked"),
        "future_masked_mean": _mean(lines, "future_masked"),
        "uplink_mb": None if uplink is None else round(uplink / 1e6, 4),
        "bits_per_coefficient": _mean(lines, "bits_per_coefficient"),
        "coded_seeds": [seed for seed in seeds if not found[seed]["law"]],
        "signal_norm": _mean(lines, "signal_norm"),
        "noise_norm": _mean(lines, "noise_norm"),
        "ms_per_event": events.get(plan.channel) if cell.experiment == "codecs" else None,
        "gain": _trajectory(lines, "gain"),
        "effective_gain": _trajectory(lines, "effective_gain"),
        **{f"published_{key}": cell.published.get(key) for key in PUBLISHED},
        "command": command_of(cell, seeds, devices[0], any(line["law"] for line in lines)),
        "version": last["version"],
        "device": ", ".join(devices),
        "time": last["time"],
    }


def _values(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if line[key] is not None]


def _mean(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _values(lines, key)
    return round(statistics.fmean(values), 4) if values else None


def _largest(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Of what the runs state; runs of version 0.1 do not state everything."""
    values = [line[key] for line in lines if line.get(key) is not None]
    return round(max(values), 4) if values else None


def _deviation(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _values(lines, key)
    return round(statistics.stdev(values), 4) if len(values) > 1 else None


def _trajectory(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """A gain at round 1 and every `GAIN_EVERY` rounds, mean over seeds.

    Old runs recorded ‖h‖² only, and with noise at the server nothing is said of the releases' effect.
    """
    series = zip(*(line.get(key, []) for line in lines), strict=False)
    return [round(statistics.fmean(values), 3) for values in series if None not in values]
