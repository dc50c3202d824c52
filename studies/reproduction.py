"""The page of a reproduction: the paper's tables with ours beside the published values, by experiment.

Entries are colored by the difference and also say it, and every row says whether labels of future clients
were used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce import report
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import PUBLIC, write_atomically
from sottovoce.report.table import Table, TableEntry
from studies.cells import EXPERIMENTS
from studies.figures import figures
from studies.index import Indexed, read_index
from studies.tables import DATASETS, FULL_SHADE, SETTINGS, accuracy, by_dataset, details, uplink

PAGE = Path(__file__).with_suffix(".html")
ORIGIN = ("command", "version", "device", "time")
FIELDS = ("experiment", "id", "label", "dataset", *SETTINGS, "uses_future_labels", "seeds", *ORIGIN)
MEASURES = ("seen_mean", "seen_std", "future_mean", "future_std", "uplink_mb")
PUBLISHED = ("published_seen_mean", "published_future_mean")


def write_reproduction(index: Sequence[Indexed], path: Path) -> Path:
    """Writes the page of a reproduction to `path`, in one step; `index` as in results/index.json."""
    _check(index)
    sections: list[dict[str, Any]] = []
    for experiment in EXPERIMENTS:
        entries = [entry for entry in index if entry["experiment"] == experiment]
        for group in by_dataset(entries):
            dataset = DATASETS.get(group[0]["dataset"], group[0]["dataset"])
            title = f"{experiment.replace('-', ' ').capitalize()} · {dataset}"
            tables = [*accuracy(group), uplink(group)]
            sections.append({"title": title, "charts": figures(group), "tables": tables})
        found = details(experiment, entries) if entries else []
        if found:
            sections.append({"title": f"{experiment.capitalize()} in detail", "tables": found})
    least, most = (end((len(entry["seeds"]) for entry in index), default=0) for end in (min, max))
    seeds = f"{least} seeds each" if least == most else f"{least} to {most} seeds each"
    document = report.page(
        report.templates().from_string(PAGE.read_text(encoding="utf-8")),
        facts=[f"{len(index)} cells", seeds, "mean ± deviation over seeds, percent, unmasked"],
        full_shade=FULL_SHADE,
        sections=sections,
        origins=_origins(index),
    )
    write_atomically(path, document.encode(), PUBLIC)
    return path


def write_report(folder: Path) -> Path:
    """Writes the page of the index.json in a folder of results."""
    return write_reproduction(read_index(folder / "index.json"), folder / "report.html")


def _check(index: Sequence[Indexed]) -> None:
    """Refuses an index whose objects lack a field or stand for the same cell."""
    known = set()
    for i, entry in enumerate(index):
        missing = [key for key in (*FIELDS, *MEASURES, *PUBLISHED) if key not in entry]
        if missing:
            raise SottovoceError(
                f"results/index.json (cell {i}: {missing[0]}) is missing: "
                "restore the file, or repeat the command that wrote it"
            )
        if entry["id"] in known:
            raise SottovoceError(f"results/index.json has two cells {entry['id']}: remove one")
        known.add(entry["id"])


def _origins(index: Sequence[Indexed]) -> Table:
    names = ["Cell", "Seeds", "Command", "Version", "Device", "Time"]
    rows: list[list[str | TableEntry]] = [
        [entry["id"], str(len(entry["seeds"])), *(str(entry[key]) for key in ORIGIN)] for entry in index
    ]
    return Table(names, rows, "How every cell was made", words=6)
