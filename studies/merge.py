"""Adds summaries of finished runs to the results, and remakes index.json and the tables of the docs.

`python -m studies.merge DIR/summary.jsonl …` keeps everything in `results/runs.jsonl`, one
line a run; runs that no cell of the tables asks for, such as those of changed presets, are left out. The
tables stand between two marks in the page; the discussion around them is written by people. With `--measure`
the time of an event (one encoding and decoding, Table 3) is measured on this machine first.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.machine.files import PUBLIC, write_atomically
from studies.bench import channel
from studies.cells import EXPERIMENTS, SEEDS, open_cells
from studies.grid import runs_of
from studies.index import Indexed, build_index, write_index
from studies.summary import read_lines, united, write_lines
from studies.tables import markdown

BEGIN = "<!-- tables: made by python -m studies.merge, do not edit -->"
END = "<!-- end of tables -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m studies.merge", description=__doc__)
    parser.add_argument("summaries", nargs="*", type=Path, help="summary.jsonl of finished runs")
    parser.add_argument("--into", type=Path, default=Path("results"), help="folder of results")
    parser.add_argument("--docs", type=Path, default=Path("docs/results.md"), help="page with the tables")
    parser.add_argument("--measure", action="store_true", help="measure the time of an event anew")
    options = parser.parse_args(arguments)
    try:
        if options.measure:
            measure_events(options.into / "events.json")
        print(merge(options.summaries, options.into, options.docs))
    except SottovoceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def merge(summaries: Sequence[Path], into: Path, docs: Path) -> str:
    """Adds the summaries, writes index and tables, and says in one line what there is now."""
    cells = [cell for experiment in EXPERIMENTS for cell in open_cells(experiment)]
    wanted = {run.digest: run for run in runs_of(cells, SEEDS)}
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


def write_tables(page: Path, index: Sequence[Indexed]) -> None:
    """Replaces what stands between the marks of a page by the tables of an index."""
    try:
        text = page.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN, 1)
        _, after = rest.split(END, 1)
    except (OSError, ValueError):
        raise SottovoceError(
            f"{page} has no place for tables: it needs the lines '{BEGIN}' and '{END}'"
        ) from None
    write_atomically(page, f"{before}{BEGIN}\n\n{markdown(index)}\n{END}{after}".encode(), PUBLIC)


def measure_events(path: Path) -> None:
    """Writes down what an event takes here, by channel, and how it was measured."""
    record: dict[str, Any] = {
        "milliseconds": channel.milliseconds_per_event(),
        **channel.EVENT,
        "command": "python -m studies.merge --measure",
        "device": platform.machine(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode(), PUBLIC)


def milliseconds_per_event(path: Path) -> dict[str, float]:
    """What was measured into a file, or nothing where there is no file."""
    if not path.exists():
        return {}
    measured: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["milliseconds"]
    return measured


if __name__ == "__main__":
    sys.exit(main())
