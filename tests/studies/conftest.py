"""A table of tiny runs on the shipped data, with the three kinds of rows that a grid must get right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from studies.grid import CellRun

TINY = """
title = "Tiny"
across = "epsilon"
values = [8.0, 16.0]
datasets = ["mnist-small"]

[plan]
preset = "tuned"
participants = 4
future_clients = 2
records_per_client = 100
context_records = 20
clients_per_round = 2
rounds = 4
coefficients = 256
basis = "unstructured"
channel = "direct"

[[row]]
label = "Ours"
plan = { method = "factorized" }
[row.published.mnist-small]
seen = [[50.0, 1.0], [60.0, nan]]
future = [[40.0, 2.0], [55.0, 3.0]]
uplink_mb = [nan, 0.008]

[[row]]
label = "Factorized"
plan = { method = "factorized", context = "public" }

[[row]]
label = "Replay"
plan = { method = "direct" }
replays = "Factorized"

[[row]]
label = "Labels"
plan = { method = "factorized", context = "labels" }
beside = "Ours"

[[difference]]
label = "Ours − Factorized"
of = { row = "Ours", at = 8.0 }
from = { row = "Factorized", at = 8.0 }
published = { mnist-small = 1.0 }
"""


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.toml, and the same as a main-table.toml for whoever knows the paper's names only."""
    folder = tmp_path_factory.mktemp("tables")
    for name in ("tiny", "main-table"):
        (folder / f"{name}.toml").write_text(TINY)
    return folder


def summary_of(run: CellRun, future: float, **changes: Any) -> dict[str, Any]:
    """A summary as a finished run would leave it, with a future accuracy of our choice."""
    full = run.plan.method in ("global", "full")
    return {
        "run": run.digest,
        "cell": run.cell.id,
        "seed": run.plan.seed,
        "seeded": True,
        "law": False,
        "uses_future_labels": run.plan.context == "labels",
        "coefficients": 85822 if full else run.plan.coefficients,
        "basis": "unstructured",
        "releases_max": run.plan.seed,
        "sigma": 0.015,
        "epsilon_spent": run.plan.epsilon if run.plan.private else None,
        "epsilon_add_remove": run.plan.epsilon / 2 if run.plan.private else None,
        "seen": future + 1,
        "future": future,
        "seen_masked": future + 3,
        "future_masked": future + 2,
        "uplink_bytes": 65_552_000,
        "bits_per_coefficient": 32.008,
        "signal_norm": 0.3,
        "noise_norm": 1.93 if run.plan.private else 0.0,
        "gain": [float(i) for i in range(21)],
        "effective_gain": [2.0 * i for i in range(21)],
        "seconds": 10.0,
        "device": "cpu",
        "version": "0.1.0",
        "time": f"2026-11-15T10:00:{run.plan.seed % 60:02d}+00:00",
        **changes,
    }
