"""`make neighbours`: at least 10⁵ pairs of files to their statistics, and 10³ through whole commands, in
processes of their own; prints the table of docs/privacy.md and what was refused. Fails if a promise broke.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path
from random import Random

from sottovoce.audit.leaving import Largest
from sottovoce.cores import available

from .commands import through
from .worlds import Case, cases, neighbours, routes, world

FILES, PAIRS = 18, 100_000
THROUGH = {
    "train": Case(".csv", "classes", True, "shares", "server"),
    "personalize": Case(".csv", "classes", False, "shares", edge=True),
    "onboard": Case(".parquet", "classes", True, "shares"),
    "federation": Case(".npz", "classes", False, "shares"),
}
FILES_OF_COMMANDS, PAIRS_OF_COMMANDS = 24, 1_000


def of_case(given: tuple[Case, int]) -> Largest:
    """One family for each way of a file of this case."""
    case, turn = given
    found = Largest()
    with tempfile.TemporaryDirectory() as folder:
        here = world(case, Path(folder))
        for route in routes(case):
            found.compare(list(neighbours(here, route, Random(f"{case}:{route}:{turn}"), FILES)))
    return found


def of_command(given: tuple[str, int]) -> Largest:
    """One family through a whole command."""
    command, turn = given
    found = Largest()
    with tempfile.TemporaryDirectory() as folder:
        here = world(THROUGH[command], Path(folder))
        random = Random(f"{command}:{turn}")
        found.compare(list(through(here, command, Path(folder, "runs"), random, FILES_OF_COMMANDS)))
    return found


def show(found: Largest, what: str) -> None:
    """The table, in Markdown, and what was refused."""
    print(f"\n{found.pairs:,} pairs {what}\n")
    print("| release | noise | pairs | largest ratio |\n|---|---|---|---|")
    for row in found.releases:
        print(f"| {row['kind']} | {row['place']} | {row['compared']:,} | {row['ratio']:.4f} |")
    print(f"\n{sum(found.refused.values()):,} pairs of which one file was refused:")
    for why, count in sorted(found.refused.items(), key=lambda pair: -pair[1]):
        print(f"{count:8,}  {why}")
    for fault in found.faults:
        print(f"BROKEN: {fault}")
    sys.stdout.flush()


def main() -> int:
    files, commands, turn = Largest(), Largest(), 0
    with multiprocessing.get_context("spawn").Pool(available()) as pool:
        while files.pairs < PAIRS:
            for found in pool.imap_unordered(of_case, [(case, turn) for case in cases()]):
                files.add(found)
            turn += 1
            print(f"{files.pairs:,} pairs", file=sys.stderr)
    show(files, "from file to statistic")
    turn = 0
    while commands.pairs < PAIRS_OF_COMMANDS:
        for command in THROUGH:
            commands.add(of_command((command, turn)))
            print(f"{commands.pairs:,} pairs through commands", file=sys.stderr)
        turn += 1
    show(commands, "through whole commands and processes")
    return 1 if files.faults or commands.faults else 0


if __name__ == "__main__":
    sys.exit(main())
