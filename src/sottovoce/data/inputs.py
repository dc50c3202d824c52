"""Records to predict: read in parts of bounded size, without targets, never refused for what cells hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.data.cells import Values
from sottovoce.data.columns import ArrayColumns, canonical
from sottovoce.data.description import Description
from sottovoce.data.encoding import Reader, kinds_of
from sottovoce.data.findings import ColumnFindings, Findings, UnusableFile
from sottovoce.data.own import DataError, read_array_parts, read_arrays
from sottovoce.data.tables import read_parts


@dataclass(frozen=True)
class Part:
    """Some records to predict: `x` as in `Facts`, columns that are kept as they stand, and what was odd."""

    x: Values
    kept: Mapping[str, list[str]]
    columns: Mapping[str, ColumnFindings]


def read_inputs(path: Path, agreed: Description, keep: Sequence[str] = ()) -> Iterator[Part]:
    """The records to predict, in the file's order and in parts of bounded size.

    Targets and units are not read; nothing is refused for what its cells hold. A record of an array that
    cannot be used is a row of NaN, or of −1 where records are tokens.
    """
    if agreed.array is not None and path.suffix.lower() == ".npz":
        kept, start = kept_arrays(path, keep), 0
        for x in read_array_parts(path, "x"):
            reader = Reader(path, agreed, Findings(canonical(path.stem)), limited=False)
            stored, end = reader.stored(x), start + len(x)
            if stored is None:
                raise UnusableFile(reader.findings)
            yield Part(stored, {name: cells[start:end] for name, cells in kept.items()}, {})
            start = end
        return
    numbers, texts = kinds_of(agreed, list(keep))
    for columns in read_parts(path, numbers, texts, agreed.decimal):
        reader = Reader(path, agreed, Findings(canonical(path.stem)), limited=False)
        inputs = reader.inputs(columns, keep)
        if inputs is None:
            raise UnusableFile(reader.findings)
        yield Part(inputs, {name: columns.texts(name).cells for name in keep}, reader.findings.columns)


def kept_arrays(path: Path, keep: Sequence[str]) -> dict[str, list[str]]:
    """Columns of an npz as they stand, to be kept beside predictions."""
    columns = ArrayColumns(read_arrays(path, keep))
    for name in keep:
        if name not in columns.names:
            raise DataError(f"{path} has no array '{name}' to keep: leave it out, or check its name")
    return {name: columns.texts(name).cells for name in keep}
