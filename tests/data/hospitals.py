"""A small agreement and small files for the tests of tables and folders."""

from __future__ import annotations

from pathlib import Path

AGREED = """
task = "classes"
unusable = 0.5

[target]
column = "diagnosis"
values = ["benign", "malignant"]

[columns.age]
kind = "number"
low = 0
high = 120
missing = "middle"

[columns.pressure]
kind = "number"
low = 50
high = 250
mean = 120
std = 20

[columns.sex]
kind = "category"
values = ["f", "m"]
"""
HEADER = "age,pressure,sex,diagnosis\n"
ROWS = "30,120,f,benign\n90,140,m,malignant\n"


def other_rows(site: int) -> str:
    """Rows of one of many sites: no two hold the same records."""
    return ROWS.replace("30,", f"{31 + site},")


def folder(at: Path, agreed: str = AGREED, **files: str | bytes) -> Path:
    """`records.toml` and files, by default one client `north` with two records."""
    at.mkdir(exist_ok=True)
    (at / "records.toml").write_text(agreed, encoding="utf-8")
    for name, content in (files or {"north": HEADER + ROWS}).items():
        path = at / (name if "." in name else f"{name}.csv")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return at


def written(at: Path, content: str | bytes, name: str = "north.csv") -> Path:
    """A file of one client."""
    (at / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return at / name
