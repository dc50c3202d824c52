"""The paper's tables, ours beside the published values, made from the objects of an index alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sottovoce.report.table import UNKNOWN, Table, TableEntry, count
from studies.cells import EXPERIMENTS, open_differences, read_table
from studies.index import Indexed
from studies.summary import GAIN_EVERY

ROLES = {"future": "future clients", "seen": "participants"}
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
SYMBOLS = {"epsilon": "ε", "alpha": "α", "coefficients": "k"}
SETTINGS = ("channel", "preset", "context", "epsilon", "alpha", "coefficients", "noise", "accounting")
FULL_SHADE = 10.0  # points of difference at which an entry has its full color


def markdown(index: Sequence[Indexed]) -> str:
    """All tables, the most important experiment first."""
    parts = []
    for experiment in EXPERIMENTS:
        entries = [entry for entry in index if entry["experiment"] == experiment]
        if entries:
            tables = [table for group in by_dataset(entries) for table in accuracy(group)]
            tables += details(experiment, entries)
            parts += [f"## {read_table(experiment)['title']}\n", *map(markdown_table, tables)]
    return "\n".join(parts)


def markdown_table(table: Table) -> str:
    """The title as a sentence, then the table.

    >>> print(markdown_table(Table(["k", "ours"], [["1,024", TableEntry("48.0", "50.1")]], "Accuracy")))
    Accuracy:
    <BLANKLINE>
    | k | ours |
    | --- | --- |
    | 1,024 | 48.0 (50.1) |
    <BLANKLINE>
    """
    rows = [[entry.bracketed() for entry in row] for row in table.entries]
    lines = [table.head, ["---"] * len(table.head), *rows]
    escaped = ([text.replace("|", "\\|") for text in line] for line in lines)
    text = "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"
    return f"{table.title}:\n\n{text}" if table.title else text


def measured(mean: float | None, deviation: float | None = None, digits: int = 1) -> str:
    """A mean and its deviation.

    >>> measured(83.61, 7.1), measured(1234.5, digits=0), measured(None)
    ('83.6 ± 7.1', '1,234', '–')
    """
    if mean is None:
        return UNKNOWN
    return f"{mean:,.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def signed(value: float | None, digits: int) -> str:
    """A difference with its sign.

    >>> signed(-1.25, 1), signed(None, 1)
    ('−1.2', '–')
    """
    return UNKNOWN if value is None else f"{'+' if value >= 0 else '−'}{abs(value):.{digits}f}"


def by_dataset(entries: Sequence[Indexed]) -> list[list[Indexed]]:
    """Entries in one list per dataset."""
    datasets = dict.fromkeys(entry["dataset"] for entry in entries)
    return [[entry for entry in entries if entry["dataset"] == dataset] for dataset in datasets]


def rows_of(entries: Sequence[Indexed]) -> dict[str, dict[Any, Indexed]]:
    """Entries by label and column."""
    across = across_of(entries)
    rows: dict[str, dict[Any, Indexed]] = {}
    for entry in entries:
        rows.setdefault(entry["label"], {})[entry[across]] = entry
    return rows


def across_of(entries: Sequence[Indexed]) -> str:
    """The key that the table of these entries varies from column to column."""
    return str(read_table(entries[0]["experiment"])["across"])


def accuracy(entries: Sequence[Indexed]) -> list[Table]:
    """Of one dataset: future clients, participants, and future clients with absent classes masked."""
    dataset, across = DATASETS.get(entries[0]["dataset"], entries[0]["dataset"]), across_of(entries)
    columns = list(dict.fromkeys(entry[across] for entry in entries))
    names = [_column_name(across, column) for column in columns]
    rows = rows_of(entries)
    tables = []
    for role, clients in ROLES.items():
        body = [
            [
                TableEntry(label, small=_settings(next(iter(found.values())), entries, across)),
                "used" if next(iter(found.values()))["uses_future_labels"] else UNKNOWN,
                *(_beside(found[column], role) if column in found else UNKNOWN for column in columns),
            ]
            for label, found in rows.items()
        ]
        tables.append(Table([f"{dataset}, {clients}", "labels of future clients", *names], body, words=2))
    masked = [
        [label, *(measured(found.get(c, {}).get("future_masked_mean")) for c in columns)]
        for label, found in rows.items()
    ]
    title = "Future clients with the classes they do not have masked, for comparison"
    return [*tables, Table(["", *names], masked, title)]


def uplink(entries: Sequence[Indexed]) -> Table:
    """Megabytes sent in all, of one dataset."""
    across = across_of(entries)
    columns = list(dict.fromkeys(entry[across] for entry in entries))
    rows = [
        [label, *(measured(found.get(column, {}).get("uplink_mb"), digits=3) for column in columns)]
        for label, found in rows_of(entries).items()
    ]
    return Table(["Uplink, MB", *(_column_name(across, column) for column in columns)], rows)


def details(experiment: str, entries: Sequence[Indexed]) -> list[Table]:
    """What else the paper has about an experiment: differences, gains, bytes."""
    if experiment == "geometry":
        title = "Differences of future accuracy in points"
        return [
            Table(["", "", "ours", "published"], differences(experiment, entries), title, 2),
            _gains(entries),
        ]
    if experiment == "frontier":
        return _levers(entries) + _adjacency(entries)
    if experiment == "codecs":
        return [_codecs(entries)]
    if experiment == "dimension":
        rows: list[list[str | TableEntry]] = [
            [
                f"{e['coefficients']:,}",
                _beside(e, "future"),
                _measure(e, "uplink_mb", 2),
                _measure(e, "noise_norm", 2),
            ]
            for e in entries
        ]
        points = [[label, *values] for label, _, *values in differences(experiment, entries)]
        return [
            Table(["k", "future", "uplink, MB", "norm of the perturbation"], rows),
            Table(["difference in points", "ours", "published"], points),
        ]
    return []


def _adjacency(entries: Sequence[Indexed]) -> list[Table]:
    """ε as stated, and as it would be for one record added or removed, by what participants release."""
    released = {
        "public": "gradients alone",
        "labels": "gradients, class shares",
        "shares": "gradients, class shares, confusion",
    }
    stated = {(e["context"], e["epsilon"]): e.get("epsilon_add_remove") for e in entries}
    columns = list(dict.fromkeys(epsilon for _, epsilon in stated))
    rows = [
        [words, *(measured(stated.get((context, column)), digits=2) for column in columns)]
        for context, words in released.items()
        if any(stated.get((context, column)) is not None for column in columns)
    ]
    title = (
        "ε of participants for one record added or removed instead of replaced, by what they release, the "
        "same wherever the noise is added; to be read beside work that states it so"
    )
    return (
        [Table(["", *(_column_name("epsilon", column) for column in columns)], rows, title)] if rows else []
    )


def _levers(entries: Sequence[Indexed]) -> list[Table]:
    """What each lever is worth, one after the other, for the dataset and ε that the table's TOML names."""
    wanted = read_table("frontier")["levers"]
    found = {
        entry["label"]: entry
        for entry in entries
        if entry["dataset"] == wanted["dataset"] and entry["epsilon"] == wanted["epsilon"]
    }
    rows: list[list[str | TableEntry]] = []
    before: Indexed | None = None
    for name, label in wanted["rows"]:
        entry = found.get(label)
        if entry is not None:
            values = [_beside(entry, role) for role in ROLES]
            gains = [
                UNKNOWN if before is None else signed(entry[f"{role}_mean"] - before[f"{role}_mean"], 1)
                for role in ROLES
            ]
            rows.append([name, values[0], gains[0], values[1], gains[1]])
            before = entry
    title = (
        f"Lever by lever, {DATASETS[wanted['dataset']]} at ε = {wanted['epsilon']:g}: each row has all "
        "levers above it"
    )
    head = ["", *(part for clients in ROLES.values() for part in (clients, "points"))]
    return [Table(head, rows, title)] if rows else []


