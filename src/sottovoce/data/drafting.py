"""A draft of `records.toml`, from a header line, from a data dictionary, or from one site's records.

A header line and a dictionary are public knowledge. What is looked up in records is not: everybody who reads
the agreement learns it, no ledger charges it, so each such line is marked, and `looked_up` carries the mark
into every agreement that is made of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from sottovoce.data.section import BLANK, DataError, canonical
from sottovoce.data.sites import site_files
from sottovoce.data.tables.columns import ABSENT, NUMBER, Texts
from sottovoce.data.tables.folders import CLASS, PICTURE, part_names, pictures_in
from sottovoce.data.tables.kinds import MISSING, Date
from sottovoce.data.tables.readers import column_names, read_columns
from sottovoce.data.tables.registry import KINDS
from sottovoce.data.tables.schema import NAME, written

Fields = Mapping[str, object]
FEW = 20
"""Different texts that a category may have; more look like names or notes."""
FEW_NUMBERS = 10
"""Different whole numbers that look like codes."""
DAY_FORMATS = (None, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%Y%m%d")
WORDS = {
    "column": ("column", "name", "variable", "field"),
    "kind": ("kind", "type"),
    "low": ("low", "min", "minimum"),
    "high": ("high", "max", "maximum"),
    "values": ("values", "levels", "codes", "categories"),
    "missing": ("missing",),
    "since": ("since",),
    "until": ("until",),
    "format": ("format",),
    "role": ("role", "use"),
    "size": ("size",),
}
"""How the columns of a data dictionary may be called."""
KIND = (
    '"number" (low, high) | "category" (values) | "date" | "text" | "image" | "vector"; or delete this table'
)
_NUMBER = re.compile(NUMBER)


@dataclass
class Draft:
    """What is known of an agreement so far; what is not is a blank that `check` asks for."""

    task: str = BLANK
    target: str = BLANK
    unit: str | None = None
    decimal: str = "."
    of_target: Fields = field(default_factory=dict)
    columns: dict[str, Fields] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sites: str | None = None
    parts: str | None = None
    source: str = ""
    """The file in which something was looked up."""

    @property
    def blanks(self) -> int:
        """How many places are still to be filled in."""
        return sum(f'"{BLANK}"' in line.partition("#")[0] for line in self.text().splitlines())

    def text(self) -> str:
        """The file."""
        lines = [f"# {note}" for note in self.notes]
        task = {"task": self.task, "unit": self.unit, "decimal": "," if self.decimal == "," else None}
        task |= {"sites": self.sites, "names": self.parts}
        lines += _lines(task, self.source, {"task": '"classes" | "labels" (several may hold) | "number"'})
        lines += ["", "[target]"]
        lines += _lines(self._target(), self.source, {"values": "all classes, in their order"})
        for name, described in self.columns.items():
            lines += ["", f"[columns.{written(name)}]", *_lines(described, self.source, {"kind": KIND})]
        return "\n".join(lines) + "\n"

    def _target(self) -> Fields:
        if self.of_target:
            return {"column": self.target, **self.of_target}
        if self.task == "number":
            return {"column": self.target, "low": BLANK, "high": BLANK}
        return {"column": self.target, "values": [BLANK]}


def site_of(path: Path) -> Path | None:
    """The one site's file that a draft is made from: the first by name in a folder, if there is one."""
    return next(iter(site_files(path)), None) if path.is_dir() else path


def place_of(path: Path) -> Path:
    """Returns where the agreement of a folder, or of the folder of a file, lies; one that is there stays."""
    alone = path.is_dir() and picture_folders(path) == [path]
    place = (path if path.is_dir() and not alone else path.resolve().parent) / NAME
    if place.exists():
        raise DataError(f"{place} is there already: change it by hand, or move it away")
    return place


def picture_folders(folder: Path) -> list[Path]:
    """The sites of a folder of pictures: its folders, or itself; none where there are tables, or no pictures.

    A site's pictures lie in a folder for each class.
    """
    if not folder.is_dir() or site_files(folder):
        return []
    deep = {len(path.relative_to(folder).parts) for path in pictures_in(folder)}
    if max(deep, default=0) < 2:
        return []
    return [folder] if max(deep) == 2 else sorted(path for path in folder.iterdir() if pictures_in(path))


