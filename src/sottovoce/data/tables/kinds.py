"""What a column of a table may be: a number, a category, a date or a text, and the inputs it becomes.

`held` has those that an encoder describes, `schema` reads all of them.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import ClassVar

import numpy as np

from sottovoce.data.section import OTHER, Names, Section, canonical
from sottovoce.data.tables.columns import ABSENT, ColumnFindings, Columns, Numbers, Values
from sottovoce.data.tables.words import hashed

MOST_VALUES, MOST_PLACES = 10_000, 2**14
MOST_DEVIATIONS = 1e6
"""How many standard deviations from the mean a bound may lie: numbers stay sensible in float32."""
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PARTS = {
    "days": ("days",),
    "month": tuple(f"month={month}" for month in range(1, 13)),
    "weekday": tuple(f"weekday={day}" for day in DAYS),
}
"""The inputs that each part of a date becomes."""
MISSING = ("middle", "low", "high")
"""Words for what stands in the place of a missing value."""
NO_DAY = ABSENT | {"NaT"}
"""Texts that stand for a missing day."""


class Column(ABC):
    """A kind of column, as `records.toml` describes it."""

    kind: ClassVar[str]
    looked_up: tuple[str, ...]
    """Which of its constants were read from records: no ε covers these."""

    @abstractmethod
    def encoded(self, name: str) -> list[str]:
        """Names of the inputs made from a column of that name."""

    @abstractmethod
    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        """Writes these inputs of a file's records into zeros (n, inputs), and says what it found."""

    def fields(self) -> dict[str, object]:
        """Its table."""
        return {"kind": self.kind, **vars(self)}


@dataclass(frozen=True)
class Number(Column):
    """A column of numbers, clamped to [low, high] and scaled to (value − center)/spread.

    Without a public mean and std these are of a value equally likely everywhere between the bounds.

    >>> age = Number(low=0, high=120, missing="middle")
    >>> age.center, round(age.spread, 2), age.filler
    (60.0, 34.64, 60.0)
    """

    low: float
    high: float
    mean: float | None = None
    std: float | None = None
    missing: str | float | None = None
    looked_up: tuple[str, ...] = ()
    kind: ClassVar[str] = "number"

    @property
    def center(self) -> float:
        return (self.low + self.high) / 2 if self.mean is None else self.mean

    @property
    def spread(self) -> float:
        return (self.high - self.low) / math.sqrt(12) if self.std is None else self.std

    @property
    def filler(self) -> float:
        """What stands for a missing value, on the scale of the column; the center if nothing was agreed."""
        words = {"low": self.low, "high": self.high, "middle": (self.low + self.high) / 2, None: self.center}
        return self.missing if isinstance(self.missing, float) else words[self.missing]

    def encoded(self, name: str) -> list[str]:
        """The value, and an indicator only if `missing` was agreed on."""
        return [name] if self.missing is None else [name, f"{name} missing"]

    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        return self.scale(columns.numbers(name, decimal), into)

    def scale(self, numbers: Numbers, into: Values) -> ColumnFindings:
        """Writes numbers (n,) as inputs, the indicator where it has a place, and says what it found."""
        found = numbers.findings()
        values, absent = numbers.values, np.isnan(numbers.values)
        found.outside = int(((values < self.low) | (values > self.high)).sum())
        clamped = np.where(absent, self.filler, np.clip(values, self.low, self.high))
        found.constant = bool(len(values) > 1 and not absent.all() and np.ptp(clamped[~absent]) == 0)
        into[:, 0] = (clamped - self.center) / self.spread
        if self.missing is not None and into.shape[1] > 1:
            into[:, 1] = absent
        return found


@dataclass(frozen=True)
class Category(Column):
    """A column of names: one input for each value, and one for anything else."""

    agreed: Names
    looked_up: tuple[str, ...] = ()
    kind: ClassVar[str] = "category"

    @property
    def names(self) -> Names:
        """The values, `other` last unless it is one of them."""
        values = self.agreed.values
        return replace(self.agreed, values=values if OTHER in values else (*values, OTHER))

    def encoded(self, name: str) -> list[str]:
        return [f"{name}={value}" for value in self.names.values]

    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        texts, names = columns.texts(name), self.names
        places = texts.places(names.place)
        found = texts.findings(places)
        hot = np.where(places < 0, names.values.index(OTHER), places)
        found.constant = bool(len(hot) > 1 and (hot == hot[0]).all())
        into[np.arange(len(hot)), hot] = 1
        return found

    def fields(self) -> dict[str, object]:
        return {"kind": self.kind, **self.agreed.fields(), "looked_up": self.looked_up}


