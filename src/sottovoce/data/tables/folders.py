"""A client's folder of pictures, with one folder for each class, as the columns of a table.

Each picture is a record: `picture` is its path, `class` the folder that it lies in, and a pattern such as
"{patient}_*" makes a column of a part of its name. Which classes there are, the agreement says, never the
folders: one that it does not name holds records that cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sottovoce.data.pictures import SUFFIXES
from sottovoce.data.section import DataError
from sottovoce.data.tables.columns import Columns, Numbers, Texts

PICTURE, CLASS = "picture", "class"
MOST_PARTS = 8
_PART = re.compile(r"\{(\w{1,40})\}")


class Folder(Columns):
    """The pictures of a folder and of those in it, in the order of their paths."""

    def __init__(self, folder: Path, parts: str = "") -> None:
        self.folder = folder
        paths = pictures_in(folder)
        pattern = _pattern(parts)
        found = [pattern.fullmatch(path.stem) for path in paths]
        columns = {
            PICTURE: [path.relative_to(folder).as_posix() for path in paths],
            CLASS: [path.relative_to(folder).parts[0] if path.parent != folder else "" for path in paths],
            **{name: ["" if one is None else one[name] for one in found] for name in part_names(parts)},
        }
        self._columns = columns
        self.names, self.records = list(columns), len(paths)

    def numbers(self, name: str, decimal: str = ".") -> Numbers:
        raise DataError("holds texts where numbers were agreed on")

    def texts(self, name: str) -> Texts:
        cells = self._columns[name]
        distinct = list(dict.fromkeys(cell for cell in cells if cell))
        places = {text: place for place, text in enumerate(distinct)}
        return Texts(np.array([places.get(cell, -1) for cell in cells], np.int64), distinct)


def pictures_in(folder: Path) -> list[Path]:
    """All pictures in a folder and below, by their endings, in the order of their paths; no hidden ones."""
    try:
        found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and not path.is_dir()]
    except OSError as error:
        raise DataError(f"cannot read {folder} ({error.strerror}): check the path") from None
    shown = (path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts))
    return sorted(shown, key=lambda path: path.relative_to(folder).parts)


def check_agreed(where: str, pictures: bool, names: Iterable[str], parts: str) -> None:
    """Refuses an agreement on what folders of pictures do not have: other columns, or other names of them."""
    if not pictures:
        raise DataError(f'{where}: sites = "folders" have one column, [columns.{PICTURE}] kind = "image"')
    given = [PICTURE, CLASS, *part_names(parts)]
    for name in names:
        if name not in given:
            raise DataError(f"{where}: folders of pictures have no '{name}': choose from {', '.join(given)}")


def part_names(parts: str) -> list[str]:
    """The columns that a pattern makes of names.

    >>> part_names("{patient}_{visit}_*")
    ['patient', 'visit']
    """
    names = _PART.findall(parts)
    odd = len(names) != len(set(names)) or len(names) + parts.count("*") > MOST_PARTS
    if odd or {PICTURE, CLASS} & {*names} or (parts and not names):
        raise DataError(f'names = "{parts}" is no pattern of names: write it as "{{patient}}_*"')
    return names


def _pattern(parts: str) -> re.Pattern[str]:
    """What a pattern matches: no part holds the sign that follows it, so that nothing is tried twice."""
    pieces, begun = [], 0
    for found in re.finditer(r"\{(\w{1,40})\}|\*", parts):
        pieces.append(re.escape(parts[begun : found.start()]))
        follows = (
            re.escape(parts[found.end()])
            if found.end() < len(parts) and parts[found.end()] not in "{*"
            else ""
        )
        kept = f"[^{follows}]+?" if follows else ".+?"
        pieces.append(f"(?P<{found[1]}>{kept})" if found[1] else ".*")
        begun = found.end()
    return re.compile("".join(pieces) + re.escape(parts[begun:]), re.DOTALL)