def from_pictures(folder: Path, sites: list[Path], unit: str | None, parts: str | None) -> Draft:
    """A draft for folders of pictures: all folders of all sites are its classes, for somebody to confirm.

    They were looked up, and are marked so until they are known by another way.
    """
    classes = sorted({path.relative_to(site).parts[0] for site in sites for path in pictures_in(site)})
    if unit is not None and unit not in part_names(parts or ""):
        raise DataError(
            f'{unit} is a part of which names? say it as pictures are called, like "{{{unit}}}_*"', "names"
        )
    draft = Draft("classes", CLASS, unit, sites="folders", parts=parts, source=folder.name)
    draft.of_target = {"values": [canonical(name) for name in classes], "looked_up": ["values"]}
    draft.columns = {PICTURE: {"kind": "image"}}
    draft.notes = [
        f"The classes are the folders of pictures that {folder.name} has today. Whoever reads this",
        "file learns them. If they are known without any picture (a form, a textbook), delete `looked_up`.",
    ]
    return draft


def from_header(path: Path, target: str | None, unit: str | None) -> Draft:
    """A draft with a blank for all that a header line does not say; no record is read."""
    names = known_names(path, target, unit)
    inputs = [name for name in names if name not in (target, unit)]
    draft = Draft(target=target or BLANK, unit=unit)
    draft.notes = ['Fill in every "?" from what is known without records: a form, a textbook, a law.']
    if target is None:
        draft.notes.append("One of the columns below is what is to be predicted: delete its table.")
    draft.columns = {name: {"kind": BLANK} for name in inputs}
    return draft


def known_names(path: Path, *named: str | None) -> list[str]:
    """The columns of a site's file, of which `named` must be some."""
    if path.suffix.lower() == ".npz" and "x" in column_names(path):
        raise DataError(f"{path} holds arrays, which a few lines describe: see [array] in docs/data.md")
    names = column_names(path)
    for name in named:
        if name is not None and name not in names:
            raise DataError(f"{path} has no column '{name}': choose from {', '.join(names[:FEW])}")
    if not any(names):
        raise DataError(f"{path} has no line of names: write one above the records")
    return [name for name in names if name]


def from_dictionary(path: Path, target: str | None, unit: str | None) -> Draft:
    """A draft from a table with a line for each column: public, if its authors looked at no records."""
    given = {name.strip().lower(): name for name in column_names(path)}
    heads = {word: next((given[alias] for alias in WORDS[word] if alias in given), None) for word in WORDS}
    if heads["column"] is None:
        raise DataError(f"{path} has no column 'column' that names the columns of records: add it")
    table = read_columns(path, [], [head for head in heads.values() if head is not None])
    cells = {
        word: [canonical(cell) for cell in table.texts(head).cells] for word, head in heads.items() if head
    }
    draft = Draft(target=target or BLANK, unit=unit, notes=[f"Made from {path.name}."])
    for number in range(table.records):
        line = {word: column[number] for word, column in cells.items() if column[number]}
        if "column" in line:
            _enter(draft, line, path)
    return draft


def looked_up(path: Path, target: str, unit: str | None) -> Draft:
    """A draft whose kinds, bounds and values were read from one site's records, all of them marked."""
    names = known_names(path, target, unit)
    table = read_columns(path, [], names)
    draft = Draft(target=target, unit=unit, source=path.name)
    draft.notes = [
        f"LOOKED UP in {path.name}: whoever reads this file learns what is marked. No ledger charges it",
        "and no ε covers it. Replace it by what needs no records, then delete `looked_up`. Else every",
        "owner of a node must say that they accept it (looked_up = true in node.toml).",
    ]
    texts = {name: table.texts(name) for name in names if name != unit}
    draft.decimal = "," if any(_commas(column) for column in texts.values()) else "."
    for name, column in texts.items():
        found = _found(column, draft.decimal)
        if name == target:
            draft.task = "number" if found.get("kind") == "number" else "classes"
            keys = ("low", "high") if draft.task == "number" else ("values",)
            of_classes = {"values": sorted(_distinct(column))[: 2**16]}
            of_target = {key: {**of_classes, **found}[key] for key in keys}
            draft.of_target = {**of_target, "looked_up": list(keys)}
        elif found:
            draft.columns[name] = found
        else:
            draft.notes.append(f"Left out: {written(name)}, an id or free text by its looks.")
    return draft


def _lines(fields: Fields, source: str, said: Mapping[str, str]) -> Iterator[str]:
    """The lines of a table, aligned, each marked if it was looked up."""
    marked = fields.get("looked_up", ())
    assert isinstance(marked, Iterable)
    marks = dict.fromkeys(marked, f"looked up in {source}: no ε covers it")
    for key, value in fields.items():
        if value is None:
            continue
        note = marks.get(key) or (said.get(key, "") if value in (BLANK, [BLANK]) else "")
        line = f"{key} = {written(value)}"
        yield f"{line:<32} # {note}" if note else line


