"""Peak memory of one clipped mean above model, records and basis: `python -m benchmarks.memory` prints JSON
(MB).

Each contender has a process of its own, whose high-water mark the kernel is asked to forget after a small
first call; the mark then reached over three full calls, less what was resident before, is the figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from studies.bench.gradients import contenders

CONTENDERS = ("plain", "structured", "unstructured", "identity")


def run(records: int = 333) -> dict[str, float]:
    """MB (10⁶ bytes) by contender; Linux only."""
    peaks = {}
    for name in CONTENDERS:
        command = [sys.executable, "-m", "benchmarks.memory", name, str(records)]
        peaks[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return peaks


def peak(name: str, records: int) -> float:
    """Peak extra MB of one contender in this process."""
    torch.set_num_threads(1)
    first, work = contenders(2)[name], contenders(records)[name]
    first()
    Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark
    before = kilobytes("VmRSS")
    for _ in range(3):
        work()
    return (kilobytes("VmHWM") - before) * 1024 / 1e6


def kilobytes(field: str, process: int | str = "self") -> int:
    """A field of /proc/PROCESS/status, such as VmRSS or VmHWM."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(peak(sys.argv[1], int(sys.argv[2])))
    else:
        print(json.dumps(run(), indent=2))
