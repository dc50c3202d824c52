"""`records.toml`: the public agreement on what a record is, written before anybody looks at records.

It names the task, the target, the columns with their bounds and categories (or the shape of an array), and
what privacy protects. The encoding of a record follows from it alone, and so do the facts of a run: no
constant in here is ever computed from records, which would be an uncharged release.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from sottovoce.data.dataset import Facts
from sottovoce.data.section import DescriptionError, Names, Section, document, text_of
from sottovoce.data.tables import schema as data_description
from sottovoce.data.tables.folders import PICTURE, check_agreed
from sottovoce.data.tables.held import Held, Picture, Vector, WholeText
from sottovoce.data.tables.kinds import Category, Column, Date, Number, Text, looked_up
from sottovoce.data.tables.registry import column
from sottovoce.plan.catalog import TASKS

NAME = "records.toml"
UNUSABLE = 0.05
"""Share of records that a client may be unable to use, where the agreement does not say."""
FEW = 4
"""Tables that a line names."""
UNCOVERED = "looked up in records, which everybody who reads the agreement learns and no ε covers"
MOST_COLUMNS, MOST_ENCODED, MOST_TOKENS = 10_000, 100_000, 2**31


@dataclass(frozen=True)
class Array:
    """Arrays of one shape: numbers with public mean and std (bytes: after division by 255), or tokens.

    Constants are one number, or one a channel: the first axis of images (C, H, W), the last of series (T, F).
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    vocabulary: int | None = None

    @property
    def series(self) -> bool:
        return len(self.shape) == 2

    @property
    def channels(self) -> int:
        return self.shape[-1] if self.series else self.shape[0]