@dataclass(frozen=True)
class Date(Column):
    """A column of days: how long after `since` (clamped to `until`, scaled as a number), month, weekday.

    A day is read as ISO 8601 writes it, or by `format`; a time of day is left out.

    >>> admitted = Date(date(2020, 1, 1), date(2029, 12, 31), format="%d.%m.%Y", parts=("days", "weekday"))
    >>> admitted.day("31.12.2024"), admitted.day("2024-12-31T08:00:00"), admitted.day("31/12/24")
    (datetime.date(2024, 12, 31), datetime.date(2024, 12, 31), None)
    >>> len(admitted.encoded("admitted"))
    8
    """

    since: date
    until: date
    parts: tuple[str, ...] = tuple(PARTS)
    format: str | None = None
    missing: str | None = None
    looked_up: tuple[str, ...] = ()
    kind: ClassVar[str] = "date"

    @property
    def days(self) -> Number:
        """The days since `since`, as a number whose filler is agreed; its indicator is the date's."""
        return Number(0.0, float((self.until - self.since).days), missing=self.missing)

    def encoded(self, name: str) -> list[str]:
        """Those of its parts, and an indicator only if `missing` was agreed on."""
        inputs = [f"{name} {part}" for kind in self.parts for part in PARTS[kind]]
        return inputs if self.missing is None else [*inputs, f"{name} missing"]

    def day(self, text: str) -> date | None:
        """The day that a text names, if it does."""
        plain = canonical(text)
        with suppress(ValueError):
            if self.format is not None:
                return datetime.strptime(plain, self.format).date()
        with suppress(ValueError):
            return datetime.fromisoformat(plain).date()
        return None

    def parted(self, day: date) -> tuple[int, int, int]:
        """Days since `since`, and the places of month and weekday."""
        return (day - self.since).days, day.month - 1, day.weekday()

    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        texts = columns.texts(name)
        read = [self.day(text) for text in texts.distinct]
        plain = [(np.nan, 0, 0) if day is None else self.parted(day) for day in read]
        days, month, weekday = np.array([*plain, (np.nan, 0, 0)], np.float64)[texts.codes].T
        known = np.flatnonzero(~np.isnan(days))
        scaled = np.zeros((len(days), 1))
        found = self.days.scale(Numbers(days), scaled)
        place = 0
        for part in self.parts:
            if part == "days":
                into[:, place : place + 1] = scaled
            else:
                into[known, place + (month if part == "month" else weekday)[known].astype(np.int64)] = 1
            place += len(PARTS[part])
        if self.missing is not None:
            into[:, place] = np.isnan(days)
        blank = np.array([*(canonical(text) in NO_DAY for text in texts.distinct), True])
        found.missing = int(blank[texts.codes].sum())
        found.unreadable = len(days) - len(known) - found.missing
        return found


@dataclass(frozen=True)
class Text(Column):
    """A column of free text: hashed words and grams of letters, `size` inputs of norm 1, or 0 for no text."""

    size: int = 512
    looked_up: tuple[str, ...] = ()
    kind: ClassVar[str] = "text"

    def encoded(self, name: str) -> list[str]:
        """Places that words fall on, by number."""
        return [f"{name} #{place}" for place in range(self.size)]

    def encode(self, columns: Columns, name: str, into: Values, decimal: str) -> ColumnFindings:
        texts = columns.texts(name)  # each distinct one is hashed once
        none = np.zeros(self.size, np.float32)
        into[:] = np.stack([*(hashed(text, self.size) for text in texts.distinct), none])[texts.codes]
        same = len(texts.codes) > 1 and len(set(texts.codes)) == 1
        return ColumnFindings(missing=int((~into.any(axis=1)).sum()), constant=same)


def looked_up(section: Section, *keys: str) -> tuple[str, ...]:
    """Returns which of a table's keys were read from records, as the table says."""
    if "looked_up" not in section.keys:
        return ()
    said: tuple[str, ...] = section.texts("looked_up", len(keys), kind="keys")
    for key in said:
        if key not in keys:
            raise section.error("looked_up", f"names {key!r}: choose from {', '.join(keys)}")
    return said


def number(section: Section) -> Number:
    low, high = section.bounds()
    mean = section.number("mean", low=low, high=high) if "mean" in section.keys else None
    std = section.number("std", low=0.0) if "std" in section.keys else None
    missing = _missing(section, low, high)
    number = Number(low, high, mean, std, missing, looked_up(section, "kind", "low", "high", "mean", "std"))
    furthest = max(high - number.center, number.center - low)
    if number.spread <= 0 or furthest / number.spread > MOST_DEVIATIONS:
        raise section.error(
            "std", f"is {std}, too small for these bounds: give a positive standard deviation"
        )
    return number


def _missing(section: Section, low: float, high: float) -> str | float | None:
    if "missing" not in section.keys:
        return None
    if isinstance(section.peek("missing"), str):
        return section.choice("missing", MISSING)
    return section.number("missing", low=low, high=high)


def category(section: Section) -> Category:
    names = Names.parse(section, MOST_VALUES, more=(OTHER,))
    agreed = replace(names, values=section.texts("values", MOST_VALUES))
    return Category(agreed, looked_up(section, "kind", "values"))


def a_date(section: Section) -> Date:
    since, until = section.day("since"), section.day("until")
    if since >= until:
        raise section.error("since", f"is {since} and until is {until}: since must be before until")
    parts = section.texts("parts", len(PARTS), kind="parts") if "parts" in section.keys else tuple(PARTS)
    for part in parts:
        if part not in PARTS:
            raise section.error("parts", f"names {part!r}: choose from {', '.join(PARTS)}")
    missing = section.choice("missing", MISSING) if "missing" in section.keys else None
    said = looked_up(section, "kind", "since", "until", "format")
    return Date(since, until, parts, _format(section), missing, said)


def _format(section: Section) -> str | None:
    """Returns how days are written: nothing that depends on the language of the machine that reads them."""
    text: str | None = section.text("format", optional=True)
    if text is None:
        return None
    codes = re.findall(r"%(.?)", text)
    year = [code for code in codes if code in "yY"]
    if (
        set(codes) - set("dmyYHMS")
        or len(set(codes)) < len(codes)
        or not {"d", "m"} < {*codes}
        or len(year) != 1
    ):
        raise section.error("format", f'is {text}: give day, month and year once each, as "%d.%m.%Y"')
    return text


def text(section: Section) -> Text:
    size = section.whole("size", MOST_PLACES) if "size" in section.keys else Text.size
    return Text(size, looked_up(section, "kind"))