def _enter(draft: Draft, line: Mapping[str, str], path: Path) -> None:
    """One line of a dictionary into the draft."""
    name, kind, role = line["column"], line.get("kind", "").lower(), line.get("role", "").lower()
    values = [text for part in re.split(r"[|;]", line.get("values", "")) if (text := canonical(part))]
    kind = kind or ("category" if values else "number" if {"low", "high"} & set(line) else BLANK)
    fields: dict[str, object] = {"kind": kind}
    if kind == "number":
        fields |= {key: _plain(line.get(key, BLANK), name, path) for key in ("low", "high")}
    elif kind == "category":
        fields |= {"values": values or [BLANK]}
    elif kind == "date":
        fields |= {key: _day(line.get(key, BLANK), name, path) for key in ("since", "until")}
        fields |= {"format": line["format"]} if "format" in line else {}
    elif kind == "vector":
        fields |= {"size": int(line["size"]) if line.get("size", "").isdecimal() else BLANK}
    elif kind not in (BLANK, "text", "image"):
        raise DataError(f"{path}: '{name}' is of kind {kind}: choose from {', '.join(KINDS)}")
    if "missing" in line and kind in ("number", "date"):
        word = line["missing"].lower()
        fields |= {"missing": word if word in MISSING else _plain(word, name, path)}
    if role == "unit" or name == draft.unit:
        draft.unit = name
    elif role == "target" or name == draft.target:
        draft.target, draft.task = name, "number" if kind == "number" else "classes"
        draft.of_target = {key: value for key, value in fields.items() if key in ("low", "high", "values")}
    elif role in ("", "input"):
        draft.columns[name] = fields


def _plain(text: str, name: str, path: Path) -> object:
    if text == BLANK or _NUMBER.fullmatch(text.replace(",", ".")):
        return BLANK if text == BLANK else _short(float(text.replace(",", ".")))
    raise DataError(f"{path}: a bound of '{name}' is {text[:40]}: give a number")


def _day(text: str, name: str, path: Path) -> object:
    try:
        return BLANK if text == BLANK else date.fromisoformat(text[:10])
    except ValueError:
        raise DataError(f"{path}: a bound of '{name}' is {text[:40]}: give a day as 2020-01-31") from None


def _distinct(column: Texts) -> list[str]:
    """The different texts of a column, missing ones aside."""
    present = {canonical(column.distinct[code]) for code in set(column.codes.tolist()) if code >= 0}
    return sorted(text for text in present if text not in ABSENT)


def _commas(column: Texts) -> bool:
    """Returns whether a column is all numbers if a comma is a decimal point, and only then."""
    texts = _distinct(column)
    numbers = all(_NUMBER.fullmatch(text.replace(",", ".")) for text in texts)
    return numbers and any("," in text for text in texts)


def _found(column: Texts, decimal: str) -> dict[str, object]:
    """Returns what a column looks like; nothing where it looks like names or notes."""
    texts = _distinct(column)
    if not texts:
        return {}
    pointed = [text.replace(",", ".") if decimal == "," else text for text in texts]
    codes = len(texts) <= FEW_NUMBERS and all(re.fullmatch(r"[+-]?[0-9]+", text) for text in texts)
    if all(map(_NUMBER.fullmatch, pointed)) and not codes:
        low, high = _outward([float(text) for text in pointed])
        bounds: dict[str, object] = {"kind": "number", "low": low, "high": high}
        return {**bounds, "missing": "middle", "looked_up": list(bounds)}
    for form in () if codes else DAY_FORMATS:
        days = [day for day in map(Date(date.min, date.max, format=form).day, texts) if day is not None]
        if len(days) == len(texts):
            since, until = date(min(days).year, 1, 1), date(max(days).year, 12, 31)
            span: dict[str, object] = {"kind": "date", "since": since, "until": until}
            span |= {} if form is None else {"format": form}
            return {**span, "missing": "middle", "looked_up": list(span)}
    if len(texts) <= FEW:
        return {"kind": "category", "values": texts, "looked_up": ["kind", "values"]}
    return {}


def _outward(values: list[float]) -> tuple[float, float]:
    """Bounds around finite values, with two digits."""
    low, high = min(values), max(values)
    step = 10.0 ** (math.floor(math.log10(max(abs(low), abs(high), 1e-30))) - 1)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return _short(low), _short(high if high > low else low + step)


def _short(value: float) -> float:
    """A number without digits that arithmetic left behind."""
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