@dataclass(frozen=True)
class Target:
    """What is to be predicted: one of `names` in `column`, a number from `low` to `high`, or labels.

    A number is scaled to (value − center)/reach, from −1 to 1.
    """

    column: str = ""
    names: Names = field(default_factory=Names)
    low: float = -1.0
    high: float = 1.0
    columns: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()
    """Which of its constants were read from records: no ε covers these."""

    @property
    def center(self) -> float:
        return (self.low + self.high) / 2

    @property
    def reach(self) -> float:
        return (self.high - self.low) / 2

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of a file that it is read from."""
        return self.columns or (self.column,)


@dataclass(frozen=True)
class Description:
    """What a record is; `columns` of a table or one `array`, never both.

    >>> text = 'task = "classes"\\n[target]\\ncolumn = "ill"\\nvalues = ["no", "yes"]\\n'
    >>> text += '[columns.sex]\\nkind = "category"\\nvalues = ["f", "m"]\\n'
    >>> agreed = Description.parse(text)
    >>> agreed.inputs, agreed.facts().class_names
    (('sex=f', 'sex=m', 'sex=other'), ('no', 'yes'))
    >>> Description.parse(agreed.to_toml()) == agreed
    True
    """

    task: str
    target: Target
    columns: Mapping[str, Column]
    array: Array | None = None
    unit: str | None = None
    unusable: float = UNUSABLE
    decimal: str = "."
    """What parts whole numbers from fractions in texts; with a comma, a point does so too."""
    sites: str = "files"
    """A client is a file; or, with "folders", a folder of pictures with one folder for each class."""
    parts: str = ""
    """How pictures are called there, such as "{patient}_*": what stands in braces is a column."""

    @classmethod
    def load(cls, path: str | Path) -> Description:
        """From a file, or refused with one line that names table and key."""
        return cls.parse(text_of(Path(path)), str(path))

    @classmethod
    def parse(cls, text: str, where: str = NAME) -> Description:
        """From the text of such a file: typed and bounded."""
        top = document(text, where)
        task = top.choice("task", tuple(TASKS))
        unit = top.text("unit", optional=True)
        unusable = top.number("unusable", default=UNUSABLE, low=0.0, high=1.0)
        decimal = top.text("decimal", optional=True) or "."
        if decimal not in (".", ","):
            raise top.error("decimal", f'is {decimal}: give "." or ","')
        sites = top.choice("sites", ("files", "folders"), default="files")
        parts = top.text("names", optional=True) or ""
        if parts and sites == "files":
            raise top.error("names", 'is about names of pictures: say sites = "folders" too')
        target = _target(top.section("target"), task)
        array, columns = top.section("array", optional=True), top.section("columns", optional=True)
        top.end()
        if (array is None) == (columns is None):
            raise DescriptionError(f"{where}: describe tables with [columns.NAME] or arrays with [array]")
        described = {} if columns is None else _columns(columns)
        for name, use in ((unit, "unit"), *((name, "target") for name in target.sources)):
            if name in described:
                raise top.error(f"[columns.{name}]", f"is the {use} too, not an input: remove it")
        if unit in target.sources:
            raise top.error("unit", "is the target too: name another column")
        stored = None if array is None else _array(array)
        agreed = cls(task, target, described, stored, unit, unusable, decimal, sites, parts)
        if sites == "folders":
            pictures = list(agreed.columns) == [PICTURE] and isinstance(agreed.columns[PICTURE], Picture)
            check_agreed(where, pictures, (*target.sources, *([unit] if unit else [])), parts)
        return agreed

    def encoded_by(self, encoders: Mapping[str, str]) -> Description:
        """The same with an encoder, by kind, for each column of texts or pictures that names none."""
        columns = dict(self.columns)
        for name, one in self.columns.items():
            if isinstance(one, Text | Held) and encoders.get(one.kind) and not getattr(one, "encoder", ""):
                whole = Picture if one.kind == Picture.kind else WholeText
                columns[name] = whole(encoders[one.kind], one.looked_up)
        return replace(self, columns=columns)

    @property
    def held(self) -> dict[str, Held]:
        """The columns that an encoder describes."""
        return {name: one for name, one in self.columns.items() if isinstance(one, Held)}

    @property
    def whole(self) -> bool:
        """Whether all columns are of vectors, or of what an encoder describes: 0 says nothing of a record."""
        return all(isinstance(one, Held | Vector) for one in self.columns.values())

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of a table's inputs, in the order of a record's numbers."""
        return tuple(part for name, column in self.columns.items() for part in column.encoded(name))

    @property
    def scale(self) -> float:
        """What a table's inputs are divided by at last, √(number of columns): records have norm about 1.

        A date counts as often as it has parts.
        """
        widths = [len(one.parts) if isinstance(one, Date) else 1 for one in self.columns.values()]
        return math.sqrt(max(1, sum(widths)))

    @property
    def spreads_stated(self) -> bool:
        """Whether a table says of every column of numbers how far it spreads, and not its bounds alone."""
        numbers = [column for column in self.columns.values() if isinstance(column, Number)]
        return bool(numbers) and all(column.std is not None for column in numbers)

    @property
    def categorical(self) -> float:
        """The share of a table's columns that are categories."""
        found = sum(isinstance(column, Category) for column in self.columns.values())
        return found / max(1, len(self.columns))

    @property
    def uncovered(self) -> list[str]:
        """What it means that constants were looked up, in one line; none where none were."""
        found = self.looked_up
        more = [f"{len(found) - FEW} more"] if len(found) > FEW else []
        return [f"records.toml: {'; '.join([*found[:FEW], *more])}: {UNCOVERED}"] if found else []

    @property
    def looked_up(self) -> list[str]:
        """What was read from records and is covered by no ε, as "low and high of age"."""
        target: tuple[str, Target | Column] = (self.target.column or "the target", self.target)
        tables = [target, *self.columns.items()]
        return [f"{' and '.join(of.looked_up)} of {name}" for name, of in tables if of.looked_up]

    def facts(self) -> Facts:
        """The facts of a run on such records: of the agreement, and of nothing else."""
        names = self.target.names.values or self.target.columns
        outputs = len(names) if names else 1
        named: dict[str, Any] = {"task": self.task, "class_names": names, "columns": self.to_toml()}
        if self.array is None:
            return Facts((len(self.inputs),), outputs, (0.0,), (self.scale,), **named)
        if self.array.vocabulary is not None or self.array.series:  # encoded when they are read
            return Facts(self.array.shape, outputs, **named)
        return Facts(self.array.shape, outputs, self.array.mean, self.array.std, **named)

    def to_toml(self) -> str:
        """The file, in one way of writing for one agreement; `parse` of it gives the same back."""
        decimal = None if self.decimal == "." else self.decimal
        top = {"task": self.task, "unit": self.unit, "unusable": self.unusable, "decimal": decimal}
        top |= {"sites": None if self.sites == "files" else self.sites, "names": self.parts or None}
        target: dict[str, object] = {"column": self.target.column or None}
        if self.task == "number":
            target |= {"low": self.target.low, "high": self.target.high}
        target |= {**self.target.names.fields(), "columns": self.target.columns}
        target |= {"looked_up": self.target.looked_up}
        tables: dict[str, Mapping[str, object]] = {"": top, "target": target}
        for name, described in self.columns.items():
            tables[f"columns.{_quoted(name)}"] = described.fields()
        if self.array is not None:
            tables["array"] = _array_values(self.array)
        return "\n".join(_table(name, values) for name, values in tables.items())


