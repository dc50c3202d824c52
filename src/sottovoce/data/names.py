"""Agreed names, of classes and categories, and what else stands for each of them in a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from sottovoce.data.columns import canonical
from sottovoce.data.section import Section

OTHER = "other"
"""The value of a category for all that nobody agreed on."""


@dataclass(frozen=True)
class Names:
    """Agreed texts, and what else stands for each of them.

    >>> sex = Names(("f", "m"), (("female", "f"), ("w", "f")), ignore_case=True)
    >>> [sex.place(text) for text in (" F", "Female", "w", "M", "x")]
    [0, 0, 0, 1, -1]
    """

    values: tuple[str, ...]
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
