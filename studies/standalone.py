"""The grid on a machine with little installed: as many missing runs as fit in the given minutes.

`python -m studies.standalone --device cuda --jobs 8 --minutes 9 --out DIR` needs torch,
numpy and safetensors only. It runs the most important experiments first and keeps `summary.jsonl` up to
date, a small file that `python -m studies.merge` adds to the results.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sottovoce.errors import SottovoceError
from studies.cells import EXPERIMENTS, SEEDS, open_cells
from studies.execution import Resources, pending, run_grid
from studies.grid import CellRun, runs_of
from studies.summary import collect, read_lines, write_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 when everything asked for is finished, 1 when something is left."""
    options = _parser().parse_args(arguments)
    try:
        return _work(options)
    except SottovoceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _work(options: argparse.Namespace) -> int:
    experiments = options.experiments.split(",") if options.experiments else EXPERIMENTS
    cells = [
        cell
        for experiment in experiments
        for cell in open_cells(
            experiment, datasets=options.dataset, epsilons=options.epsilon, quick=options.quick
        )
        if not options.only or any(words in cell.id for words in options.only)
    ]
    runs = runs_of(cells, options.seeds or SEEDS)
    known = frozenset(line["run"] for line in read_lines(options.known) if options.law or not line["law"])
    todo = pending(options.out, runs, known)
    print(f"{len(runs)} runs, {len(todo)} to make", flush=True)
    summary: Path = options.summary or options.out / "summary.jsonl"
    started = time.monotonic()
    lines = collect(options.out, runs)
    before = len(lines)

    def finished(run: CellRun) -> None:
        lines.extend(collect(options.out, [run]))
        write_lines(summary, lines)
        passed = f"{time.monotonic() - started:.0f} s"
        print(f"{len(lines) - before}/{len(todo)} {passed} {run.cell.id} seed {run.plan.seed}", flush=True)

    resources = Resources(
        options.device, options.jobs, options.batch, options.minutes, options.law, options.cluster
    )
    outcome = run_grid(options.out, todo, resources, resume=True, on_run=finished)
    write_lines(summary, lines)
    for problem in outcome.problems:
        print(f"problem: {problem}", file=sys.stderr)
    if outcome.out_of_time:
        print(f"time is over: {len(todo) - outcome.finished} runs are left")
    return 0 if outcome.finished == len(todo) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.standalone", description=__doc__)
    parser.add_argument("--experiments", help="comma-separated; default: all, most important first")
    parser.add_argument("--dataset", action="append", default=[], help="default: those of each table")
    parser.add_argument("--epsilon", action="append", type=float, default=[])
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], help="as 41,42")
    parser.add_argument("--only", action="append", help="cells whose id contains these words")
    parser.add_argument("--quick", action="store_true", help="few rounds, to try things out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per core")
    parser.add_argument("--cluster", default="", help="a Ray cluster; auto: the one of this machine")
    parser.add_argument("--batch", type=int, default=0, help="runs in lockstep in each process")
    parser.add_argument("--minutes", type=float, help="break off after this time")
    parser.add_argument("--law", action="store_true", help="coded channels by their decoded law: no bytes")
    parser.add_argument("--out", type=Path, required=True, help="folder of run directories")
    parser.add_argument("--summary", type=Path, help="default: OUT/summary.jsonl")
    parser.add_argument(
        "--known", action="append", type=Path, default=[], help="summaries of runs made before"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
