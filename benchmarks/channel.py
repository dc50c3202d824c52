"""Rates and times of all channels beside their targets: `python -m benchmarks.channel [messages]`."""

from __future__ import annotations

import json
import sys
from typing import Any

from studies.bench.channel import measure

CHANNELS = ("direct", "direct-q12", "lrsuq-elias", "lrsuq", "lrsuq/D4", "lrsuq/E8", "polar")
POINTS = ((0.0147, (0.3, 0.6, 1.0)), (0.05, (0.3,)), (0.0087, (1.0,)))
# Most bits per coefficient at n = 16,384 by σ and norm.
TARGETS = {
    "polar": {(0.0147, 0.3): 0.034, (0.0147, 0.6): 0.105, (0.0147, 1.0): 0.26, (0.05, 0.3): 0.008}
    | {(0.0087, 1.0): 0.58},
    "lrsuq": {(0.0147, 0.3): 0.24, (0.0147, 1.0): 0.80, (0.05, 0.3): 0.09, (0.0087, 1.0): 1.45},
}


def run(messages: int = 50) -> dict[str, Any]:
    """All rows of the measurement, and each target beside what was measured."""
    rows = [row for sigma, norms in POINTS for row in measure(CHANNELS, sigma, norms, 16384, messages)]
    found = {(row["channel"], row["sigma"], row["norm"]): row for row in rows}
    times = {key: row["encode_ms"] + row["decode_ms"] for key, row in found.items()}
    checks = {
        f"{channel} bpc at sigma {sigma}, norm {norm}": (
            found[channel, sigma, norm]["bits_per_coefficient"],
            most,
        )
        for channel, targets in TARGETS.items()
        for (sigma, norm), most in targets.items()
    }
    checks["lrsuq ms at norm 0.3"] = (times["lrsuq", 0.0147, 0.3], 5.0)
    checks["polar over lrsuq, ms at norm 0.3"] = (
        times["polar", 0.0147, 0.3] / times["lrsuq", 0.0147, 0.3],
        1.5,
    )
    checks["polar ms at norm 1"] = (times["polar", 0.0147, 1.0], 30.0)
    return {
        "rows": rows,
        "checks": {
            name: {"measured": measured, "at_most": most, "met": measured <= most}
            for name, (measured, most) in checks.items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 50), indent=2))
