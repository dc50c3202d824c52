"""How many rooms the house has, and how many of them one walks through: `python tools/rooms.py`.

Counted are modules and lines of Python in the wheel, and the files of the package whose functions run in one
gradient release of a client and in a training of two rounds: what has to be read to follow it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "sottovoce"
PLAN = {
    "participants": 3,
    "future_clients": 1,
    "records_per_client": 60,
    "context_records": 20,
    "coefficients": 4096,
    "clients_per_round": 2,
    "rounds": 2,
    "evaluate_every": 0,
    "preset": "tuned",
}


def wheel() -> dict[str, int]:
    """Modules and lines of the wheel, names at its root, entries of its largest room."""
    files = list(SOURCE.rglob("*.py"))
    entries = {folder: len(_entries(folder)) for folder in (SOURCE, *filter(Path.is_dir, SOURCE.iterdir()))}
    return {
        "modules": len(files),
        "lines": sum(len(file.read_text().splitlines()) for file in files),
        "root": entries.pop(SOURCE),
        "room": max(entries.values()),
    }


def _entries(folder: Path) -> list[Path]:
    """Modules and folders beside the page of a folder."""
    there = [path for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"]
    return [path for path in there if not path.name.startswith("__")]


def entered(work: Callable[[], object]) -> list[str]:
    """The files of the package in which a function was called while `work` ran, in any thread."""
    found: set[str] = set()
    seen: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # A module's own code runs when it is imported, and nobody follows that.
        if event != "call" or code in seen:
            return
        seen.add(code)
        if code.co_name != "<module>" and code.co_filename.startswith(str(SOURCE)):
            found.add(str(Path(code.co_filename).relative_to(SOURCE)))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(found)


def rooms() -> dict[str, Any]:
    """The figures, and which files they are."""
    import torch

    from sottovoce.plan import Plan
    from sottovoce.privacy.ledger import Ledger
    from sottovoce.run.prepare import prepare
    from sottovoce.run.training import train
    from sottovoce.training.client import Client, release_together

    plan = Plan.load(overrides=PLAN)
    with TemporaryDirectory() as folder:
        prepared = prepare(plan)
        blueprint, records = prepared.blueprint, prepared.federation.participants[0]
        with Ledger.open(Path(folder, "ledger.sqlite"), scope="rooms") as ledger:
            client = Client("one", records, blueprint, ledger, run="run", secret=bytes(32), participant=0)

            def release() -> None:
                asked = client.gradient(1, torch.zeros(blueprint.coefficients))
                [message] = release_together([asked])
                gradient = blueprint.releases_of(0)["gradient"]
                stream = gradient.stream("run", "one", 1)
                gradient.decode(message, secret=bytes(32), stream=stream, request=asked.request)

            released = entered(release)
        trained = entered(lambda: train(plan, Path(folder, "run")))
    return {**wheel(), "release": len(released), "training": len(trained), "files": [released, trained]}


def main() -> None:
    found = rooms()
    released, trained = found.pop("files")
    print(json.dumps(found))
    if "--files" in sys.argv:
        print("release:", *released, "", "training, besides:", *sorted({*trained} - {*released}), sep="\n")


if __name__ == "__main__":
    main()
