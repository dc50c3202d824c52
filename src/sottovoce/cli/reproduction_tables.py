"""The paper's tables in the terminal: ours, the published value, and the difference in color."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from sottovoce.cli.display import out
from sottovoce.experiments.cells import EXPERIMENTS, read_table
from sottovoce.experiments.document import by_dataset, column_name, dataset_name, difference_rows, signed

Entry = Mapping[str, Any]


def show(index: Sequence[Entry]) -> None:
    """Prints every table of an index."""
    for experiment in EXPERIMENTS:
        entries = [entry for entry in index if entry["experiment"] == experiment]
        for group in by_dataset(entries):
            out.print(_accuracy(group))
        if experiment == "codecs" and entries:
            out.print(_communication(entries))
        _differences(experiment, entries)


def _accuracy(entries: Sequence[Entry]) -> Table:
    """Future and seen accuracy in percent, one row per label."""
    table = read_table(entries[0]["experiment"])
    across = table["across"]
    title = (
        f"{table['title']}: {dataset_name(entries[0]['dataset'])}, percent, future clients above participants"
    )
    if entries[0]["quick"]:
        rounds = entries[0]["rounds"]
        title += (
            f"\nquick: {rounds} rounds, {len(entries[0]['seeds'])} seed; the published runs had 500 rounds"
        )
    grid = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    grid.caption = (
        "ours ± deviation over seeds (published, difference in points); * uses labels of future clients"
    )
    columns = list(dict.fromkeys(entry[across] for entry in entries))
    grid.add_column("")
    for column in columns:
        grid.add_column(column_name(across, column))
    rows: dict[str, dict[Any, Entry]] = {}
    for entry in entries:
        mark = " *" if entry["uses_future_labels"] else ""
        rows.setdefault(entry["label"] + mark, {})[entry[across]] = entry
    for label, found in rows.items():
        grid.add_row(label, *(_figures(found[column]) if column in found else "–" for column in columns))
    return grid


def _figures(entry: Entry) -> str:
    return "\n".join(_figure(entry, role) for role in ("future", "seen"))


def _figure(entry: Entry, role: str) -> str:
    mean, deviation = entry[f"{role}_mean"], entry[f"{role}_std"]
    published = entry[f"published_{role}_mean"]
    ours = f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")
    if published is None:
        return ours
    color = "green" if mean >= published else "dark_orange"
    return f"{ours} [dim]({published:.1f},[/] [{color}]{signed(mean - published, 1)}[/][dim])[/]"


def _communication(entries: Sequence[Entry]) -> Table:
    grid = Table(title="Communication, ours (published)", title_justify="left", title_style="bold")
    for name in ("", "bits per coefficient", "uplink, MB", "ms per event"):
        grid.add_column(name)
    for entry in entries:
        measures = ("bits_per_coefficient", "uplink_mb", "ms_per_event")
        grid.add_row(entry["label"], *(_measure(entry, measure) for measure in measures))
    return grid


def _measure(entry: Entry, measure: str) -> str:
    ours, published = entry[measure], entry[f"published_{measure}"]
    text = "–" if ours is None else f"{ours:.4g}"
    return text if published is None else f"{text} [dim]({published:g})[/]"


def _differences(experiment: str, entries: Sequence[Entry]) -> None:
    rows = difference_rows(experiment, entries)
    if not rows:
        return
    grid = Table(title="Differences of future accuracy in points", title_justify="left", title_style="bold")
    for name in ("", "", "ours", "published"):
        grid.add_column(name)
    for label, dataset, ours, published in rows:
        theirs = "–" if published is None else signed(published, 2)
        grid.add_row(label, dataset_name(dataset), signed(ours, 2), theirs)
    out.print(grid)
