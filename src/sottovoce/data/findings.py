"""What is wrong with a client's file, or looks wrong: for the owner of the records and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sottovoce.data.description import Description
from sottovoce.data.kinds import Category, Date, Number
from sottovoce.data.own import DataError

COMMA = 'write decimal = "," above [target] in records.toml'
MANY_UNKNOWN = 0.1
"""Share of a site's values that a category does not name from which on the site gets a warning."""
MANY_OUTSIDE = 0.05
"""Share of values outside their bounds from which on the bounds look wrong."""


@dataclass
class ColumnFindings:
    """What a column of one client holds that the agreement does not foresee, in numbers of records."""

    missing: int = 0
    unreadable: int = 0
    commas: int = 0
    outside: int = 0
    unknown: int = 0
    examples: tuple[str, ...] = ()
    constant: bool = False


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


def strange_categories(found: Findings, agreed: Description) -> list[str]:
    """Categories of which a site knows so many values that nobody agreed on that it hardly means them."""
    return [
        name
        for name, column in found.columns.items()
        if isinstance(agreed.columns.get(name), Category) and column.unknown > MANY_UNKNOWN * found.records
    ]


def verdict(found: Findings, agreed: Description) -> str:
    """Refused, to be looked at, or ok."""
    if found.problems:
        return "refused"
    return "warning" if strange_categories(found, agreed) else "ok"


class UnusableFile(DataError):
    """A client's file that the agreement refuses, with everything that was found in it."""

    def __init__(self, findings: Findings) -> None:
        more = len(findings.problems) - 1
        super().__init__(findings.problems[0] + (f" (and {more} more: sottovoce check)" if more else ""))
        self.findings = findings


def suspicions(found: Findings, agreed: Description) -> Iterator[str]:
    """What can be used and still looks like a mistake, a line each."""
    for name, column in found.columns.items():
        for text in _suspicions(column, found.records, agreed, name):
            yield f"{found.client}: column '{name}' {text}"
    for name in (name for name, count in found.targets.items() if not count):
        yield f"{found.client}: no usable record is '{name}'"


def _suspicions(column: ColumnFindings, records: int, agreed: Description, name: str) -> Iterator[str]:
    described = agreed.columns.get(name)
    if column.missing + column.unreadable == records:
        yield "is empty in every record"
    elif column.constant:
        yield "is the same in every record"
    if column.unreadable:
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
    """What is wrong with a column in which nothing can be read as agreed."""
    if not isinstance(agreed.columns[name], Number):
        return "holds no day as agreed: correct it, or its format in records.toml"
    if found.commas == found.unreadable:
        return f"has decimal commas: {COMMA}"
    return "holds no number: correct it, or its kind in records.toml"


def target_hint(findings: Findings, agreed: Description) -> str:
    """What makes every target unusable, where one thing does."""
    target = agreed.target
    found = findings.columns.get(target.column, ColumnFindings())
    if found.commas and found.commas == found.unreadable:
        return f" (it has decimal commas: {COMMA})"
    if not target.values or not found.examples or found.unknown + found.missing < findings.records:
        return ""
    numbers = all(text.lstrip("+-").isdecimal() for text in found.examples)
    meant = "…"
    if numbers:
        place = int(found.examples[0])
        meant = target.values[place if 0 <= place < len(target.values) else 0]
    holds = "numbers" if numbers else "other words"
    example = f'"{found.examples[0]}" = "{meant}"'
    return f" (it holds {holds} and records.toml names: add aliases = {{ {example}, … }} to [target])"
