"""Make the folder of the four heart hospitals that ships with the package, from the four published files.

Run `python tools/make_heart.py [FOLDER]`; without a folder it writes the shipped one, byte for byte the same
each time. The published files (UCI Heart Disease, doi 10.24432/C52P4X, CC BY 4.0) lie in studies/data/heart.

Columns get names and categories words. Missing stays missing and becomes an empty cell: `?` and −9 of any
column, a cholesterol or blood pressure of 0, and a thal of 0, which is no value of it (in our copy of
Cleveland two of thal and four of vessels that UCI publishes as `?` are 0; those four cannot be told apart).
Disease is num > 0. No record is dropped, moved or changed otherwise.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "studies/data/heart"
TARGET = ROOT / "src/sottovoce/data/shipped/heart"
SITES = {"budapest": "hungarian", "cleveland": "cleveland", "longbeach": "va", "switzerland": "switzerland"}
"""Our names and those of the published files."""
NO_YES = {"0": "no", "1": "yes"}
# In the order of the published columns: words of a category by their published numbers, or the bounds, center
# and spread of a number: round clinical figures, none computed from these records.
Words, Scale = dict[str, str], tuple[int, int, int, int]
COLUMNS: dict[str, Words | Scale] = {
    "age": (18, 100, 55, 10),
    "sex": {"0": "female", "1": "male"},
    "chest_pain": {"1": "typical", "2": "atypical", "3": "non-anginal", "4": "asymptomatic"},
    "blood_pressure": (80, 220, 130, 20),
    "cholesterol": (80, 600, 240, 50),
    "fasting_sugar": NO_YES,
    "ecg": {"0": "normal", "1": "st-t", "2": "hypertrophy"},
    "max_heart_rate": (50, 220, 140, 25),
    "exercise_angina": NO_YES,
    "st_depression": (-3, 7, 1, 1),
    "st_slope": {"1": "up", "2": "flat", "3": "down"},
    "vessels": (0, 3, 1, 1),
    "thal": {"3": "normal", "6": "fixed", "7": "reversible"},
}
ALWAYS_MEASURED = ("age",)
NEVER_ZERO = ("blood_pressure", "cholesterol", "thal")
CLASSES = ("healthy", "disease")


def main(folder: Path, source: Path = SOURCE) -> None:
    """Write `records.toml`, a CSV for each hospital, and the licence."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.toml").write_text(description(), encoding="utf-8")
    shutil.copyfile(source / "LICENSE", folder / "LICENSE")
    for name, published in SITES.items():
        text = (source / f"processed.{published}.data").read_text(encoding="utf-8")
        (folder / f"{name}.csv").write_text(cleaned(text), encoding="utf-8")


def cleaned(published: str) -> str:
    """A published file as CSV with names."""
    rows = [row for row in csv.reader(io.StringIO(published)) if row and not row[0].startswith("X")]
    lines = [",".join((*COLUMNS, "diagnosis"))]
    for *cells, num in rows:
        values = [cell(name, text) for name, text in zip(COLUMNS, cells, strict=True)]
        lines.append(",".join((*values, CLASSES[float(num) > 0])))
    return "\n".join(lines) + "\n"


def cell(name: str, text: str) -> str:
    """A published cell as ours; empty where nothing was measured."""
    if text == "?" or float(text) == -9 or (float(text) == 0 and name in NEVER_ZERO):
        return ""
    plain, known = f"{float(text):g}", COLUMNS[name]
    return known[plain] if isinstance(known, dict) else plain


def description() -> str:
    """What the hospitals agree on before anybody looks at a record."""
    lines = ['task = "classes"', "", "[target]", 'column = "diagnosis"', f"values = {_list(CLASSES)}"]
    for name, known in COLUMNS.items():
        lines += ["", f"[columns.{name}]"]
        if isinstance(known, dict):
            lines += ['kind = "category"', f"values = {_list(tuple(known.values()))}"]
        else:
            low, high, mean, std = known
            lines += ['kind = "number"', f"low = {low}", f"high = {high}", f"mean = {mean}", f"std = {std}"]
            lines += [] if name in ALWAYS_MEASURED else [f"missing = {mean}"]
    return "\n".join(lines) + "\n"


def _list(words: tuple[str, ...]) -> str:
    return json.dumps(list(words))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the folder of the four heart hospitals.")
    parser.add_argument("folder", nargs="?", type=Path, default=TARGET, help="default: the shipped one")
    main(parser.parse_args().folder)
