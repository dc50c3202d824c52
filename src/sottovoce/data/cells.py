"""Cells of one column to numbers for a model, by the column's public description, and what they hold besides.

What is counted here is made of records: it is for their owner's eyes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sottovoce.data.arrays import Values
from sottovoce.data.columns import Numbers, Texts, canonical
from sottovoce.data.findings import ColumnFindings
from sottovoce.data.kinds import NO_DAY, PARTS, Category, Date, Number, Text
from sottovoce.data.names import OTHER
from sottovoce.data.texts import hashed

EXAMPLES = 3
"""How many names a message lists."""


def encode_number(column: Number, numbers: Numbers, into: Values) -> ColumnFindings:
    """Writes the inputs of a column of numbers, and says what it found."""
    found = found_in(numbers)
    values, absent = numbers.values, np.isnan(numbers.values)
    found.outside = int(((values < column.low) | (values > column.high)).sum())
    clamped = np.where(absent, column.filler, np.clip(values, column.low, column.high))
    found.constant = bool(len(values) > 1 and not absent.all() and np.ptp(clamped[~absent]) == 0)
    into[:, 0] = (clamped - column.center) / column.spread
    if column.missing is not None and into.shape[1] > 1:
        into[:, 1] = absent
    return found


def encode_category(column: Category, texts: Texts, into: Values) -> ColumnFindings:
    """Writes the inputs of a column of names, and says what it found."""
    names = column.names
    places = texts.places(names.place)
    found = unknown_in(texts, places)
    hot = np.where(places < 0, names.values.index(OTHER), places)
    found.constant = bool(len(hot) > 1 and (hot == hot[0]).all())
    into[np.arange(len(hot)), hot] = 1
    return found


def encode_date(column: Date, texts: Texts, into: Values) -> ColumnFindings:
    """Writes the inputs of a column of days, and says what it found."""
    read = [column.day(text) for text in texts.distinct]
    plain = [(np.nan, 0, 0) if day is None else column.parted(day) for day in read]
    days, month, weekday = np.array([*plain, (np.nan, 0, 0)], np.float64)[texts.codes].T
    known = np.flatnonzero(~np.isnan(days))
    place = 0
    for part in column.parts:
        if part == "days":
            encode_number(column.days, Numbers(days), into[:, place : place + 1])
        else:
            into[known, place + (month if part == "month" else weekday)[known].astype(np.int64)] = 1
        place += len(PARTS[part])
    found = encode_number(column.days, Numbers(days), np.zeros((len(days), 1)))
    if column.missing is not None:
        into[:, place] = np.isnan(days)
    blank = np.array([*(canonical(text) in NO_DAY for text in texts.distinct), True])
    found.missing = int(blank[texts.codes].sum())
    found.unreadable = len(days) - len(known) - found.missing
    return found


def encode_text(column: Text, texts: Texts, into: Values) -> ColumnFindings:
    """Writes the inputs of a column of free text, and says what it found: each distinct text is read once."""
    inputs = np.stack(
        [*(hashed(text, column.size) for text in texts.distinct), np.zeros(column.size, np.float32)]
    )
    into[:] = inputs[texts.codes]
    blank = ~into.any(axis=1)
    return ColumnFindings(
        missing=int(blank.sum()), constant=len(texts.codes) > 1 and len(set(texts.codes)) == 1
    )


def found_in(numbers: Numbers) -> ColumnFindings:
    """What a column of numbers lacks."""
    absent = int(np.isnan(numbers.values).sum()) - numbers.unreadable
    return ColumnFindings(missing=absent, unreadable=numbers.unreadable, commas=numbers.commas)


def unknown_in(texts: Texts, places: npt.NDArray[np.int64]) -> ColumnFindings:
    """Counts texts outside the agreed ones, and nothing where nothing stands."""
    strange = texts.codes[places < 0]
    counts = np.bincount(strange[strange >= 0], minlength=len(texts.distinct))
    blank = [place for place in np.flatnonzero(counts).tolist() if not canonical(texts.distinct[place])]
    missing = int((strange < 0).sum() + counts[blank].sum())
    counts[blank] = 0
    most = np.argsort(-counts, kind="stable")[:EXAMPLES].tolist()
    examples = tuple(canonical(texts.distinct[place])[:40] for place in most if counts[place])
    return ColumnFindings(missing=missing, unknown=len(strange) - missing, examples=examples)
