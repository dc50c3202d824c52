"""What coding costs is compared seed by seed, with the first number of bits as the measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import downlink


def test_losses_are_taken_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(preset: str, dataset: str, seed: int, bits: int, out: Path) -> dict[str, Any]:
        lost = 0.0 if bits == 32 else 0.25 * (seed - 40)
        return {
            "uplink": {"total_bytes": 100},
            "downlink": {"bytes": 1000 * bits, "bits_per_coefficient": bits, "once_bytes": 0},
            "accuracy": {"seen": seed - lost, "future": float(seed)},
        }

    monkeypatch.setattr(downlink, "_result", result)
    whole, coded = downlink.compare("best", "mnist", [41, 42], [32, 4], tmp_path)
    assert whole["seen_lost"] == [0.0, 0.0]
    assert (coded["seen_lost"], coded["seen_lost_mean"]) == ([0.25, 0.5], 0.375)
    assert (coded["future_lost_mean"], coded["downlink_bytes"]) == (0.0, 4000.0)
