"""Private gradients beside an ordinary step, vmap and Opacus, as JSON: `python -m benchmarks.gradients`."""

from __future__ import annotations

import json

from benchmarks.environment import peer_python
from sottovoce.gradients import bench


def run() -> dict[str, float]:
    """Ratios of medians, as `sottovoce.bench.gradients.measure` names them; all in one process."""
    return bench.measure(peer_python=peer_python("opacus"))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
