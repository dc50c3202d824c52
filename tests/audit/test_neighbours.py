"""Neighbours are files: any two of a family differ in one unit, have alike many units, and are read again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sottovoce.audit.neighbours import Row, Table, family
from sottovoce.data import Description
from tests.run.test_folder import sites


def units(table: Table, name: str | None) -> list[Counter[str]]:
    """The records of each unit; under whatever name, if it has one."""
    found: dict[object, Counter[str]] = {}
    for place, row in enumerate(table.rows):
        key = place if name is None else row[name]
        found.setdefault(key, Counter())[repr([row[c] for c in sorted(row) if c != name])] += 1
    return list(found.values())


def written(path: Path, suffix: str) -> Table:
    """The same table in another format."""
    table = Table.read(path)
    other = Table(table.columns, suffix, {})
    other.write(path.with_suffix(suffix))
    return Table.read(path.with_suffix(suffix))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("task", ["classes", "labels", "number"])
def test_files_of_a_family_differ_in_one_unit(tmp_path: Path, task: str, unit: bool, suffix: str) -> None:
    folder = sites(tmp_path / "sites", task, unit=unit)
    agreed = Description.load(folder / "records.toml")
    table = written(folder / "north.csv", suffix)
    names, sizes, orders = set(), set(), 0
    for seed in range(15):
        one, *others = family(table, agreed, Random(seed), 6)
        assert one is table
        before = units(table, agreed.unit)
        for other in others:
            after = units(other, agreed.unit)
            assert len(after) == len(before)
            moved = [u for u in after if u not in before], [u for u in before if u not in after]
            assert max(map(len, moved)) <= 1
            sizes.add(len(other.rows))
            names |= set(other.columns["patient"])
            shared = [row for row in table.rows if row in other.rows]
            orders += [row for row in other.rows if row in shared] != shared
    assert orders > 10
    if unit:
        assert len(sizes) > 3
        assert len(names) > 22


def test_a_record_that_is_dealt_is_replaced_in_its_place(tmp_path: Path) -> None:
    table = Table.read(sites(tmp_path / "sites") / "north.csv")
    agreed = Description.load(tmp_path / "sites" / "records.toml")
    for seed in range(20):
        one, *others = family(table, agreed, Random(seed), 4, in_place=True)
        for other in others:
            pairs = zip(one.rows, other.rows, strict=True)
            assert sum(before != after for before, after in pairs) <= 1


def test_records_of_a_bare_npz_stay_with_their_client(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.arange(12) // 4, classes=2)
    table = Table.read(tmp_path / "a.npz")
    assert set(table.constants) == {"classes"}
    for seed in range(20):
        for other in family(table, None, Random(seed), 5):
            other.write(tmp_path / "b.npz")
            with np.load(tmp_path / "b.npz") as file:
                assert file["x"].dtype == np.float32
                assert np.bincount(file["client"]).tolist() == [4, 4, 4]
                assert set(file["y"].tolist()) <= {0, 1}


def test_a_text_among_numbers_makes_a_column_of_texts_as_programs_store_it(tmp_path: Path) -> None:
    rows: list[Row] = [{"a": 1.5}, {"a": "n/a"}, {"a": None}]
    for suffix in (".csv", ".parquet", ".npz"):
        path = tmp_path / f"a{suffix}"
        Table({"a": [row["a"] for row in rows]}, suffix, {}).write(path)
        expected = ["1.5", "n/a", None if suffix == ".parquet" else ""]
        assert Table.read(path).columns["a"] == expected
