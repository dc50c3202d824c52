"""Whether another version does the same: twelve seeded journeys through two clones, compared bit for bit.

    git worktree add /tmp/before eddf9cb3  # which closed F1 to F4 and F8: what the redesign is compared with
    python tools/journeys.py /tmp/before . --python .venv/bin/python

Each journey runs in a folder of its own with package, tests and shipped data of one clone. What both leave is
compared file by file: numbers of results and rounds, rows of ledgers and stores, tensors and their headers,
tables and messages. Times, versions and places of files are left out; pages are made of these files.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOLATILE = {"seconds", "created", "sottovoce", "time", "since", "started"}
VOLATILE |= {"home", "folder", "path", "ledger", "model"}
"""Keys and columns that say when, where or by which version."""
SKIPPED = {".html", ".lock", ".witness", ".log", ".md", ".css", ".js", ".onnx"}
SMALL = "seeded=true rounds=4 evaluate_every=0"
TINY = (
    f"{SMALL} participants=6 future_clients=2 clients_per_round=6 records_per_client=200 context_records=80"
)
HEART = f"dataset=heart {SMALL} epsilon=4"
FEDERATION = """
from pathlib import Path
from tests.federation.world import SHARED, World
for name, changes in (("client", {}), ("server", {"noise": "server", "method": "blend"}), ("shared", SHARED)):
    world = World(Path(name), **changes)
    world.enrol_all()
    while not world.coordinator.done:
        for member in world.coordinator.missing():
            world.coordinator.accept(member, world.answer(member))
        world.coordinator.advance()
"""
JOURNEYS = {
    "quickstart": [f"train preset=best {SMALL} --out run", "models run --out models"],
    "tables": [
        f"train {HEART} future_clients=longbeach --out run",
        "models run --out models",
        "evaluate run --json > evaluated.json",
    ],
    "paper": [
        f"train preset=paper dataset=mnist-small {TINY} gradient_records=100 coefficients=2048 --out run"
    ],
    "tuned": [f"train preset=tuned {TINY} --out run"],
    "predictions": [f"train preset=tuned context=predictions context_round=2 {TINY} --out run"],
    "central": [f"train preset=central {TINY} coefficients=20490 context_records=0 --out run"],
    "shared": [f"train preset=shared {TINY} coefficients=20490 context_records=0 --masks --out run"],
    "number": ["train hospitals.toml --out run", "models run --out models"],
    "compare": [f"compare {HEART} --repeats 1 --out compared --json > compared.json"],
    "federation": ["python federation.py"],
    "finish": [
        f"train {HEART} --out run",
        "models run --out models --finish",
        "predict models/cleveland.home.safetensors --data cleveland.csv --out predicted.csv",
        "export models/cleveland.safetensors --out cleveland.onnx",
    ],
    "audit": ["audit dataset=heart epsilon=4 rounds=2 --json > audited.json"],
}


def travel(clone: Path, python: str, name: str, folder: Path) -> None:
    """Runs a journey's commands with one clone, in an empty folder."""
    folder.mkdir(parents=True)
    (folder / "federation.py").write_text(FEDERATION)
    hospitals = clone / "src" / "sottovoce" / "data" / "shipped" / "heart"
    cleveland = hospitals / "cleveland.csv"
    (folder / cleveland.name).write_bytes(cleveland.read_bytes())
    (folder / "hospitals.toml").write_text("seeded = true\ndataset = 'heart'\nrounds = 3\nnoise = 'server'\n")
    paths = os.pathsep.join([str((clone / "src").resolve()), str(clone.resolve())])
    given = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    for command in JOURNEYS[name]:
        words, _, to = command.partition(" > ")
        ours = [python, "-c", "from sottovoce.cli import main; main()", *shlex.split(words)]
        typed = [python, *shlex.split(words)[1:]] if words.startswith("python ") else ours
        ended = subprocess.run(typed, cwd=folder, env=given, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(
                f"{name}, {clone}: '{command}' ended with {ended.returncode}\n{ended.stderr[-2000:]}"
            )
        if to:
            (folder / to).write_text(ended.stdout)


def content(path: Path) -> Any:
    """What a file says, without times, versions and places."""
    if path.suffix == ".jsonl":
        return [plain(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return plain(json.loads(path.read_text()))
    if path.suffix == ".sqlite":
        return dict(rows(path))
    if path.suffix == ".safetensors":
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        spans = {name: one.get("data_offsets") for name, one in header.items() if name != "__metadata__"}
        told = {name: readable(value) for name, value in header.get("__metadata__", {}).items()}
        return plain(told), {name: data[8 + length + a : 8 + length + b] for name, (a, b) in spans.items()}
    return path.read_bytes()


def readable(text: str) -> Any:
    """A value of a header, parsed where it is JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of each table of a database, in order."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
        base.row_factory = sqlite3.Row
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"):
            found = [plain(dict(row)) for row in base.execute(f'SELECT * FROM "{table}"')]
            if table == "ledger":  # whose name is drawn
                found = [{**row, "name": ""} for row in found]
            yield table, sorted(found, key=repr)


def differences(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Where two contents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys(), key=str):
            missing = "before" if key not in one else "now" if key not in other else ""
            if missing:
                yield f"{at}/{key} is missing {missing}"
            else:
                yield from differences(one[key], other[key], f"{at}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{at}[{i}]")
    elif one != other:
        yield f"{at}: {str(one)[:60]} before, {str(other)[:60]} now"


def compared(before: Path, now: Path) -> Iterator[str]:
    """Where the files that two journeys left differ."""
    there = [
        {
            path.relative_to(folder)
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in SKIPPED
        }
        for folder in (before, now)
    ]
    for path in sorted(there[0] ^ there[1]):
        yield f"{path} is missing {'now' if path in there[0] else 'before'}"
    for path in sorted(there[0] & there[1]):
        found = list(differences(content(before / path), content(now / path)))
        yield from (f"{path}{line}" for line in found[:3])
        if len(found) > 3:
            yield f"{path}: and {len(found) - 3} more"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a clone at the commit to compare with")
    parser.add_argument("now", type=Path, help="a clone of what is compared")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter of both, or two with a comma"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/journeys"), help="an empty folder for all files"
    )
    parser.add_argument("--only", nargs="*", choices=JOURNEYS, default=list(JOURNEYS))
    given = parser.parse_args()
    pythons = (given.python.split(",") * 2)[:2]
    failed = 0
    for name in given.only:
        folders = given.out / "before" / name, given.out / "now" / name
        for clone, python, folder in zip((given.before, given.now), pythons, folders, strict=True):
            if not folder.exists():
                travel(clone, python, name, folder.resolve())
        lines = list(compared(*folders))
        print(f"{name}: {'differs' if lines else 'the same'}", *lines, sep="\n    ", flush=True)
        failed += bool(lines)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
