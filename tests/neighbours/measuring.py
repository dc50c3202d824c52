"""`make neighbours`: at least 10⁵ pairs of files to their statistics, and 10³ through whole commands, in
processes of their own; prints the table of docs/privacy.md and what was refused. Fails if a promise broke.
Coefficients are honest ones, an adversary's, and those that he climbed to; in every second family clients do
not even cut them. `python -m tests.neighbours files` or `commands` makes one half of it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from multiprocessing.pool import ThreadPool
from pathlib import Path
from random import Random

from sottovoce.audit.order import by_order, climbed
from sottovoce.audit.sensitivity import Largest, coefficients

from .commands import through
from .worlds import Case, cases, neighbours, routes, unbounded, world

FILES, PAIRS = 22, 100_000
THROUGH = (
    ("train", Case(".csv", "classes", True, "shares", "server")),
    ("train", Case(".parquet", "classes", True, "shares", "shared")),
    ("train", Case(".npz", "classes", False, "shares", array="tokens", model="bag")),
    ("personalize", Case(".csv", "classes", False, "shares", edge=True)),
    ("onboard", Case(".parquet", "classes", True, "shares")),
    ("onboard", Case(".csv", "classes", False, "shares", "shared")),
    ("personalize", Case(".csv", "classes", False, "shares", "shared")),
    ("federation", Case(".npz", "classes", False, "shares")),
    ("federation", Case(".csv", "classes", True, "shares", "server")),
    ("federation", Case(".parquet", "classes", False, "shares", "shared")),
)
Order = dict[tuple[str, str], float]
"""By kind of release and place of noise: how far order alone moved one at most, in parts of its charge."""
FILES_OF_COMMANDS, PAIRS_OF_COMMANDS = 18, 1_000


def of_case(given: tuple[int, int]) -> tuple[Largest, Order]:
    """One family of files of a case, by another way in each turn; and what order alone moves."""
    number, turn = given
    case, found = cases()[number], Largest()
    ways = routes(case)
    with tempfile.TemporaryDirectory() as folder, unbounded() if (number + turn) % 2 else nullcontext():
        random, way = Random(f"{number}:{turn}"), ways[(number + turn) % len(ways)]
        here = world(case, Path(folder))
        worst = climbed(here.blueprint, here.federation, random)
        found.compare(list(neighbours(here, way, random, FILES, also=[worst])))
        at = [*coefficients(here.blueprint, random.getrandbits(32)), worst]
        order, faults = by_order(here.blueprint, here.federation, at, random)
    found.faults += faults
    return found, order


def of_command(given: tuple[int, int]) -> Largest:
    """One family through a whole command."""
    number, turn = given
    (command, case), found = THROUGH[number], Largest()
    with tempfile.TemporaryDirectory() as folder:
        here = world(case, Path(folder))
        random = Random(f"{number}:{turn}")
        found.compare(list(through(here, command, Path(folder, "runs"), random, FILES_OF_COMMANDS)))
    return found


def add(all_seen: Largest, one: Largest) -> None:
    """Adds what one family has shown to what all have."""
    for kind, row in one.rows.items():
        all_seen.note(kind, **row)
    for why, count in one.refused.items():
        all_seen.refused[why] = all_seen.refused.get(why, 0) + count
    all_seen.pairs += one.pairs
    all_seen.faults += [fault for fault in one.faults if fault not in all_seen.faults]


def show(found: Largest, what: str, order: Mapping[tuple[str, str], float]) -> None:
    """The table, in Markdown, and what was refused."""
    print(f"\n{found.pairs:,} pairs {what}\n")
    print("| release | noise | statistics compared | largest ratio | order alone |\n|---|---|---|---|---|")
    for row in found.releases:
        alone = order.get((row["kind"], row["place"]), float("nan"))
        print(f"| {row['kind']} | {row['place']} | {row['compared']:,} | {row['ratio']:.4f} | {alone:.0e} |")
    print(f"\n{sum(found.refused.values()):,} pairs of which one file was refused:")
    for why, count in sorted(found.refused.items(), key=lambda pair: -pair[1]):
        print(f"{count:8,}  {why}")
    for fault in found.faults:
        print(f"BROKEN: {fault}")
    sys.stdout.flush()


def from_file_to_statistic() -> tuple[Largest, Order]:
    files, order, turn = Largest(), Order(), 0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        while files.pairs < PAIRS:
            given = [(number, turn) for number in range(len(cases()))]
            for found, alone in pool.imap_unordered(of_case, given):
                add(files, found)
                order |= {kind: max(far, order.get(kind, 0.0)) for kind, far in alone.items()}
            turn += 1
            print(f"{files.pairs:,} pairs", file=sys.stderr)
    return files, order


def through_commands() -> Largest:
    commands, turn = Largest(), 0
    while commands.pairs < PAIRS_OF_COMMANDS:
        with ThreadPool(os.cpu_count()) as pool:  # each waits for processes of its own
            for found in pool.imap_unordered(of_command, [(number, turn) for number in range(len(THROUGH))]):
                add(commands, found)
                print(f"{commands.pairs:,} pairs through commands", file=sys.stderr)
        turn += 1
    return commands


def main(parts: list[str]) -> int:
    broken = 0
    if "commands" not in parts:
        files, order = from_file_to_statistic()
        show(files, "from file to statistic", order)
        broken += len(files.faults)
    if "files" not in parts:
        commands = through_commands()
        show(commands, "through whole commands and processes", {})
        broken += len(commands.faults)
    return 1 if broken else 0
