"""Seeded runs give the numbers they gave before: `pinned.json` was written by the first release.

`python -m tests.test_pinned` writes it anew; the CHANGELOG says why whenever that is done.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.run.training import train
from tests.small import small_plan

PINNED = Path(__file__).with_name("pinned.json")
CASES: dict[str, dict[str, Any]] = {
    "global": {"method": "global"},
    "full": {"method": "full"},
    "deep-linear": {"method": "deep-linear"},
    "factorized": {},
    "factorized-paper": {"preset": "paper", "gradient_records": 96, "accounting": "rdp"},
    "standardized": {"context": "standardized", "context_noise": 0.5},
    "labels-polar": {"context": "labels", "channel": "polar"},
    "predictions-lrsuq": {"context": "predictions", "context_round": 2, "channel": "lrsuq", "lattice": "D4"},
    "public-q12": {"context": "public", "channel": "direct-q12"},
    "elias": {"channel": "lrsuq-elias", "gradient_records": 50},
    "direct": {"method": "direct", "basis": "unstructured"},
    "radial": {"method": "radial", "momentum": 0.5, "averaging": 0.5},
    "noiseless": {"epsilon": float("inf")},
}


def numbers(out: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """What a seeded run is known by: exact where integers decide, to eight digits elsewhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = train(small_plan(**changes), out)
    finally:
        torch.set_num_threads(threads)
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return {
        "clients": [line["clients"] for line in rounds],
        "bytes": [line["bytes"] + line["context_bytes"] for line in rounds],
        "norms": [line[name] for line in rounds for name in ("signal_norm", "noise_norm", "gain")],
        "accuracy": [*result["accuracy"]["seen_per_client"].values(), result["accuracy"]["future"]],
        "epsilon": result["epsilon"]["spent_max"] or 0.0,
        "sigma": [result["sigma"], result["sigma_context"]],
    }


@pytest.mark.parametrize("name", CASES)
def test_seeded_run_gives_the_numbers_it_gave_before(name: str, tmp_path: Path) -> None:
    expected, found = json.loads(PINNED.read_text())[name], numbers(tmp_path / "run", CASES[name])
    for exact in ("clients", "bytes"):
        assert found[exact] == expected[exact]
    for close in ("norms", "accuracy", "epsilon", "sigma"):
        assert found[close] == pytest.approx(expected[close], rel=1e-6, abs=1e-8)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pins = {name: numbers(Path(folder, name), changes) for name, changes in CASES.items()}
    PINNED.write_text(json.dumps(pins) + "\n")
