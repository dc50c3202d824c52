"""From a client's columns or arrays to numbers for a model, by the public agreement alone.

A record whose target is missing or outside its values, or whose array is not finite, cannot be used: it
becomes a row of NaN, which contributes zero to every statistic and still counts in every denominator, so that
one record never moves one. What was wrong is counted on the way, for the owner's eyes only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.data.arrays import read_arrays
from sottovoce.data.dataset import Dataset, Facts
from sottovoce.data.section import DataError, Names, canonical
from sottovoce.data.tables.checks import (
    Findings,
    UnusableFile,
    encode_array,
    target_hint,
    useless,
    whole_records,
    without_unusable,
)
from sottovoce.data.tables.columns import EXAMPLES, ArrayColumns, ColumnFindings, Columns, Texts, Values
from sottovoce.data.tables.folders import Folder
from sottovoce.data.tables.kinds import Number
from sottovoce.data.tables.readers import read_columns
from sottovoce.data.tables.schema import NAME, Description
from sottovoce.data.units import of_names
from sottovoce.errors import nearest

LABELS = ("0", "1", "false", "true")


@dataclass(frozen=True)
class Site:
    """One client's records, encoded: `x` as in `Facts`, `y`, and which unit each record belongs to."""

    x: Values
    y: Values
    unit: npt.NDArray[np.int64] | None
    identity: Tensor | None
    """What each record's unit is, int64 (n, 2), where units have names."""
    findings: Findings
    contents: Mapping[bytes, str | Path] = field(default_factory=dict)
    """What records hold as digests."""

    def dataset(self, facts: Facts) -> Dataset:
        """The records as a dataset; `facts` are those of the agreement."""
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        unit = None if self.unit is None else torch.from_numpy(self.unit)
        name, identity = self.findings.client, self.identity
        return Dataset(name, x, y, facts, unit=unit, identity=identity, contents=self.contents)


def read_site(
    path: Path,
    agreed: Description,
    *,
    target: bool = True,
    limited: bool = True,
    given: Columns | None = None,
) -> Site:
    """The records of one client's file, in its order; refused if too many of them cannot be used.

    Without `target` (to predict, or for a context without labels) that column is not read. What stays at home
    is not `limited`: any number of records may be unusable. Nor is what an enrolled client releases: a limit
    would let one record decide about all others. A table that was `given` from Python is read in the place
    of a file.
    """
    return Reader(path, agreed, limited=limited, given=given).site(target=target)


def kinds_of(agreed: Description, sources: list[str]) -> tuple[list[str], list[str]]:
    """Returns which of a table's columns are read as numbers, and which as texts."""
    numbers = [name for name, column in agreed.columns.items() if isinstance(column, Number)]
    if agreed.task == "number" and agreed.target.column in sources:
        numbers.append(agreed.target.column)
    texts = [name for name in (*agreed.columns, *sources) if name not in numbers]
    return numbers, list(dict.fromkeys(texts))


