"""What is or looks wrong with a client's cells and arrays, and which of its records can be used.

What is found here is made of records: it is for their owner's eyes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sottovoce.data.section import DataError
from sottovoce.data.tables.columns import ColumnFindings, Values
from sottovoce.data.tables.held import Held, Vector, WholeText
from sottovoce.data.tables.kinds import Category, Date, Number
from sottovoce.data.tables.schema import Array, Description

COMMA = 'write decimal = "," above [target] in records.toml'
MANY_UNKNOWN = 0.1
"""Share of a site's values that a category does not name from which on the site gets a warning."""
MANY_OUTSIDE = 0.05
"""Share of values outside their bounds from which on the bounds look wrong."""


@dataclass
class Findings:
    """What reading one client's file found; `problems` refuse it. Made of records: it stays with their owner.

    `targets` counts usable records by class, or by label that holds.
    """

    client: str
    records: int = 0
    units: int | None = None
    unusable: int = 0
    columns: dict[str, ColumnFindings] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Pictures that begin well and cannot be decoded, a line each, where they were looked at."""


def verdict(found: Findings, agreed: Description) -> str:
    """Refused, to be looked at (many values of a category are none that was agreed on), or ok."""
    if found.problems:
        return "refused"
    strange = any(
        isinstance(agreed.columns.get(name), Category) and column.unknown > MANY_UNKNOWN * found.records
        for name, column in found.columns.items()
    )
    return "warning" if strange else "ok"


class UnusableFile(DataError):
    """A client's file that the agreement refuses, with everything that was found in it."""

    def __init__(self, findings: Findings) -> None:
        more = len(findings.problems) - 1
        super().__init__(findings.problems[0] + (f" (and {more} more: sottovoce check)" if more else ""))
        self.findings = findings


def suspicions(found: Findings, agreed: Description) -> Iterator[str]:
    """Yields what can be used and still looks like a mistake, a line each."""
    for name, column in found.columns.items():
        for text in _suspicions(column, found.records, agreed, name):
            yield f"{found.client}: column '{name}' {text}"
    yield from (f"{found.client}: {line}" for line in found.broken)
    for name, described in agreed.columns.items():
        if isinstance(described, WholeText) and described.size:
            size = f"size = {described.size} of column '{name}'"
            yield f"records.toml: {size} counts nothing beside its encoder"
    for name in (name for name, count in found.targets.items() if not count):
        yield f"{found.client}: no usable record is '{name}'"


def _suspicions(column: ColumnFindings, records: int, agreed: Description, name: str) -> Iterator[str]:
    described = agreed.columns.get(name)
    if column.missing + column.unreadable == records:
        yield "is empty in every record"
    elif column.constant:
        yield "is the same in every record"
    yield from column.faults
    if column.unreadable and isinstance(described, Held | Vector):
        yield f"has {column.unreadable} that cannot be read: they count as missing"
    elif column.unreadable:
        kind = "days as agreed" if isinstance(described, Date) else "numbers"
        comma = ' (decimal commas? decimal = "," in records.toml reads them)' if column.commas else ""
        yield f"has {column.unreadable} values that are not {kind}: they count as missing{comma}"
    if isinstance(described, Number | Date) and described.missing is None and 0 < column.missing < records:
        yield f"lacks {column.missing} values, and records.toml does not say missing = …: no input shows it"
    if described is not None and column.outside > MANY_OUTSIDE * records:
        yield f"has {column.outside} values outside its bounds: they are clamped"
    if column.unknown:
        examples = ", ".join(repr(text) for text in column.examples)
        use = "they count as other" if described is not None else "those records cannot be used"
        many = f" ({column.unknown / records:.0%} of all)" if column.unknown > MANY_UNKNOWN * records else ""
        name_them = '; add values, aliases or case = "ignore"' if many else ""
        yield (
            f"has {column.unknown} values{many} that records.toml does not name (such as {examples}): "
            f"{use}{name_them}"
        )


def useless(agreed: Description, name: str, found: ColumnFindings) -> str:
    """Returns what is wrong with a column in which nothing can be read as agreed."""
    if isinstance(agreed.columns[name], Held | Vector):
        return f"holds nothing that can be read: {found.faults[0] if found.faults else 'correct it'}"
    if not isinstance(agreed.columns[name], Number):
        return "holds no day as agreed: correct it, or its format in records.toml"
    if found.commas == found.unreadable:
        return f"has decimal commas: {COMMA}"
    return "holds no number: correct it, or its kind in records.toml"


def target_hint(findings: Findings, agreed: Description) -> str:
    """Returns what makes every target unusable, where one thing does."""
    target, values = agreed.target, agreed.target.names.values
    found = findings.columns.get(target.column, ColumnFindings())
    if found.commas and found.commas == found.unreadable:
        return f" (it has decimal commas: {COMMA})"
    if not values or not found.examples or found.unknown + found.missing < findings.records:
        return ""
    numbers = all(text.lstrip("+-").isdecimal() for text in found.examples)
    meant = "…"
    if numbers:
        place = int(found.examples[0])
        meant = values[place if 0 <= place < len(values) else 0]
    holds = "numbers" if numbers else "other words"
    example = f'"{found.examples[0]}" = "{meant}"'
    return f" (it holds {holds} and records.toml names: add aliases = {{ {example}, … }} to [target])"


def encode_array(x: Values, agreed: Array) -> Values:
    """Stored arrays as a dataset keeps them: bytes stay bytes, series are scaled feature by feature.

    Tokens outside the vocabulary become −1.
    """
    if agreed.vocabulary is not None:
        return np.where((x >= 0) & (x < agreed.vocabulary), x, -1).astype(np.int64)
    if x.dtype == np.uint8 and not agreed.series:
        return np.ascontiguousarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = (x / 255 if x.dtype == np.uint8 else x).astype(np.float32)
        if not agreed.series:
            return np.ascontiguousarray(numbers)
        mean, std = np.asarray(agreed.mean, np.float32), np.asarray(agreed.std, np.float32)
        series: Values = (numbers - mean) / std
        return series


def whole_records(x: Values) -> npt.NDArray[np.bool_]:
    """Returns which records are all finite, or all tokens of the vocabulary."""
    flat = x.reshape(len(x), -1)
    whole: npt.NDArray[np.bool_] = np.all(flat >= 0 if x.dtype == np.int64 else np.isfinite(flat), axis=1)
    return whole


def without_unusable(x: Values, y: Values, usable: npt.NDArray[np.bool_]) -> tuple[Values, Values]:
    """Unusable records as rows of NaN, or of −1 where records are tokens; everything else as it was."""
    if usable.all():
        return x, y
    if x.dtype == np.uint8:
        x = x / np.float32(255)
    x[~usable] = -1 if x.dtype == np.int64 else np.nan
    y[~usable] = 0
    return x, y
