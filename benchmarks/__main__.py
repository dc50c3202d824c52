"""`make bench`: what fits into ten minutes on two cores, as JSON and plots in benchmarks/out/.

Figures are ratios within one run, or say what they were measured in; docs/benchmarks.md shows the last ones.
"""

from __future__ import annotations

import json
import platform
import time
from typing import Any

import torch

from benchmarks import features, memory, plots, round, scaling
from benchmarks.environment import peer_python
from sottovoce.channel import CHANNELS
from studies.bench import channel, gradients

OUT = plots.OUT


def main() -> None:
    """Runs every benchmark and writes its figures."""
    OUT.mkdir(exist_ok=True)
    started = time.monotonic()
    torch.set_num_threads(1)
    _write("gradients", gradients.measure(peer_python=peer_python("opacus")))
    _write("memory", memory.run())
    _write("round", round.run())
    _write("scaling", scaling.run())
    _write("features", features.run())
    _write("channel", channel.measure(CHANNELS, 0.0147, (0.1, 0.3, 0.6, 1.0), 16384, 50))
    plots.draw()
    print(f"all in {time.monotonic() - started:.0f} s, in {OUT}")


def _write(name: str, figures: Any) -> None:
    machine = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
    (OUT / f"{name}.json").write_text(json.dumps({"figures": figures, **machine}, indent=1) + "\n")
    print(name, json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
