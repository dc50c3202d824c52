"""What `result.json` says about a finished run."""

from __future__ import annotations

import json

import numpy as np
import pytest


def test_the_files_of_a_run_say_what_it_did(factorized_run) -> None:
    out, result = factorized_run
    assert json.loads((out / "result.json").read_text()) == result
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == list(range(1, 31))
    assert sum(line["bytes"] for line in rounds) == result["uplink"]["bytes"]
    assert result["uplink"]["releases"] == 90
    assert result["uplink"]["bytes"] >= 90 * 800 * 4
    assert result["seeded"] is True
    assert set(result["accuracy"]["future_per_client"]) == {"future-0", "future-1"}
    assert not (out / "checkpoint.safetensors").exists()
    mean = np.mean(list(result["accuracy"]["seen_per_client"].values()))
    assert mean == pytest.approx(result["accuracy"]["seen"])
    noise = np.mean([line["noise_norm"] for line in rounds])
    # ‖N(0, σ²I₈₀₀)‖ = σ√800, its mean over 90 releases within 2 %: error rate below 1e-10.
    assert noise == pytest.approx(result["sigma"] * np.sqrt(800), rel=0.02)
