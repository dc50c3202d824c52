"""Every kind of column that a table may have, by its name in `records.toml`."""

from __future__ import annotations

from collections.abc import Callable

from sottovoce.data.section import Section
from sottovoce.data.tables import held, kinds
from sottovoce.data.tables.kinds import Column


def column(section: Section) -> Column:
    """A column as its table describes it."""
    kind = section.choice("kind", tuple(KINDS))
    found = (held.whole_text if kind == "text" and "encoder" in section.keys else KINDS[kind])(section)
    section.end()
    return found


KINDS: dict[str, Callable[[Section], Column]] = {
    "number": kinds.number,
    "category": kinds.category,
    "date": kinds.a_date,
    "text": kinds.text,
    "image": held.picture,
    "vector": held.vector,
}
"""What each kind of column is read with."""