def differences(experiment: str, index: Sequence[Indexed]) -> list[list[str]]:
    """Label, dataset, ours and the published value of every difference whose cells are there."""
    future = {entry["id"]: entry["future_mean"] for entry in index}
    found = [(each, each.value(future)) for each in open_differences(experiment)]
    return [
        [each.label, DATASETS.get(each.dataset, each.dataset), signed(ours, 2), signed(each.published, 2)]
        for each, ours in found
        if ours is not None
    ]


def _gains(entries: Sequence[Indexed]) -> Table:
    marks = [1, 100, 250, 500]
    rows = []
    for entry in entries:
        both = list(zip(entry["gain"], entry["effective_gain"], strict=False))
        gain = [both[mark // GAIN_EVERY] for mark in marks if mark // GAIN_EVERY < len(both)]
        noise = "with noise" if entry["noise"] else "without"
        name = f"{entry['label']}, {DATASETS.get(entry['dataset'], entry['dataset'])}, {noise}"
        rows.append([name, *(f"{norm:.2f} / {effective:.2f}" for norm, effective in gain)])
    title = (
        "Gain over the rounds, mean over seeds: ‖h‖² of the round's participants / effective gain, by which "
        "the step moved the coefficients along the releases against a step on shared coefficients"
    )
    return Table(["", *(f"round {mark}" for mark in marks)], rows, title)


def _codecs(entries: Sequence[Indexed]) -> Table:
    dense = next((entry["uplink_mb"] for entry in entries if entry["channel"] == "direct"), None)
    head = ["", "future", "bits per coefficient", "uplink, MB", "ratio", "ms per event", "seeds with bytes"]
    rows = [
        [
            entry["label"],
            _beside(entry, "future"),
            _measure(entry, "bits_per_coefficient", 3),
            _measure(entry, "uplink_mb", 3),
            f"{dense / entry['uplink_mb']:.2f}×" if dense and entry["uplink_mb"] else UNKNOWN,
            _measure(entry, "ms_per_event", 2),
            str(len(entry["coded_seeds"])),
        ]
        for entry in entries
    ]
    return Table(head, rows)


def _beside(entry: Indexed, role: str) -> TableEntry:
    """Ours, the published value, and the difference in points."""
    mean, published = entry[f"{role}_mean"], entry[f"published_{role}_mean"]
    seeds = len(entry["seeds"])
    ours = measured(mean, entry[f"{role}_std"]) + ("" if seeds >= 5 else f", {count(seeds, 'seed')}")
    if published is None or mean is None:
        return TableEntry(ours, value=mean)
    points = mean - published
    theirs = f"{measured(published, entry.get(f'published_{role}_std'))}, {signed(points, 1)}"
    share = min(abs(points) / FULL_SHADE, 1.0)
    return TableEntry(ours, theirs, better=points >= 0, share=share, value=mean)


def _measure(entry: Indexed, measure: str, digits: int) -> TableEntry:
    """A measure and, beside it, the published one."""
    theirs = entry[f"published_{measure}"]
    return TableEntry(measured(entry[measure], digits=digits), "" if theirs is None else f"{theirs:g}")


def _settings(entry: Indexed, entries: Sequence[Indexed], across: str) -> str:
    """In what this row differs from others, apart from what the columns say."""
    decided = (across, "epsilon") if across == "noise" else (across,)  # without noise there is no ε
    varying = [key for key in SETTINGS if key not in decided and len({each[key] for each in entries}) > 1]
    return " · ".join(_column_name(key, entry[key]) for key in varying)


def _column_name(across: str, value: Any) -> str:
    """A column's head, as ε = 16.

    >>> _column_name("epsilon", 16.0), _column_name("noise", False)
    ('ε = 16', 'without noise')
    """
    if isinstance(value, bool):
        return "with noise" if value else "without noise"
    return f"{SYMBOLS[across]} = {value:,g}" if across in SYMBOLS else str(value)