class Reader:
    """Reads one file and gathers what is wrong with it, to refuse it with all of that."""

    def __init__(
        self, path: Path, agreed: Description, *, limited: bool = True, given: Columns | None = None
    ) -> None:
        self._path, self._agreed, self._limited, self._given = path, agreed, limited, given
        named = path.name if given is not None or agreed.sites == "folders" else path.stem
        self.findings = Findings(canonical(named))
        self.contents: dict[bytes, str | Path] = {}
        """What was read and stays what it is, under its digest."""

    def site(self, *, target: bool) -> Site:
        """All of the file's records."""
        agreed, findings = self._agreed, self.findings
        sources = [*(agreed.target.sources if target else ()), *([agreed.unit] if agreed.unit else [])]
        arrays = {} if agreed.array is None else self._arrays(sources)
        columns = ArrayColumns(arrays) if agreed.array is not None else self._given or self._read(sources)
        self._named(columns, [*(agreed.columns or ["x"]), *sources])
        findings.records = columns.records
        if not findings.problems and not columns.records:
            self._problem("holds no records: give at least one")
        self._refuse()
        x = self._table(columns) if agreed.array is None else self._array(arrays["x"], columns.records)
        y: Values = np.zeros(columns.records, np.int64)
        targeted = np.ones(columns.records, bool)
        if target:
            y, targeted = self._target(columns)
        units, identity = self._units(columns, agreed.unit) if agreed.unit else (None, None)
        for name in agreed.columns:
            found = findings.columns.get(name, ColumnFindings())
            nothing = found.missing + found.unreadable == columns.records
            if self._limited and nothing and found.unreadable > agreed.unusable * columns.records:
                self._problem(f"column '{name}' {useless(agreed, name, found)}")
        self._refuse()
        usable = targeted & whole_records(x)
        if agreed.array is None and agreed.whole:
            usable &= x.any(axis=1)
        if target:
            self._count_targets(y[usable])
        findings.unusable = int((~usable).sum())
        if self._limited and findings.unusable > agreed.unusable * len(usable):
            names = ", ".join(f"'{name}'" for name in agreed.target.sources[:EXAMPLES])
            fault = f"column {names}{target_hint(findings, agreed)}"
            self._problem(
                f"has {findings.unusable} of {len(usable)} records that cannot be used, and at most "
                f"{100 * agreed.unusable:g} % may: correct "
                + ("array 'x', which is not finite" if targeted.all() else fault)
            )
        self._refuse()
        return Site(*without_unusable(x, y, usable), units, identity, findings, self.contents)

    def _read(self, sources: list[str]) -> Columns:
        """The columns of a file, or of a folder of pictures."""
        if self._agreed.sites == "folders":
            return Folder(self._path, self._agreed.parts)
        columns = read_columns(self._path, *kinds_of(self._agreed, sources))
        columns.folder = self._path.parent
        return columns

    def stored(self, x: Values) -> Values:
        """Encoded arrays."""
        encoded = self._array(x, len(x))
        self._refuse()
        return without_unusable(encoded, np.zeros(len(encoded)), whole_records(encoded))[0]

    def inputs(self, columns: Columns, keep: Sequence[str]) -> Values:
        """Encoded inputs of a table in which there are columns to `keep`, too."""
        if self._agreed.array is not None:
            self._problem(f"is a {self._path.suffix} file, but these records are arrays: save an .npz")
        else:
            self._named(columns, list(self._agreed.columns), "add it: the model was made with it")
            for name in keep:
                if name not in columns.names:
                    self._problem(f"has no column '{name}' to keep: {nearest(name, columns.names)}")
        self._refuse()
        x = self._table(columns)
        self._refuse()
        if self._agreed.whole:
            x[~x.any(axis=1)] = np.nan
        return x

    def _refuse(self) -> None:
        if self.findings.problems:
            raise UnusableFile(self.findings)

    def _named(self, columns: Columns, names: list[str], remedy: str = "") -> None:
        beside = self._given is not None or (self._path.parent / NAME).exists()
        remedy = remedy or ("add it, or change records.toml" if beside else "add it: the agreement names it")
        if len(columns.names) == 1 and not {*names} & {*columns.names}:
            self._problem(
                f"has one column, '{next(iter(columns.names))[:40]}': part the names in the first line, and "
                "all records, by commas, semicolons or tabs (.tsv: tabs)"
            )
            return
        for name in names:
            if name not in columns.names:
                close = difflib.get_close_matches(name, columns.names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else remedy
                self._problem(f"has no column '{name}': {hint}")

    def _arrays(self, sources: list[str]) -> dict[str, Values]:
        if self._path.suffix.lower() != ".npz":
            self._problem(f"is a {self._path.suffix} file, but records.toml describes arrays: save an .npz")
            return {}
        labels = [name for name in self._agreed.target.columns if name in sources]
        arrays = read_arrays(self._path, ["x", *sources, *(["y"] if labels else [])])
        y = arrays.get("y")
        if labels and y is not None and y.ndim == 2 and y.shape[1] == len(labels):
            arrays |= {name: y[:, i] for i, name in enumerate(labels) if name not in arrays}
        return arrays

    def _problem(self, text: str) -> None:
        self.findings.problems.append(f"{self.findings.client} {text}")

    def _column(self, name: str, read: Callable[[str], Any]) -> Any:
        """A column of the file, or None after noting why it cannot be read as agreed."""
        try:
            return read(name)
        except DataError as error:
            self._problem(f"column '{name}' {error}")
            return None

    def _table(self, columns: Columns) -> Values:
        x = np.zeros((columns.records, len(self._agreed.inputs)), np.float32)
        place = 0
        for name, column in self._agreed.columns.items():
            width = len(column.encoded(name))
            into = x[:, place : place + width]
            place += width
            found = self._column(
                name, partial(column.encode, columns, into=into, decimal=self._agreed.decimal)
            )
            if found is not None:
                self.findings.columns[name] = found
        self.contents.update(columns.contents)
        return x

    def _array(self, stored: Values, records: int) -> Values:
        """Encoded arrays; as they are where they are not as agreed, which is noted."""
        x, agreed = np.atleast_1d(stored), self._agreed.array
        assert agreed is not None
        if x.shape[1:] == agreed.shape[1:] and agreed.shape[0] == 1 and x.ndim == len(agreed.shape):
            x = x[:, None]
        tokens = agreed.vocabulary is not None
        if len(x) != records:
            self._problem(f"array 'x' holds {len(x)} records, another array {records}: give as many of each")
        elif x.shape[1:] != agreed.shape:
            self._problem(f"array 'x' holds records of shape {x.shape[1:]}, records.toml says {agreed.shape}")
        elif x.dtype.kind not in ("iu" if tokens else "iuf"):
            self._problem(f"array 'x' is {x.dtype}: save {'whole numbers' if tokens else 'numbers'}")
        elif x.dtype.kind in "iu" and x.dtype != np.uint8 and len(agreed.shape) == 3 and not tokens:
            self._problem(f"array 'x' is {x.dtype}: save pictures as uint8, or as numbers from 0 to 1")
        else:
            return encode_array(x, agreed)
        return x

    def _target(self, columns: Columns) -> tuple[Values, npt.NDArray[np.bool_]]:
        """Targets as a loss wants them, and which of them are there."""
        target, nothing = self._agreed.target, np.zeros(columns.records, bool)
        if self._agreed.task == "number":
            numbers = self._column(target.column, partial(columns.numbers, decimal=self._agreed.decimal))
            if numbers is None:
                return nothing, nothing
            found = self.findings.columns.setdefault(target.column, numbers.findings())
            inside = (numbers.values >= target.low) & (numbers.values <= target.high)  # NaN is not
            found.outside = int((~inside & ~np.isnan(numbers.values)).sum())
            clamped = np.clip(numbers.values, target.low, target.high)
            return ((clamped - target.center) / target.reach).astype(np.float32), inside
        places = [self._places(columns, name) for name in target.sources]
        usable = np.all([place >= 0 for place in places], axis=0)
        if self._agreed.task == "classes":
            return places[0], usable
        labels: Values = np.stack(places, axis=1).astype(np.float32) % 2
        return labels, usable

    def _places(self, columns: Columns, name: str) -> Values:
        target, texts = self._agreed.target, self._column(name, columns.texts)
        if texts is None:
            return np.full(columns.records, -1)
        names = target.names
        if target.columns:
            texts, names = Texts(texts.codes, [_label(text) for text in texts.distinct]), Names(LABELS)
        places: Values = texts.places(names.place)
        self.findings.columns[name] = texts.findings(places)
        return places

    def _units(self, columns: Columns, name: str) -> tuple[Values, Tensor]:
        """The unit of each record as a number, and what that unit is."""
        texts = self._column(name, columns.texts)
        if texts is None:
            texts = Texts(np.full(columns.records, -1), [])
        # Texts that may mean one unit are one: taking two persons for one only protects them together.
        names = [canonical(text, whole=True) for text in texts.distinct]
        places = {text: place for place, text in enumerate(dict.fromkeys(["", *names]))}
        unit = np.array([*(places[text] for text in names), 0], np.int64)[texts.codes]
        nameless = int((unit == 0).sum())
        if nameless:
            self.findings.columns[name] = ColumnFindings(missing=nameless)
        if nameless and self._limited:  # what is not limited takes them for one unit
            self._problem(f"column '{name}' is empty in {nameless} records: every record needs its unit")
        present, dense = np.unique(unit, return_inverse=True)
        self.findings.units = len(present)
        return dense.astype(np.int64), of_names(places)[unit]

    def _count_targets(self, y: Values) -> None:
        target = self._agreed.target
        if self._agreed.task == "classes":
            counts = np.bincount(y, minlength=len(target.names.values))
        elif self._agreed.task == "labels":
            counts = y.sum(axis=0).astype(np.int64)
        else:
            return
        names = target.names.values or target.columns
        self.findings.targets = dict(zip(names, counts.tolist(), strict=True))


def _label(text: str) -> str:
    plain = canonical(text).lower()
    return plain if plain in ("false", "true") else canonical(text, whole=True)
