"""A run directory as the simulator writes it, with plausible figures: future tests and screenshots use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

PARTICIPANTS, FUTURE, ROUNDS, PER_ROUND, COEFFICIENTS, CLASSES = 16, 4, 100, 8, 4096, 10


def example_result(**changes: Any) -> dict[str, Any]:
    """result.json of a run of the shipped data; `changes` replace top-level keys."""
    rng = np.random.default_rng(7)
    seen, future = (
        {f"{kind}-{i}": round(float(p), 4) for i, p in enumerate(rng.normal(mean, 6, n).clip(0, 100))}
        for kind, mean, n in (("participant", 83, PARTICIPANTS), ("future", 87, FUTURE))
    )
    masked = [{name: min(p + 4.5, 100.0) for name, p in group.items()} for group in (seen, future)]
    return {
        "version": 1,
        "sottovoce": "0.1.0",
        "method": "factorized",
        "dataset": "mnist-small",
        "seed": 41,
        "preset": "tuned",
        "context": "predictions",
        "uses_future_labels": False,
        "channel": "polar",
        "basis": "structured",
        "seeded": False,
        "model_parameters": 85822,
        "coefficients": COEFFICIENTS,
        "participants": PARTICIPANTS,
        "future_clients": FUTURE,
        "rounds": ROUNDS,
        "releases_max": 50,
        "epsilon": {
            "target": 8.0,
            "spent_max": 7.99871,
            "accounting": "exact",
            "per_client": {name: 7.99871 - 0.35 * (i % 3) for i, name in enumerate(seen)},
            "future_context": 0.91342,
        },
        "delta": 1e-5,
        "sigma": 0.0246813,
        "sigma_context": 0.0493626,
        "accuracy": {
            "seen": float(np.mean(list(seen.values()))),
            "future": float(np.mean(list(future.values()))),
            "seen_masked": float(np.mean(list(masked[0].values()))),
            "future_masked": float(np.mean(list(masked[1].values()))),
            "seen_per_client": seen,
            "future_per_client": future,
            "seen_masked_per_client": masked[0],
            "future_masked_per_client": masked[1],
        },
        "confusion": {
            name: (rng.poisson(0.5, (CLASSES, CLASSES)) + np.diag(rng.integers(0, 30, CLASSES))).tolist()
            for name in [*seen, *future]
        },
        "uplink": {
            "bytes": sum(line["bytes"] for line in example_rounds()),
            "releases": ROUNDS * PER_ROUND,
            "bits_per_coefficient": 0.1732,
            "context_bytes": 1840,
            "fp32_bytes": ROUNDS * PER_ROUND * 4 * COEFFICIENTS,
        },
        "downlink": {"bytes": ROUNDS * PER_ROUND * 4 * COEFFICIENTS},
        "seconds": 61.37,
        "created": "2026-11-15T09:41:07+00:00",
    } | changes


def example_rounds() -> list[dict[str, Any]]:
    """rounds.jsonl of the same run, evaluated in every tenth round."""
    rng = np.random.default_rng(8)
    lines = []
    for t in range(1, ROUNDS + 1):
        learned = 1 - np.exp(-t / 22)
        evaluated = t % 10 == 0 or t == 1
        lines.append(
            {
                "round": t,
                "clients": [f"participant-{(t * PER_ROUND + i) % PARTICIPANTS}" for i in range(PER_ROUND)],
                "context_bytes": 1840 if t == 50 else 0,
                "bytes": int(PER_ROUND * rng.normal(92, 2)),
                "signal_norm": float(0.62 - 0.3 * learned + rng.normal(0, 0.015)),
                "noise_norm": float(1.58 + rng.normal(0, 0.012)),
                "gain": float(2.1 + 9 * learned + rng.normal(0, 0.1)),
                "seconds": float(rng.normal(0.55, 0.02)),
                "seen": float(11 + 72 * learned + rng.normal(0, 0.8)) if evaluated else None,
                "future": float(11 + 69 * learned + rng.normal(0, 1.2)) if evaluated else None,
            }
        )
    return lines


EXAMPLE_PLAN = """preset = "tuned"
dataset = "mnist-small"
participants = 16
alpha = 0.5
learning_rate = 0.5
delta = 1e-05
seeded = false
"""


def write_example(directory: Path, **changes: Any) -> Path:
    """A complete run directory, less its report."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(example_result(**changes)))
    (directory / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in example_rounds()))
    (directory / "plan.toml").write_text(EXAMPLE_PLAN)
    return directory
