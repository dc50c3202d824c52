"""`sottovoce predict` on a million rows: `python -m benchmarks.predict [ROWS]` prints JSON.

A linear model of 20 numbers and 2 categories predicts a CSV and a Parquet file, each in a process of its own,
start included. Memory is that process's high-water mark, and beside it that of a tenth of the rows: where
they are alike, memory does not grow with the file (Linux only).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow.csv import read_csv, write_csv
from pyarrow.parquet import write_table

from sottovoce.data import Description
from sottovoce.personal import personal_model
from sottovoce.plan import Plan
from sottovoce.release.blueprint import build

NUMBERS, CLASSES = 20, ("healthy", "cardiac", "renal", "infection")
CATEGORIES = {"sex": ("f", "m"), "ward": ("a", "b", "c", "d")}
PROGRAM = """
import atexit, os, sys
from sottovoce.cli import main
status = lambda: [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
atexit.register(lambda: open(os.environ["PEAK"], "w").writelines(status()))
main()
"""


def agreement() -> Description:
    """What a record is."""
    lines = ['task = "classes"', "[target]", 'column = "diagnosis"', f"values = {json.dumps(CLASSES)}"]
    for i in range(NUMBERS):
        lines += [f"[columns.n{i}]", 'kind = "number"', "low = -6", "high = 6", 'missing = "middle"']
    for name, values in CATEGORIES.items():
        lines += [f"[columns.{name}]", 'kind = "category"', f"values = {json.dumps(values)}"]
    return Description.parse("\n".join(lines))


def write_model(path: Path) -> None:
    """A linear model with made-up coefficients."""
    facts = agreement().facts()
    values = {"participants": 1, "clients_per_round": 1, "gradient_records": 100, "context": "public"}
    size = facts.classes * (facts.shape[0] + 1)
    plan = Plan.load(
        overrides={"preset": "tuned", "model": "linear", "method": "blend", "coefficients": size, **values}
    )
    built = build(plan, facts)
    coefficients = torch.randn(built.coefficients, generator=torch.Generator().manual_seed(0))
    path.write_bytes(personal_model(built, coefficients, run="benchmark", client="north", epsilon=4.0))


def write_records(path: Path, rows: int) -> None:
    """A CSV file of made-up records, a hundredth of one column missing."""
    rng = np.random.default_rng(0)
    columns = {f"n{i}": rng.standard_normal(rows).round(3) for i in range(NUMBERS)}
    table = pa.table({**columns, **{name: rng.choice(values, rows) for name, values in CATEGORIES.items()}})
    missing = pa.array(table.column("n0").to_numpy(), mask=rng.random(rows) < 0.01)
    write_csv(table.set_column(0, "n0", missing), path)


def measured(model: Path, records: Path, out: Path) -> dict[str, float]:
    """Seconds and megabytes of one process that predicts a file."""
    started, peak = time.monotonic(), out.with_name("peak")
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "predict",
        str(model),
        "--data",
        str(records),
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, env={**os.environ, "PEAK": str(peak)}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"predict ended with {process.returncode}")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(int(peak.read_text().split()[1]) * 1024 / 1e6, 1),
    }


def run(rows: int = 1_000_000) -> dict[str, Any]:
    """Figures by format of the file, in both directions, and of a tenth of it."""
    figures: dict[str, Any] = {"rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        model, whole, part = (Path(folder) / name for name in ("m.safetensors", "whole.csv", "part.csv"))
        write_model(model)
        write_records(whole, rows)
        write_records(part, rows // 10)
        figures["csv"] = measured(model, whole, Path(folder) / "out.csv")
        figures["csv, a tenth"] = measured(model, part, Path(folder) / "out.csv")
        parquet = whole.with_suffix(".parquet")
        write_table(read_csv(whole), parquet)
        figures["parquet"] = measured(model, parquet, Path(folder) / "out.parquet")
    return figures


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000), indent=1))
