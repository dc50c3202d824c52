"""Cells and arrays to numbers for a model, by their public description, and what is or looks wrong with them.

What is found here is made of records: it is for their owner's eyes.

Free text becomes numbers without weights: hashed words, pairs of words and letters, at public random places.
Nothing is learned and nothing is looked up: a text's numbers follow from the text alone. Grams of letters let
misspelled and inflected words share most of theirs.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sottovoce.data.columns import Numbers, Texts
from sottovoce.data.description import Array, Description
from sottovoce.data.kinds import NO_DAY, PARTS, Category, Date, Number, Text
from sottovoce.data.section import OTHER, DataError, canonical

COMMA = 'write decimal = "," above [target] in records.toml'
MANY_UNKNOWN = 0.1
"""Share of a site's values that a category does not name from which on the site gets a warning."""
MANY_OUTSIDE = 0.05
"""Share of values outside their bounds from which on the bounds look wrong."""
Values = npt.NDArray[Any]
EXAMPLES = 3
"""How many names a message lists."""
MOST_LETTERS = 20_000
"""Of a text; what follows is not read."""
LETTERS = (3, 4, 5)
"""Lengths of grams of letters, a space before and after each word included."""


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
    """Which records are all finite, or all tokens of the vocabulary."""
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


_MIX = np.uint64(0x9E3779B97F4A7C15)


def hashed(text: str, size: int) -> npt.NDArray[np.float32]:
    """A text as `size` numbers of unit norm, half of it words, half of it letters; 0 where it has no word.

    Case, accents' way of writing and punctuation do not count. A place holds the root of its signed count.

    >>> cold, colds, warm = (hashed(text, 512) for text in ("A cold.", "a colds", "so warm"))
    >>> bool(cold @ colds > 0.3 > cold @ warm), round(float(cold @ hashed("a  COLD", 512)), 4)
    (True, 1.0)
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text[:MOST_LETTERS]).casefold())
    halves = [_counted(grams, size) for grams in (_of_words(words), _of_letters(words))]
    both = np.sum([half / max(float(np.linalg.norm(half)), 1e-9) for half in halves], axis=0)
    whole: npt.NDArray[np.float32] = (both / max(float(np.linalg.norm(both)), 1e-9)).astype(np.float32)
    return whole


def _of_words(words: list[str]) -> Iterator[str]:
    yield from words
    yield from (f"{one} {other}" for one, other in itertools.pairwise(words))


def _of_letters(words: list[str]) -> Iterator[str]:
    for word in words:
        spaced = f" {word} "
        for length in LETTERS:
            # A leading # keeps them apart from words; a word that is shorter is a gram of its own length.
            yield from (f"#{spaced[i : i + length]}" for i in range(max(1, len(spaced) - length + 1)))


def _counted(grams: Iterator[str], size: int) -> npt.NDArray[np.float64]:
    codes = np.array([zlib.crc32(gram.encode()) for gram in grams], np.uint64) * _MIX
    signs = ((codes >> np.uint64(20)) & np.uint64(1)).astype(np.float64) * 2 - 1
    places = ((codes >> np.uint64(32)) % np.uint64(size)).astype(np.int64)
    counts = np.bincount(places, signs, size)
    rooted: npt.NDArray[np.float64] = np.sign(counts) * np.sqrt(np.abs(counts))
    return rooted
