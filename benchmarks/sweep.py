"""A grid on one GPU: `python -m benchmarks.sweep --device cuda --jobs 10 --batch 10 --out DIR` prints JSON.

Three things: the card's fp32 peak as its matrix product reaches it, per-record gradients a second of the
batched clipped means of each basis, and the paper's whole main table (five methods, four budgets, five seeds,
two datasets, 500 rounds: 200 runs) timed from an empty folder, the coded variant by its decoded law. The
share of the peak counts the arithmetic of an ordinary forward and backward pass of every record only.
Processes share a card better under CUDA's multi-process service: start `nvidia-cuda-mps-control -d` before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sottovoce.bench.interleaved import medians
from sottovoce.experiments.cells import SEEDS, open_cells
from sottovoce.experiments.execution import Resources, pending, run_grid
from sottovoce.experiments.grid import CellRun, runs_of
from sottovoce.experiments.summary import collect, write_lines
from sottovoce.experiments.work import device_name
from sottovoce.gradients import clipped_means
from sottovoce.models import flat_parameters, lenet
from sottovoce.subspace import BASIS_KINDS, open_basis

METHODS = ("Global", "Full-DG", "DeepLin-DG", "Ours-DG", "Ours-LRSUQ")
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
CLIENTS, RECORDS, COEFFICIENTS = 40, 333, 16_384


def peak(device: str, size: int = 8192, repeats: int = 10) -> float:
    """fp32 operations a second of a large matrix product, without TF32."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return 2 * size**3 / _median(lambda: a @ b, device, repeats)


def rates(device: str, clients: int = CLIENTS, repeats: int = 10) -> dict[str, float]:
    """Per-record gradients a second of CIFAR-10 LeNets, clipped and averaged, by basis."""
    module = lenet((3, 32, 32), 10).to(device)
    theta = flat_parameters(module).expand(clients, -1).contiguous()
    x = torch.randn(clients, RECORDS, 3, 32, 32, device=device)
    y = torch.randint(10, (clients, RECORDS), device=device)
    found = {}
    for kind in BASIS_KINDS:
        bases = [open_basis(kind, module, COEFFICIENTS, seed).to(device) for seed in range(clients)]
        work = partial(clipped_means, module, theta, bases, x, y, clip=1.0, denominator=RECORDS)
        seconds = _median(work, device, repeats)
        found[kind] = clients * RECORDS / seconds
    return found


def main_table(out: Path, resources: Resources) -> dict[str, Any]:
    """Seconds of the 200 runs, their per-record gradients, and arithmetic a second."""
    cells = [cell for cell in open_cells("main-table") if cell.label in METHODS]
    runs = pending(out, runs_of(cells, SEEDS))
    done: list[CellRun] = []
    started = time.monotonic()

    def finished(run: CellRun) -> None:
        done.append(run)
        print(f"{len(done)}/{len(runs)} {time.monotonic() - started:.0f} s {run.cell.id}", file=sys.stderr)

    outcome = run_grid(out, runs, resources, on_run=finished)
    seconds = time.monotonic() - started
    write_lines(out / "summary.jsonl", collect(out, runs))
    records = {name: sum(_records(run) for run in done if run.plan.dataset == name) for name in SHAPES}
    return {
        "runs": len(done),
        "problems": outcome.problems,
        "seconds": seconds,
        "gradients": sum(records.values()),
        "gradients_per_second": sum(records.values()) / seconds,
        "flops": sum(count * _flops(SHAPES[name]) for name, count in records.items()) / seconds,
    }


def _records(run: CellRun) -> int:
    plan = run.plan
    return plan.rounds * plan.clients_per_round * plan.gradient_records


def _flops(shape: tuple[int, ...]) -> float:
    """Operations of an ordinary forward and backward pass of one record."""
    module, count = lenet(shape, 10), FlopCounterMode(display=False)
    with count:
        F.cross_entropy(module(torch.randn(1, *shape)), torch.zeros(1, dtype=torch.long)).backward()
    return float(count.get_total_flops())


def _median(work: Callable[[], object], device: str, repeats: int) -> float:
    """Seconds of one call, after one to warm up."""

    def complete() -> None:
        work()
        if device != "cpu":
            torch.cuda.synchronize()

    return medians({"work": complete}, repeats, time.perf_counter)["work"]


def main() -> None:
    """Runs the three parts and prints their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=10, help="processes that share the card")
    parser.add_argument("--batch", type=int, default=10, help="runs in lockstep in each process")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder for run directories")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    figures: dict[str, Any] = {"device": device_name(options.device), "fp32_peak": peak(options.device)}
    figures["gradients_per_second"] = rates(options.device)
    if options.device != "cpu":
        torch.cuda.empty_cache()
    resources = Resources(options.device, options.jobs, options.batch, law=True)
    figures["main_table"] = main_table(options.out, resources)
    figures["share_of_peak"] = figures["main_table"]["flops"] / figures["fp32_peak"]
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
