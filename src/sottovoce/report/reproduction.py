"""The report of a reproduction: the paper's tables with ours beside the published values, by experiment.

Cells are colored by the difference and also say it, and every row says whether labels of future clients
were used. The input is the list of cells in results/index.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.files import write_atomically
from sottovoce.report import page
from sottovoce.report.cells import SETTINGS, SYMBOLS, Cell, column_name, read_cell
from sottovoce.report.fields import Fields
from sottovoce.report.markup import Html, tag
from sottovoce.report.numbers import THIN, UNKNOWN, number
from sottovoce.report.reproduction_figures import figures

_DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
FULL_SHADE = 10.0  # points of difference at which a cell has its full color


def write_reproduction(index: Sequence[dict[str, Any]], path: Path) -> Path:
    """Writes the page of a reproduction to `path`; `index` is the content of results/index.json.

    The page appears in one step. Raises SottovoceError when a cell lacks a field.
    """
    source = Path("results/index.json")
    cells = [read_cell(Fields(source, values, f"cell {i}: ")) for i, values in enumerate(index)]
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        title = (
            f"{cell.experiment.replace('-', ' ').capitalize()} · {_DATASETS.get(cell.dataset, cell.dataset)}"
        )
        groups.setdefault(title, []).append(cell)
    sections = [
        page.section(title, page.grid(*figures(group)), *_tables(group)) for title, group in groups.items()
    ]
    least, most = (end((cell.seeds for cell in cells), default=0) for end in (min, max))
    seeds = f"{least} seeds each" if least == most else f"{least} to {most} seeds each"
    facts = [f"{len(cells)} cells", seeds, "mean ± deviation over seeds, percent, unmasked"]
    key = f"Green: ours is better; orange: ours is worse; full color at {FULL_SHADE:g} points of difference."
    document = page.page(
        "Reproduction – Sottovoce",
        page.header("The paper’s tables, ours beside theirs", facts, "Sottovoce · reproduction"),
        tag("main", tag("p", key, class_="key"), *sections, page.section("In full", _origins(cells))),
    )
    write_atomically(path, document.encode())
    return path


def _tables(cells: list[Cell]) -> list[Html]:
    across = cells[0].across
    decided = (across, "epsilon") if across == "noise" else (across,)  # without noise there is no ε
    varying = [
        key
        for key in SETTINGS
        if key == "method" or (key not in decided and len({cell.settings[key] for cell in cells}) > 1)
    ]
    names = {"future": "Future clients", "seen": "Participants", "uplink": "Uplink, MB"}
    return [_table(name, measure, cells, across, varying) for measure, name in names.items()]


def _table(name: str, measure: str, cells: list[Cell], across: str, varying: list[str]) -> Html:
    columns = list(dict.fromkeys(cell.at for cell in cells))
    rows: dict[tuple[Any, ...], dict[Any, Cell]] = {}
    for cell in cells:
        row = (*(cell.settings[key] for key in varying), cell.uses_future_labels)
        column = cell.at
        if column in rows.setdefault(row, {}):
            raise SottovoceError(
                f"results/index.json has two cells of {cell.experiment} with the same settings "
                f"({cell.dataset}, {', '.join(map(str, row[:-1]))}, {across} {column}): remove one"
            )
        rows[row][column] = cell
    head = [tag("th", name, scope="col"), *(tag("th", column_name(across, c), scope="col") for c in columns)]
    body = [
        tag(
            "tr",
            _row_head(varying, row),
            *(_figure(measure, entries[c]) if c in entries else tag("td", UNKNOWN) for c in columns),
        )
        for row, entries in rows.items()
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="cells")
    return page.scrolling(name, table)


def _row_head(varying: list[str], row: tuple[Any, ...]) -> Html:
    method, *others = (
        column_name(key, value) if key in (*SYMBOLS, "noise") else str(value)
        for key, value in zip(varying, row, strict=False)
    )
    labels = ["labels of future clients used"] if row[-1] else []
    return tag("th", method, tag("small", " · ".join([*others, *labels])), scope="row")


def _figure(measure: str, cell: Cell) -> Html:
    """Ours, then the published value and the difference in points, in the color of the difference."""
    mean, deviation = cell.ours[measure]
    if mean is None:
        return tag("td", UNKNOWN)
    if measure == "uplink":
        return tag("td", number(mean, 4))
    ours = f"{mean:.1f}" + (f"{THIN}±{THIN}{deviation:.1f}" if deviation is not None else "")
    published = cell.published.get(measure)
    if published is None:
        return tag("td", ours, tag("small", "not published"))
    difference = mean - published
    sign = "+" if difference >= 0 else "−"
    beside = f"{published:.1f} published, {sign}{abs(difference):.1f}"
    shade = f"--share:{min(abs(difference) / FULL_SHADE, 1):.3f}"
    kind = "better" if difference >= 0 else "worse"
    return tag("td", tag("data", ours, value=str(mean)), tag("small", beside), class_=kind, style=shade)


def _origins(cells: list[Cell]) -> Html:
    names = ["Cell", "Seeds", "Command", "Version", "Device", "Time"]
    rows = [
        [f"{c.experiment} · {c.dataset} · {c.settings['method']}", str(c.seeds), *c.origin] for c in cells
    ]
    return page.folded("How every cell was made", page.table("How every cell was made", names, rows, words=6))
