"""A grid on one GPU: `python -m benchmarks.sweep --device cuda --jobs 15 --batch 7 --out DIR` prints JSON.

Four things: the GPU's fp32 peak as its matrix product reaches it, per-record gradients a second of the
batched clipped means of each basis, the kernels in which they spend their time, and a whole grid timed from
an empty folder, all releases by their law: the paper's main table (five methods, four budgets, five seeds,
two datasets, 500 rounds: 200 runs), or with `--experiment frontier` that table. The share of the peak counts
the arithmetic of an ordinary forward and backward pass of every record of the main table only. Processes
share a GPU better under CUDA's multi-process service: start `nvidia-cuda-mps-control -d` before.
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
from studies.bench.interleaved import medians
from studies.cells import SEEDS, open_cells
from studies.execution import Resources, pending, run_grid
from studies.grid import CellRun, runs_of
from studies.summary import collect, write_lines
from studies.work import device_name
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from sottovoce.gradients import clipped_means
from sottovoce.models.architectures import lenet
from sottovoce.models.bases import BASIS_KINDS, open_basis
from sottovoce.models.parameters import flat_parameters

METHODS = ("Global", "Full-DG", "DeepLin-DG", "Ours-DG", "Ours-LRSUQ")
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
CLIENTS, RECORDS, COEFFICIENTS = 40, 333, 16_384


def peak(device: str, size: int = 8192, repeats: int = 10) -> float:
    """fp32 operations a second of a large matrix product, without TF32."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return 2 * size**3 / _median(lambda: a @ b, device, repeats)


def rates(device: str, clients: int = CLIENTS, repeats: int = 10) -> dict[str, dict[str, Any]]:
    """Per-record gradients a second of CIFAR-10 LeNets, clipped and averaged, and their kernels, by basis."""
    module = lenet((3, 32, 32), 10).to(device)
    theta = flat_parameters(module).expand(clients, -1).contiguous()
    x = torch.randn(clients, RECORDS, 3, 32, 32, device=device)
    y = torch.randint(10, (clients, RECORDS), device=device)
    found: dict[str, dict[str, Any]] = {}
    for kind in BASIS_KINDS:
        bases = [open_basis(kind, module, COEFFICIENTS, seed).to(device) for seed in range(clients)]
        work = partial(clipped_means, module, theta, bases, x, y, clip=1.0, denominator=RECORDS)
        seconds = _median(work, device, repeats)
        found[kind] = {"gradients_per_second": clients * RECORDS / seconds, **kernels(work, device)}
    return found


def kernels(work: Callable[[], object], device: str, most: int = 12) -> dict[str, Any]:
    """Milliseconds of all kernels of a call, and the shares of those that take longest."""
    if device == "cpu":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    spent = {event.key: event.self_device_time_total / 1e3 for event in seen.key_averages()}
    total = sum(spent.values())
    longest = sorted(spent, key=lambda name: -spent[name])[:most]
    return {
        "kernel_milliseconds": total,
        "kernels": {name[:100]: round(spent[name] / total, 3) for name in longest},
    }


def table(out: Path, resources: Resources, experiment: str) -> dict[str, Any]:
    """Seconds of all runs of a table, their per-record gradients, and arithmetic a second."""
    cells = [cell for cell in open_cells(experiment) if experiment != "main-table" or cell.label in METHODS]
    runs = pending(out, runs_of(cells, SEEDS))
    done: list[CellRun] = []
    started = time.monotonic()

    def finished(run: CellRun) -> None:
        done.append(run)
        print(f"{len(done)}/{len(runs)} {time.monotonic() - started:.0f} s {run.cell.id}", file=sys.stderr)

    outcome = run_grid(out, runs, resources, on_run=finished)
    seconds = time.monotonic() - started
    write_lines(out / "summary.jsonl", collect(out, runs))
    figures = {"runs": len(done), "problems": outcome.problems, "seconds": seconds}
    if experiment != "main-table":
        return {**figures, "rounds": sum(run.plan.rounds for run in done)}
    records = {name: sum(_records(run) for run in done if run.plan.dataset == name) for name in SHAPES}
    return {
        **figures,
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
    parser.add_argument("--jobs", type=int, default=15, help="processes that share the GPU")
    parser.add_argument("--batch", type=int, default=7, help="runs in lockstep in each process")
    parser.add_argument("--experiment", choices=("main-table", "frontier"), default="main-table")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder for run directories")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    figures: dict[str, Any] = {"device": device_name(options.device), "fp32_peak": peak(options.device)}
    figures["clipped_means"] = rates(options.device)
    if options.device != "cpu":
        torch.cuda.empty_cache()
    resources = Resources(options.device, options.jobs, options.batch, law=True)
    figures[options.experiment] = table(options.out, resources, options.experiment)
    if options.experiment == "main-table":
        figures["share_of_peak"] = figures[options.experiment]["flops"] / figures["fp32_peak"]
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
