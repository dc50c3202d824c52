"""A table of tiny runs on the shipped data, with the three kinds of rows that a grid must get right."""

from __future__ import annotations

from pathlib import Path

import pytest

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
evaluate_every = 0

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
plan = { method = "replay" }
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
    """A folder with tiny.toml."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "tiny.toml").write_text(TINY)
    return folder
