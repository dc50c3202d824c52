"""The tables of docs/results.md, made from results/index.json and nothing else.

They stand between two marks in the page; the discussion around them is written by people.
`python -m sottovoce.experiments.document` remakes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.experiments.cells import EXPERIMENTS, open_differences, read_table
from sottovoce.experiments.index import read_index
from sottovoce.experiments.summary import GAIN_EVERY
from sottovoce.files import write_atomically

BEGIN = "<!-- tables: made by python -m sottovoce.experiments.document, do not edit -->"
END = "<!-- end of tables -->"
Entry = Mapping[str, Any]


def write_tables(page: Path, index: Sequence[Entry]) -> None:
    """Replaces what stands between the marks of a page by the tables of an index."""
    try:
        text = page.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN, 1)
        _, after = rest.split(END, 1)
    except (OSError, ValueError):
        raise SottovoceError(
            f"{page} has no place for tables: it needs the lines '{BEGIN}' and '{END}'"
        ) from None
    write_atomically(page, f"{before}{BEGIN}\n\n{tables(index)}\n{END}{after}".encode())


def tables(index: Sequence[Entry]) -> str:
    """All tables as Markdown, the most important experiment first."""
    parts = []
    for experiment in EXPERIMENTS:
        entries = [entry for entry in index if entry["experiment"] == experiment]
        if entries:
            parts.append(f"## {read_table(experiment)['title']}\n")
            parts += [_accuracy(group) for group in by_dataset(entries)]
            parts += [part for special in _SPECIAL.get(experiment, ()) for part in special(entries)]
    return "\n".join(parts)


def difference_rows(experiment: str, index: Sequence[Entry]) -> list[tuple[str, str, float, float | None]]:
    """Label, dataset, ours and the published value (or None) of every difference whose cells are there."""
    future = {entry["id"]: entry["future_mean"] for entry in index}
    rows = []
    for difference in open_differences(experiment):
        ours = difference.value(future)
        if ours is not None:
            rows.append((difference.label, difference.dataset, ours, difference.published))
    return rows


def beside(mean: float, deviation: float | None, published: float | None, published_std: float | None) -> str:
    """Ours, the published value, and the difference in points.

    >>> beside(83.61, 7.1, 87.56, 2.05)
    '83.6 ± 7.1 (87.6 ± 2.0, −4.0)'
    >>> beside(83.61, None, None, None)
    '83.6'
    """
    ours = f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")
    if published is None:
        return ours
    theirs = f"{published:.1f}" + (f" ± {published_std:.1f}" if published_std is not None else "")
    return f"{ours} ({theirs}, {signed(mean - published, 1)})"


def dataset_name(name: str) -> str:
    """A dataset as the paper writes it."""
    return {"mnist": "MNIST", "cifar10": "CIFAR-10"}.get(name, name)


def column_name(across: str, value: Any) -> str:
    """A column's head, as ε = 16.

    >>> column_name("epsilon", 16.0), column_name("noise", False)
    ('ε = 16', 'without noise')
    """
    if across == "noise":
        return "with noise" if value else "without noise"
    return f"{ {'epsilon': 'ε', 'alpha': 'α', 'coefficients': 'k'}[across] } = {value:,g}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign.

    >>> signed(-1.25, 1)
    '−1.2'
    """
    return f"{'+' if value >= 0 else '−'}{abs(value):.{digits}f}"


