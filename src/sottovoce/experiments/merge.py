"""Adds summaries of finished runs to the results, and remakes index.json and the tables of the docs.

`python -m sottovoce.experiments.merge DIR/summary.jsonl …` keeps everything in `results/runs.jsonl`, one
line a run; runs that no cell of the tables asks for, such as those of changed presets, are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.experiments.cells import EXPERIMENTS, SEEDS, open_cells
from sottovoce.experiments.document import write_tables
from sottovoce.experiments.events import milliseconds_per_event
from sottovoce.experiments.grid import runs_of
from sottovoce.experiments.index import build_index, write_index
from sottovoce.experiments.summary import read_lines, united, write_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m sottovoce.experiments.merge", description=__doc__)
    parser.add_argument("summaries", nargs="*", type=Path, help="summary.jsonl of finished runs")
    parser.add_argument("--into", type=Path, default=Path("results"), help="folder of results")
    parser.add_argument("--docs", type=Path, default=Path("docs/results.md"), help="page with the tables")
    options = parser.parse_args(arguments)
    try:
        print(merge(options.summaries, options.into, options.docs))
    except SottovoceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def merge(summaries: Sequence[Path], into: Path, docs: Path) -> str:
    """Adds the summaries, writes index and tables, and says in one line what there is now."""
    cells = [cell for experiment in EXPERIMENTS for cell in open_cells(experiment)]
    wanted = {run.plan.digest(): run for run in runs_of(cells, SEEDS)}
    kept = into / "runs.jsonl"
    lines = united(read_lines([*([kept] if kept.exists() else []), *summaries]))
    current = [lines[digest] for digest in wanted if digest in lines]
    index = build_index(cells, SEEDS, current, milliseconds_per_event(into / "events.json"))
    write_lines(kept, current)
    write_index(into / "index.json", index)
    write_tables(docs, index)
    full = sum(len(entry["seeds"]) == len(SEEDS) for entry in index)
    return (
        f"{len(current)} of {len(wanted)} runs, {full} of {len(cells)} cells with all seeds; "
        f"{len(lines) - len(current)} runs belong to no cell"
    )


if __name__ == "__main__":
    sys.exit(main())
