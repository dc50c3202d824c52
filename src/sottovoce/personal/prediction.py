"""Predictions of a personal model: a file of records in, one line for each of them out, in bounded memory.

It needs the model's file and the package, no plan, no run and no agreement beside it: how a row of a table
becomes a record, which feature map describes it and what the outputs mean is all in the file. Nothing is
released here: records and predictions stay where they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from sottovoce.data import DataError, Facts, read_inputs
from sottovoce.data.tables.checks import whole_records
from sottovoce.data.tables.columns import ColumnFindings, arrow
from sottovoce.data.tables.readers import PART, column_names
from sottovoce.data.tables.schema import NAME as AGREED
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import replaced
from sottovoce.models.features.cache import view
from sottovoce.models.tasks import open_task
from sottovoce.personal import PersonalModel

BLOCK = 2**15
"""Records that go through the model at once."""
_FORMULA, _NUMBER = frozenset("=+-@\t\r\n＝＋－＠"), re.compile(r"[+-]\d+(\.\d+)?")


@dataclass(frozen=True)
class Layout:
    """The columns of a file of predictions: numbers first, then decisions, which are places in `texts`."""

    numbers: tuple[str, ...]
    decisions: tuple[str, ...]
    texts: tuple[str, ...]
    labels: bool = False
    """Decisions are 0 or 1, one for each label."""
    kept: tuple[str, ...] = ()
    """Columns of the records that stand before all others, as they are."""

    @classmethod
    def of(cls, model: PersonalModel, keep: Sequence[str] = ()) -> Layout:
        """A probability for each class and one decision; both for each label; or the value of a number."""
        records = model.records
        names = records.class_names or tuple(map(str, range(records.classes)))
        probabilities = tuple(f"probability_{name}" for name in names)
        if records.task == "number":
            layout = cls(("value",), (), (), kept=tuple(keep))
        elif records.task == "labels":
            decisions = tuple(f"decision_{name}" for name in names)
            layout = cls(probabilities, decisions, ("0", "1"), labels=True, kept=tuple(keep))
        else:
            layout = cls(probabilities, ("decision",), names, kept=tuple(keep))
        for name in keep:
            if layout.columns.count(name) > 1:
                raise DataError(f"a column '{name}' is kept or predicted twice: leave it out, or rename it")
        return layout

    @property
    def columns(self) -> tuple[str, ...]:
        return self.kept + self.numbers + self.decisions


@dataclass(frozen=True)
class Block:
    """Predictions of n records: `numbers` (n, …), `decisions` (n, …), and which could be used (n,).

    `kept` are cells of the records that stand beside them; `columns` says what was odd in the records.
    """

    numbers: npt.NDArray[np.float32]
    decisions: npt.NDArray[np.int64]
    usable: npt.NDArray[np.bool_]
    kept: Mapping[str, list[str]]
    columns: Mapping[str, ColumnFindings]


@dataclass
class Summary:
    """How many records were predicted, how many could not be, and how often each decision was made.

    `unknown` counts, by column, texts that the model's agreement does not name, and `unreadable` what is no
    number or day.
    """

    records: int = 0
    unusable: int = 0
    decisions: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)

    def add(self, block: Block, layout: Layout) -> None:
        for name, found in block.columns.items():
            for counts, odd in ((self.unknown, found.unknown), (self.unreadable, found.unreadable)):
                if odd:
                    counts[name] = counts.get(name, 0) + odd
        self.records += len(block.usable)
        self.unusable += int((~block.usable).sum())
        for column, name in enumerate(layout.decisions):
            counts = np.bincount(block.decisions[block.usable, column], minlength=len(layout.texts)).tolist()
            counted = (
                [(name.removeprefix("decision_"), counts[1])]
                if layout.labels
                else zip(layout.texts, counts, strict=True)
            )
            for text, count in counted:
                self.decisions[text] = self.decisions.get(text, 0) + count


def predict(
    model: PersonalModel | str | Path,
    records: str | Path,
    out: str | Path,
    progress: Callable[[int], None] = lambda done: None,
    *,
    threshold: float | None = None,
    features: str | None = None,
    keep: Sequence[str] = (),
) -> Summary:
    """Writes a line for each record of a file, in its order, to `out` (.csv or .parquet).

    `model` may be the path of its file. A target in the file of records is not read. A record that cannot be
    used gets empty cells. `progress` is called with the number of records done. Nothing appears under the
    name `out` unless all of it can be written. From a probability of `threshold` on, the second of two
    classes, or a label, is decided. `features` names the run's feature map if it is code of one's own.
    Columns to `keep`, such as ids, stand first in each line.
    """
    records, out = Path(records), Path(out)
    writers = {".csv": _csv, ".parquet": _parquet}
    if out.suffix.lower() not in writers:
        raise DataError(f"predictions are written as {' or '.join(writers)}, not as {out.name}: rename it")
    if out.resolve() == records.resolve():
        raise DataError(f"{out} holds the records to predict: choose another file for predictions")
    if not isinstance(model, PersonalModel):
        model = PersonalModel.read(model, home=True, features=features)
    layout, summary = Layout.of(model, keep), Summary()
    _check_over(out, layout)
    with replaced(out) as file, writers[out.suffix.lower()](file, layout) as write:
        for block in predictions(model, records, threshold, features, keep):
            write(block)
            summary.add(block, layout)
            progress(summary.records)
        if not summary.records:
            raise DataError(f"{records} holds no records: nothing was predicted")
        for name, odd in summary.unreadable.items():
            if odd == summary.records:
                raise DataError(
                    f"{records} column '{name}' holds nothing that the model could read: write it as the "
                    "records that it was trained on"
                )
    return summary


def predictions(
    model: PersonalModel,
    records: Path,
    threshold: float | None = None,
    features: str | None = None,
    keep: Sequence[str] = (),
) -> Iterator[Block]:
    """The predictions of a file of records, block by block, in its order."""
    if threshold is not None:
        _check_threshold(model.records, threshold)
    seen, task = view(model.plan, model.facts, features), open_task(model.facts)
    contents: dict[bytes, str | Path] = {}
    for inputs, beside, found in read_inputs(records, model.records, keep, contents):
        for start in range(0, len(inputs), BLOCK):
            rows = inputs[start : start + BLOCK]
            x, usable = torch.from_numpy(rows), torch.from_numpy(whole_records(rows))
            if not bool(usable.all()):
                x[~usable] = 0
            outputs = model.outputs(seen(x, contents))
            usable &= outputs.isfinite().all(dim=1)
            values = task.values(outputs).float()
            decided = task.decisions(outputs) if model.records.task != "number" else outputs[:, :0]
            if threshold is not None:
                decided = (values if model.records.task == "labels" else values[:, 1]) >= threshold
            kept = {name: cells[start : start + BLOCK] for name, cells in beside.items()}
            decisions = decided.long().reshape(len(x), -1).numpy()
            yield Block(values.numpy(), decisions, usable.numpy(), kept, found)
            found = {}  # counted once


def _check_over(out: Path, layout: Layout) -> None:
    """Refuses to write over another site's records: in their folder, over anything but such predictions.

    A client's own folder may hold both, and predictions are made again.
    """
    if not out.exists() or not (out.parent / AGREED).exists():
        return
    with suppress(SottovoceError):
        if list(column_names(out)) == list(layout.columns):
            return
    raise DataError(
        f"{out} lies in a folder of records and holds no such predictions: choose another file", "out"
    )


def _check_threshold(records: Facts, threshold: float) -> None:
    if records.task == "number" or (records.task == "classes" and records.classes != 2):
        raise DataError(
            "a threshold decides between two classes, or for each label: leave it out for "
            + ("a number" if records.task == "number" else f"{records.classes} classes")
        )
    if not 0 < threshold < 1:
        raise DataError(f"a threshold is a probability between 0 and 1, not {threshold:g}")


@contextmanager
def _csv(file: BinaryIO, layout: Layout) -> Iterator[Callable[[Block], None]]:
    file.write((",".join(map(_quoted, layout.columns)) + "\n").encode())
    texts = [_quoted(text) for text in layout.texts]
    line = ",".join([*["%.6g"] * len(layout.numbers), *["%s"] * len(layout.decisions)])
    cells = len(layout.numbers) + len(layout.decisions)
    # A line of one empty cell would be an empty line, which readers skip.
    empty = '""' if len(layout.columns) == 1 else "," * (cells - 1)

    def write(block: Block) -> None:
        numbers = block.numbers.T.tolist()
        decided = [[texts[place] for place in column] for column in block.decisions.T.tolist()]
        lines = list(map(line.__mod__, zip(*numbers, *decided, strict=True)))
        for row in np.flatnonzero(~block.usable).tolist():
            lines[row] = empty
        if layout.kept:
            kept = zip(*(map(_quoted, block.kept[name]) for name in layout.kept), strict=True)
            lines = [",".join([*own, made]) for own, made in zip(kept, lines, strict=True)]
        file.write(("\n".join(lines) + "\n").encode())

    yield write


@contextmanager
def _parquet(file: BinaryIO, layout: Layout) -> Iterator[Callable[[Block], None]]:
    pa, _ = arrow()
    from pyarrow.parquet import ParquetWriter

    kind = pa.int8() if layout.labels else pa.dictionary(pa.int32(), pa.string())
    fields = [
        *((name, pa.string()) for name in layout.kept),
        *((name, pa.float32()) for name in layout.numbers),
        *((name, kind) for name in layout.decisions),
    ]
    schema = pa.schema(fields)
    waiting: list[Any] = []

    def table(block: Block) -> Any:
        masked = ~block.usable
        arrays = [pa.array(block.kept[name], pa.string()) for name in layout.kept]
        arrays += [pa.array(column, pa.float32(), mask=masked) for column in block.numbers.T]
        for column in block.decisions.T:
            if layout.labels:
                arrays.append(pa.array(column, pa.int8(), mask=masked))
            else:
                places = pa.array(column, pa.int32(), mask=masked)
                arrays.append(pa.DictionaryArray.from_arrays(places, pa.array(layout.texts, pa.string())))
        return pa.Table.from_arrays(arrays, schema=schema)

    with ParquetWriter(file, schema) as parquet:

        def flush() -> None:
            if waiting:
                parquet.write_table(pa.concat_tables(waiting))
                waiting.clear()

        def write(block: Block) -> None:
            waiting.append(table(block))
            if sum(len(part) for part in waiting) >= PART:
                flush()

        yield write
        flush()


def _quoted(text: str) -> str:
    """A cell as CSV writes it; a spreadsheet would compute what looks like a formula, so that gets a quote.

    >>> _quoted("=1+1"), _quoted("-1"), _quoted("yes, no")
    ("'=1+1", '-1', '"yes, no"')
    """
    if text[:1] in _FORMULA and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    cell = io.StringIO()
    csv.writer(cell).writerow([text])
    return cell.getvalue().removesuffix("\r\n")