def by_dataset(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries in one list per dataset."""
    datasets = dict.fromkeys(entry["dataset"] for entry in entries)
    return [[entry for entry in entries if entry["dataset"] == dataset] for dataset in datasets]


def _accuracy(entries: Sequence[Entry]) -> str:
    """One row per label: future clients, participants, and future clients with absent classes masked."""
    across = str(read_table(entries[0]["experiment"])["across"])
    columns = list(dict.fromkeys(entry[across] for entry in entries))
    rows: dict[str, dict[Any, Entry]] = {}
    for entry in entries:
        rows.setdefault(entry["label"], {})[entry[across]] = entry
    parts = []
    for role, name in (("future", "Future clients"), ("seen", "Participants")):
        head = [
            f"{dataset_name(entries[0]['dataset'])}, {name.lower()}",
            "labels of future clients",
            *(column_name(across, column) for column in columns),
        ]
        body = [
            [
                label,
                "used" if next(iter(found.values()))["uses_future_labels"] else "–",
                *(_figure(found[column], role) if column in found else "–" for column in columns),
            ]
            for label, found in rows.items()
        ]
        parts.append(_markdown(head, body))
    masked = [
        [label, *(f"{found[c]['future_masked_mean']:.1f}" if c in found else "–" for c in columns)]
        for label, found in rows.items()
    ]
    parts.append("Future clients with the classes they do not have masked, for comparison:\n")
    parts.append(_markdown(["", *(column_name(across, column) for column in columns)], masked))
    return "\n".join(parts)


def _figure(entry: Entry, role: str) -> str:
    published = entry[f"published_{role}_mean"], entry[f"published_{role}_std"]
    text = beside(entry[f"{role}_mean"], entry[f"{role}_std"], *published)
    missing = len(entry["seeds"]) < 5
    return f"{text}, {len(entry['seeds'])} seeds" if missing else text


def _geometry(entries: Sequence[Entry]) -> list[str]:
    rows = [
        [
            label,
            dataset_name(dataset),
            signed(ours, 2),
            "–" if theirs is None else signed(theirs, 2),
        ]
        for label, dataset, ours, theirs in difference_rows("geometry", entries)
    ]
    parts = ["Differences of future accuracy in points:\n", _markdown(["", "", "ours", "published"], rows)]
    marks = [1, 100, 250, 500]
    trajectories = []
    for entry in entries:
        both = list(zip(entry["gain"], entry["effective_gain"], strict=False))
        gain = [both[mark // GAIN_EVERY] for mark in marks if mark // GAIN_EVERY < len(both)]
        noise = "with noise" if entry["noise"] else "without"
        name = f"{entry['label']}, {dataset_name(entry['dataset'])}, {noise}"
        trajectories.append([name, *(f"{norm:.2f} / {effective:.2f}" for norm, effective in gain)])
    parts.append(
        "Gain over the rounds, mean over seeds: ‖h‖² of the round's participants / effective gain, by which "
        "the step moved the coefficients along the releases against a step on shared coefficients:\n"
    )
    parts.append(_markdown(["", *(f"round {mark}" for mark in marks)], trajectories))
    return parts


def _codecs(entries: Sequence[Entry]) -> list[str]:
    rows = []
    dense = next((entry["uplink_mb"] for entry in entries if entry["channel"] == "direct"), None)
    for entry in entries:
        uplink = entry["uplink_mb"]
        ratio = "–" if dense is None or not uplink else f"{dense / uplink:.2f}×"
        measured = [
            _with(entry, "bits_per_coefficient", 3),
            _with(entry, "uplink_mb", 3),
            ratio,
            _with(entry, "ms_per_event", 2),
            str(len(entry["coded_seeds"])),
        ]
        rows.append([entry["label"], _figure(entry, "future"), *measured])
    head = ["", "future", "bits per coefficient", "uplink, MB", "ratio", "ms per event", "seeds with bytes"]
    return [_markdown(head, rows)]


def _dimension(entries: Sequence[Entry]) -> list[str]:
    rows = [
        [f"{e['coefficients']:,}", _figure(e, "future"), _with(e, "uplink_mb", 2), _with(e, "noise_norm", 2)]
        for e in entries
    ]
    differences = [
        [label, signed(ours, 2), "–" if theirs is None else signed(theirs, 2)]
        for label, _, ours, theirs in difference_rows("dimension", entries)
    ]
    return [
        _markdown(["k", "future", "uplink, MB", "norm of the perturbation"], rows),
        _markdown(["difference in points", "ours", "published"], differences),
    ]


_SPECIAL: dict[str, tuple[Callable[[Sequence[Entry]], list[str]], ...]] = {
    "geometry": (_geometry,),
    "codecs": (_codecs,),
    "dimension": (_dimension,),
}


def _with(entry: Entry, measure: str, digits: int) -> str:
    """A measure and, in brackets, the published one."""
    ours, theirs = entry[measure], entry[f"published_{measure}"]
    text = "–" if ours is None else f"{ours:,.{digits}f}"
    return text if theirs is None else f"{text} ({theirs:g})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([text.replace("|", "\\|") for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m sottovoce.experiments.document", description=__doc__)
    parser.add_argument("--index", type=Path, default=Path("results/index.json"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results.md"))
    options = parser.parse_args(arguments)
    try:
        write_tables(options.docs, read_index(options.index))
    except SottovoceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
