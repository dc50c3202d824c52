"""A table of a public file, read strictly: typed, bounded, no key unread; errors name table and key.

`Names` are the texts that such a table agrees on, of classes and categories, and what else stands for each.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine.documents import toml

MOST_DIMENSIONS, MOST_NUMBERS = 6, 2**24
MOST_TEXT = 2**20
"""What a stranger's description of a record may reach."""
MOST_LETTERS = 200
MOST_SIZE = 1e30
"""Largest number that an agreement may name: far from the ends of float32."""

BLANK = "?"
"""What a draft writes where only people know what to write."""

_REQUIRED = object()
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")
OTHER = "other"
"""The value of a category for all that nobody agreed on."""


class DataError(SottovoceError):
    """Records that cannot be used as they are."""


class DescriptionError(DataError):
    """A description of records, or an agreement on them, that cannot be one."""


def canonical(text: str, *, whole: bool = False) -> str:
    """Without spaces around it and in one Unicode form; without an empty fraction where it is a whole number.

    >>> canonical(" cafe\u0301 "), canonical("1.0", whole=True)
    ('café', '1')
    """
    plain = unicodedata.normalize("NFC", text.strip())
    match = _WHOLE.fullmatch(plain) if whole else None
    return match[1] if match else plain


def text_of(path: Path) -> str:
    """The text of a file that people write, or one line that says why there is none."""
    try:
        if path.stat().st_size > MOST_TEXT:
            raise DescriptionError(
                f"{path} is larger than {MOST_TEXT >> 20} MiB: that does not describe records"
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DescriptionError(
            f"no {path}: write one that says what a record is ('sottovoce draft {path.parent}' asks you for "
            "all of it), or check the path"
        ) from None
    except OSError as error:
        raise DescriptionError(f"cannot read {path} ({error.strerror}): check the path") from None
    except UnicodeDecodeError:
        raise DescriptionError(f"{path} is not UTF-8: save it as UTF-8") from None


def document(text: str, where: str) -> Section:
    """The whole file as a section."""
    if len(text) > MOST_TEXT:
        raise DescriptionError(
            f"{where} is longer than {MOST_TEXT >> 20} MiB: that does not describe records"
        )
    try:
        return Section(where, "", toml(text))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is no TOMLDecodeError
        raise DescriptionError(f"{where} is not TOML ({' '.join(str(error).split())}): correct it") from None


class Section:
    """A table whose keys are taken one by one; `end` refuses those that nobody asked for."""

    def __init__(self, where: str, name: str, values: Mapping[str, Any]) -> None:
        self._where, self._name, self._values = where, name, values
        self._asked: set[str] = set()

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)

    def error(self, key: str, text: str) -> DescriptionError:
        """Returns what is wrong with a key of this table."""
        named = " ".join(part for part in (f"[{self._name}]" if self._name else "", key) if part)
        return DescriptionError(f"{self._where}: {named} {text}")

    def peek(self, key: str) -> Any:
        """The value as it stands."""
        return self._values[key]

    def end(self) -> None:
        """Every key was asked for, or the first that was not is refused."""
        for key in self._values:
            if key not in self._asked:
                raise self.error(_short(key), f"is unknown: {nearest(key, self._asked)}")

    def section(self, key: str, *, optional: bool = False) -> Any:
        """A table inside this one: a `Section`, or None if it may be absent."""
        value = self._take(key, "a table", default=None if optional else _REQUIRED)
        if value is None:
            return None
        _printable(self, key, key)
        if not isinstance(value, dict):
            raise self.error(key, f"is {_short(value)}: give a table")
        return Section(self._where, f"{self._name}.{key}" if self._name else key, value)

    def choice(self, key: str, words: Sequence[str], default: str | None = None) -> str:
        value = self._take(key, " or ".join(words), default=_REQUIRED if default is None else default)
        if not isinstance(value, str) or value not in words:
            raise self.error(key, f"is {_short(value)}: {nearest(_short(value), words)}")
        return value

    def text(self, key: str, *, optional: bool = False) -> Any:
        """A name: `str`, or None if it may be absent."""
        value = self._take(key, "a name", default=None if optional else _REQUIRED)
        return None if value is None else _printable(self, key, value)

    def texts(self, key: str, most: int, kind: str = "values") -> tuple[str, ...]:
        """Different names; whole numbers may stand for theirs."""
        values = self._take(key, f"a list of {kind}")
        if not isinstance(values, list) or not 1 <= len(values) <= most:
            raise self.error(key, f"is not a list of 1 to {most} {kind}: give one")
        texts = [_printable(self, key, _name(value)) for value in values]
        if len(set(texts)) < len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise self.error(key, f"names {twice!r} twice: name it once")
        return tuple(texts)

    def pairs(self, key: str, most: int) -> tuple[tuple[str, str], ...]:
        """Names, each with a name that it stands for; none if the key is absent."""
        values = self._take(key, "a table of names", default={})
        if not isinstance(values, dict) or len(values) > most:
            raise self.error(key, f'is {_short(values)}: give names and what they stand for, {{ w = "f" }}')
        return tuple(
            (_printable(self, key, name), _printable(self, key, _name(value)))
            for name, value in values.items()
        )

    def day(self, key: str) -> date:
        """A day, as TOML writes it."""
        value = self._take(key, "a day, as 2020-01-31")
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.error(key, f"is {_short(value)}: give a day without quotes, as 2020-01-31")
        return value

    def number(
        self, key: str, *, default: float | None = None, low: float = -MOST_SIZE, high: float = MOST_SIZE
    ) -> float:
        value = self._take(key, "a number", default=_REQUIRED if default is None else default)
        return self._bounded(key, value, low, high)

    def bounds(self) -> tuple[float, float]:
        """`low` and `high`, in this order."""
        low, high = self.number("low"), self.number("high")
        if low >= high:
            raise self.error("low", f"is {low:g} and high is {high:g}: low must be below high")
        return low, high

    def whole(self, key: str, most: int) -> int:
        value = self._take(key, "a whole number")
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(key, f"is {_short(value)}: give a whole number from 1 to {most}")
        return value

    def numbers(self, key: str, channels: int, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """One number, or one for each channel."""
        value = self._take(key, "a number", default=_REQUIRED if default is None else list(default))
        values = value if isinstance(value, list) else [value]
        if len(values) not in (1, channels):
            raise self.error(
                key, f"has {len(values)} numbers: give one, or one for each of {channels} channels"
            )
        return tuple(self._bounded(key, value, -MOST_SIZE, MOST_SIZE) for value in values)

    def shape(self, key: str) -> tuple[int, ...]:
        value = self._take(key, "the shape of a record")
        sizes = value if isinstance(value, list) else []
        if (
            not 1 <= len(sizes) <= MOST_DIMENSIONS
            or any(type(size) is not int or size < 1 for size in sizes)
            or math.prod(sizes) > MOST_NUMBERS
        ):
            raise self.error(key, f"is {_short(value)}: give 1 to {MOST_DIMENSIONS} sizes, as [3, 32, 32]")
        return tuple(sizes)

    def _bounded(self, key: str, value: Any, low: float, high: float) -> float:
        if type(value) not in (int, float) or not low <= value <= high:
            raise self.error(key, f"is {_short(value)}: give a number from {low:g} to {high:g}")
        return float(value)

    def _take(self, key: str, what: str, default: Any = _REQUIRED) -> Any:
        self._asked.add(key)
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise self.error(key, f"is missing: give {what}")
        if value == BLANK or value == [BLANK]:
            raise self.error(key, f"is still to be filled in: give {what}")
        return value


def _printable(section: Section, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > MOST_LETTERS:
        raise section.error(_short(key), f"has {_short(value)}: give texts of 1 to {MOST_LETTERS} letters")
    if not value.isprintable() or value != value.strip():
        raise section.error(ascii(key), f"has {value!a}: remove spaces around it and invisible letters")
    return unicodedata.normalize("NFC", value)


def _name(value: Any) -> Any:
    """A whole number may stand for its name, except where Python would not write it out."""
    return str(value) if type(value) is int and abs(value) < 10**MOST_LETTERS else value


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "…"
    shown = text if len(text) <= 40 else text[:39] + "…"
    return shown if shown.isprintable() else ascii(shown)


@dataclass(frozen=True)
class Names:
    """Agreed texts, and what else stands for each of them.

    >>> sex = Names(("f", "m"), (("female", "f"), ("w", "f")), ignore_case=True)
    >>> [sex.place(text) for text in (" F", "Female", "w", "M", "x")]
    [0, 0, 0, 1, -1]
    """

    values: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ignore_case: bool = False

    def place(self, text: str) -> int:
        """The place among the values of what a text stands for, or −1; `1.0` is the `1` of whole numbers."""
        return self._places.get(self._key(text), -1)

    def fields(self) -> dict[str, object]:
        case = {"case": "ignore"} if self.ignore_case else {}
        return {"values": self.values, "aliases": dict(self.aliases), **case}

    @cached_property
    def _places(self) -> dict[str, int]:
        places = {self._key(value): place for place, value in enumerate(self.values)}
        return places | {self._key(alias): self.values.index(value) for alias, value in self.aliases}

    @cached_property
    def _whole(self) -> bool:
        return all(re.fullmatch(r"[+-]?[0-9]+", value) for value in self.values if value != OTHER)

    def _key(self, text: str) -> str:
        plain = canonical(text, whole=self._whole)
        return plain.casefold() if self.ignore_case else plain

    @classmethod
    def parse(cls, section: Section, most: int, more: tuple[str, ...] = ()) -> Names:
        """`values`, `aliases` and `case` of a table; `more` are values besides."""
        agreed = section.texts("values", most)
        case = section.choice("case", ("ignore", "exact"), default="exact")
        names = cls((*agreed, *(text for text in more if text not in agreed)), ignore_case=case == "ignore")
        if len(names._places) < len(names.values):
            raise section.error("values", 'names a text twice but for its case: leave out case = "ignore"')
        aliases = section.pairs("aliases", most)
        for alias, value in aliases:
            if value not in names.values:
                raise section.error(
                    "aliases", f"says that {alias!r} is {value!r}, which is none of its values"
                )
            if names.place(alias) >= 0:
                raise section.error("aliases", f"has {alias!r}, which is a value itself: remove it there")
        if len({names._key(alias) for alias, _ in aliases}) < len(aliases):
            raise section.error("aliases", "names a text twice but for its case or form: name it once")
        return cls(names.values, aliases, names.ignore_case)