def of(facts: Facts) -> Description | None:
    """The agreement that a run's facts were made from; None where there was none."""
    if not facts.columns:
        return None
    described = Description.parse(facts.columns, "the description of records")
    if described.facts() != facts:
        raise DescriptionError("the description of records contradicts itself: ask for the file again")
    return described


def tokens(facts: Facts) -> int:
    """Returns how many tokens records may hold, as a model sees them; 0 where they are numbers."""
    agreed = None if facts.source is not None else of(facts)
    return (agreed.array.vocabulary or 0) if agreed is not None and agreed.array is not None else 0


def random_records(
    facts: Facts, count: int, generator: torch.Generator | None = None, scale: float = 1.0
) -> torch.Tensor:
    """Made-up public records, as a model sees them: normal numbers of that scale, or tokens.

    >>> random_records(Facts((2, 3), 4), 5).shape
    torch.Size([5, 2, 3])
    """
    vocabulary = tokens(facts)
    if vocabulary:
        return torch.randint(vocabulary, (count, *facts.shape), generator=generator)
    return scale * torch.randn(count, *facts.shape, generator=generator)


def _target(section: Section, task: str) -> Target:
    if task == "labels":
        target = Target(columns=section.texts("columns", 2**16, kind="columns"))
    elif task == "classes":
        name, names = section.text("column"), Names.parse(section, 2**16)
        if len(names.values) < 2:
            raise section.error("values", "names fewer than two classes: name them all")
        target = Target(name, names, looked_up=looked_up(section, "values"))
    else:
        name, (low, high) = section.text("column"), section.bounds()
        target = Target(name, low=low, high=high, looked_up=looked_up(section, "low", "high"))
    section.end()
    return target


def _columns(section: Section) -> dict[str, Column]:
    if not 1 <= len(section.keys) <= MOST_COLUMNS:
        raise section.error("", f"describes {len(section.keys)} columns: describe 1 to {MOST_COLUMNS}")
    columns = {name: column(section.section(name)) for name in section.keys}
    inputs = [part for name, described in columns.items() for part in described.encoded(name)]
    if len(inputs) > MOST_ENCODED:
        raise section.error("", f"becomes {len(inputs)} inputs, more than {MOST_ENCODED}: join rare values")
    if len(set(inputs)) < len(inputs):
        twice = next(name for name in inputs if inputs.count(name) > 1)
        raise section.error("", f"gives two inputs the name {twice!r}: rename a column")
    return columns


def _array(section: Section) -> Array:
    shape = section.shape("shape")
    if section.choice("kind", ("numbers", "tokens"), default="numbers") == "tokens":
        vocabulary = section.whole("vocabulary", MOST_TOKENS)
        section.end()
        return Array(shape, vocabulary=vocabulary)
    bare = Array(shape)
    array = Array(
        shape,
        section.numbers("mean", bare.channels, bare.mean),
        section.numbers("std", bare.channels, bare.std),
    )
    section.end()
    if min(array.std) <= 0:
        raise section.error("std", f"is {min(array.std)}: give positive numbers")
    return array


def _array_values(array: Array) -> dict[str, object]:
    if array.vocabulary is not None:
        return {"kind": "tokens", "shape": array.shape, "vocabulary": array.vocabulary}
    return {"kind": "numbers", "shape": array.shape, "mean": array.mean, "std": array.std}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _table(name: str, values: Mapping[str, object]) -> str:
    lines = [f"[{name}]"] if name else []
    lines += [f"{key} = {written(value)}" for key, value in values.items() if value not in (None, (), {})]
    return "\n".join(lines) + "\n"


def written(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(key)} = {written(of)}" for key, of in value.items()) + " }"
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def protected_unit(facts: Facts) -> str:
    """Returns what privacy protects one of: a record, or the column whose value records of one unit share."""
    agreed = data_description.of(facts.source or facts)
    return "record" if agreed is None or agreed.unit is None else agreed.unit
