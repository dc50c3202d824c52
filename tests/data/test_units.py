"""Which units a client trains on follows what they are: no place in a file, no sorting, no neighbour."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import (
    ClientRecords,
    Description,
    Records,
    divide,
    load,
    read_client,
    split_future,
    split_participant,
)
from sottovoce.data.units import of_names, of_records, order
from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare
from sottovoce.training.client import Client

AGREED = """
task = "classes"
unit = "patient"
[target]
column = "ill"
values = ["no", "yes"]
[columns.a]
kind = "number"
low = 0
high = 1000
"""
Rows = list[tuple[float, str, str]]


def save(at: Path, rows: Rows, kind: str, agreed: str = AGREED) -> Path:
    """One client's file in a folder of its own."""
    at.mkdir()
    (at / "records.toml").write_text(agreed, encoding="utf-8")
    a, ill, patient = (list(column) for column in zip(*rows, strict=True))
    path = at / f"north.{kind}"
    if kind == "npz":
        np.savez(path, a=np.array(a), ill=np.array(ill), patient=np.array(patient))
        return path
    lines = "a,ill,patient\n" + "\n".join(f"{x},{y},{z}" for x, y, z in rows) + "\n"
    if kind == "csv":
        path.write_text(lines, encoding="utf-8")
    else:
        table = pyarrow.csv.read_csv(io.BytesIO(lines.encode()))
        place = table.column_names.index("patient")
        table = table.set_column(place, "patient", table.column("patient").dictionary_encode())
        pyarrow.parquet.write_table(table, path)
    return path


def sets(path: Path, context: int) -> list[Records]:
    """What a client of such a file uses: in training, held out, in its context, in two rounds, later on."""
    given = {"preset": "best", "dataset": str(path), "model": "linear", "partition": "client"}
    given |= {"participants": 0, "future_clients": 0, "clients_per_round": 0, "records_per_client": 0}
    ready = prepare(Plan.load(overrides={**given, "gradient_records": 7, "context_records": context}))
    mine = ready.federation.participants[0]
    client = Client("north", mine, ready.blueprint, None, run="r", secret=b"", participant=0)
    agreed = Description.load(path.parent / "records.toml")
    later = split_future(read_client(path, facts=agreed.facts(), needed=2), context, 5)
    rounds = [client.training_records(number) for number in (1, 2)]
    return [mine.train, mine.held_out, mine.context, *rounds, later.context, later.held_out]


def contents(records: Records) -> Counter[tuple[float, ...]]:
    return Counter(map(tuple, torch.cat([records.x, records.y[:, None].float()], 1).tolist()))


def units(records: Records) -> Counter[tuple[tuple[float, ...], ...]]:
    """Each unit by the values of its records."""
    rows = torch.cat([records.x, records.y[:, None].float()], 1)
    unit = torch.arange(len(records)) if records.unit is None else records.unit
    return Counter(tuple(sorted(map(tuple, rows[unit == i].tolist()))) for i in unit.unique())


def exchanged(one: Path, other: Path, context: int = 5) -> list[int]:
    """How many units each set of the first file has that the same set of the other lacks."""
    pairs = zip(sets(one, context), sets(other, context), strict=True)
    return [(units(before) - units(after)).total() for before, after in pairs]


def visits(patients: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    rows = [(i + j / 8, "no" if i % 3 else "yes", f"p{i:03}") for i in range(patients) for j in range(2)]
    return [rows[i] for i in rng.permutation(len(rows))]


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("name", ["p000-", "a", "z", "P050", "0"])
def test_one_patient_under_another_name_exchanges_one_unit_of_each_set(
    tmp_path: Path, kind: str, name: str
) -> None:
    """Ranks of sorted names, of a dictionary or of first appearance would deal all others anew."""
    rows = visits(40)
    last = [(x, y, name if z == "p017" else z) for x, y, z in rows]
    first = sorted(last, key=lambda row: row[2] != name)  # a replaced patient may stand anywhere
    one = save(tmp_path / "one", rows, kind)
    for place, changed in enumerate((last, first)):
        assert max(exchanged(one, save(tmp_path / str(place), changed, kind))) <= 1


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_a_file_sorted_by_a_column_exchanges_one_record_of_each_set(tmp_path: Path, kind: str) -> None:
    agreed = AGREED.replace('unit = "patient"\n', "")
    rows = [(float(i), "no" if i % 3 else "yes", "-") for i in range(60)]
    changed = sorted([(500.5, "no", "-"), *rows[1:]])
    before, after = save(tmp_path / "one", rows, kind, agreed), save(tmp_path / "two", changed, kind, agreed)
    assert max(exchanged(before, after)) == 1
    again = save(tmp_path / "three", rows[::-1], kind, agreed)
    for one, other in zip(sets(before, 5), sets(again, 5), strict=True):
        assert torch.equal(one.x, other.x)  # the same records give the same bits


def test_a_column_of_clients_in_an_npz_is_no_order_of_places(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, y, client = rng.normal(size=(60, 2)).astype(np.float32), np.arange(60) % 2, np.arange(60) % 3
    changed = x.copy()
    changed[9] = 7.0
    plan = {"preset": "tuned", "partition": "client", "participants": 3, "future_clients": 0}
    plan |= {"clients_per_round": 3, "records_per_client": 0, "context_records": 0}
    found = []
    for number, values in enumerate((x, changed)):
        by = np.argsort(values[:, 0])
        np.savez(tmp_path / f"{number}.npz", x=values[by], y=y[by], client=client[by], classes=2)
        found.append(divide(load(tmp_path / f"{number}.npz"), Plan.load(overrides=plan)))
    pairs = zip(found[0].participants, found[1].participants, strict=True)
    moved = [(contents(one.train) - contents(other.train)).total() for one, other in pairs]
    assert sorted(moved)[:2] == [0, 0]
    assert max(moved) <= 1
    for i in range(3):
        if not moved[i]:
            assert torch.equal(found[0].participants[i].train.x, found[1].participants[i].train.x)


records = st.lists(
    st.tuples(st.sampled_from([0.0, -0.0, 1.0, 2.5, float("nan"), 3e38]), st.integers(0, 2)),
    min_size=5,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(
    rows=records, new=st.tuples(st.floats(width=32), st.integers(0, 2)), place=st.integers(0), data=st.data()
)
def test_any_record_replaced_and_any_order_exchanges_one_record_of_each_set(
    rows: list[tuple[float, int]], new: tuple[float, int], place: int, data: st.DataObject
) -> None:
    """Copies of others, records that cannot be used and either zero included."""
    changed = list(rows)
    changed[place % len(rows)] = new
    changed = data.draw(st.permutations(changed))

    def split(of: list[tuple[float, int]]) -> ClientRecords:
        x, y = torch.tensor([[value] for value, _ in of]), torch.tensor([label for _, label in of])
        return split_participant(Records(x, y, identity=of_records(x, y)), 2, seed=11)

    def bits(records: Records) -> Counter[tuple[int, int]]:
        return Counter(zip(records.x.view(torch.int32)[:, 0].tolist(), records.y.tolist(), strict=True))

    one, two = split(rows), split(changed)
    for before, after in ((one.train, two.train), (one.context, two.context), (one.held_out, two.held_out)):
        assert (bits(before) - bits(after)).total() <= 1


def test_records_that_cannot_be_used_are_drawn_apart() -> None:
    """All of them are equal: together they would be all of a small set."""
    x, y = torch.arange(1000.0)[:, None], torch.zeros(1000).long()
    x[:100] = torch.nan
    mine = split_participant(Records(x, y, identity=of_records(x, y)), 200, seed=2)
    # 20 of 100 are expected among 200 of 1,000, with a standard deviation of 3.8: six of them are 23.
    for part in (mine.held_out, mine.context):
        assert 0 < int(part.x.isnan().sum()) < 43


def test_a_copy_at_another_client_counts_nothing() -> None:
    """A record that becomes a copy of another client's must not give that one another number."""
    x, y, client = torch.ones(6, 1), torch.zeros(6).long(), torch.tensor([0, 0, 0, 1, 1, 1])
    together, alone = of_records(x, y, client), of_records(x[3:], y[3:])
    assert torch.equal(together[3:], alone)
    assert torch.equal(together[:3], alone)
    mixed = torch.tensor([3, 0, 4, 1, 5, 2])
    assert torch.equal(of_records(x, y, client[mixed])[client[mixed] == 1], alone)


def test_bytes_and_the_same_records_as_numbers_are_the_same_units() -> None:
    """One unusable record makes numbers of the bytes of a whole file, which must not deal the others anew."""
    x = torch.randint(0, 256, (9, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(9)
    assert torch.equal(of_records(x, y), of_records(x / 255, y))
    assert torch.equal(of_records(x, y)[4:5], of_records(x[4:5], y[4:5]))
    assert not torch.equal(of_records(x, y), of_records(x, y + 1))


def test_names_order_units_differently_under_every_seed_and_alike_on_every_machine() -> None:
    names = of_names(str(i) for i in range(1000))
    assert order(names, 0)[:8].tolist() == [596, 320, 158, 91, 782, 850, 429, 950]
    assert sorted(order(names, 1).tolist()) == list(range(1000))
    halves = [set(order(names, seed)[:500].tolist()) for seed in range(20)]
    # Two random halves share 250 of 1,000, with a standard deviation of 7.9: six of them are 48.
    assert all(abs(len(one & two) - 250) < 48 for one, two in pairwise(halves))


def test_places_order_records_that_are_dealt() -> None:
    dealt = Records(torch.arange(50.0)[:, None], torch.zeros(50).long())
    changed = replace(dealt, x=dealt.x.clone())
    changed.x[3] = -1.0
    assert torch.equal(dealt.order(4), changed.order(4))
