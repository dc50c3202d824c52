"""Who may see which record: training, held-out, context and query sets, and what a look at them costs."""

from __future__ import annotations

import gc
import importlib
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import (
    Dataset,
    Facts,
    FederatedDataset,
    Records,
    delta_doubt,
    divide,
    load,
    split_future,
    split_participant,
)
from sottovoce.errors import SottovoceError
from sottovoce.federation import agree
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError
from sottovoce.run.training import train
from tests.run.test_folder import planned, sites


def numbered(records: int, owner: torch.Tensor | None = None) -> Dataset:
    """Record i is the number i, so that sets of records can be compared."""
    x, y = torch.arange(records).float()[:, None], torch.arange(records) % 4
    return Dataset("numbered", x, y, Facts((1,), 4), client=owner, public=True)


def divided(data: Dataset, **changes: object) -> FederatedDataset:
    request: dict[str, object] = {
        "preset": "tuned",
        "partition": "dirichlet",
        "participants": 6,
        "future_clients": 2,
        "records_per_client": 50,
        "alpha": 0.5,
        "context_records": 30,
        "seed": 41,
    }
    return divide(data, Plan.load(overrides={**request, "clients_per_round": 1, **changes}))


def numbers(records: Records) -> set[int]:
    return {int(value) for value in records.x.flatten()}


@pytest.mark.parametrize("partition", ["dirichlet", "iid"])
def test_no_record_is_in_two_sets_that_must_be_disjoint(partition: str) -> None:
    clients = divided(numbered(400), partition=partition)
    held: list[set[int]] = []
    for mine in clients.participants:
        assert numbers(mine.context) <= numbers(mine.train)
        assert not numbers(mine.held_out) & numbers(mine.train)
        assert (len(mine.train), len(mine.held_out), len(mine.context)) == (40, 10, 30)
        held += [numbers(mine.train), numbers(mine.held_out)]
    for mine in clients.future:
        assert not numbers(mine.held_out) & numbers(mine.context)
        assert (len(mine.train), len(mine.held_out), len(mine.context)) == (0, 20, 30)
        held += [numbers(mine.context), numbers(mine.held_out)]
    assert sum(map(len, held)) == len(set.union(*held)) == 400


def test_labels_stay_with_their_records() -> None:
    clients = divided(numbered(400))
    for mine in [*clients.participants, *clients.future]:
        for part in (mine.train, mine.held_out, mine.context):
            assert torch.equal(part.x.flatten().long() % 4, part.y)


def test_looking_again_or_in_another_federation_gives_the_same_records() -> None:
    one, two, other = divided(numbered(400)), divided(numbered(400)), divided(numbered(400), seed=42)
    assert torch.equal(one.participants[3].context.x, one.participants[3].context.x)
    assert torch.equal(one.participants[3].context.x, two.participants[3].context.x)
    assert not torch.equal(one.participants[3].context.x, other.participants[3].context.x)


def test_clients_are_split_independently_of_each_other() -> None:
    records = Records(torch.arange(50.0)[:, None], torch.zeros(50).long())
    one, two = split_participant(records, 10, seed=1), split_participant(records, 10, seed=2)
    assert numbers(one.held_out) != numbers(two.held_out)


def test_the_papers_client_of_417_records_trains_on_333() -> None:
    records = Records(torch.zeros(417, 1), torch.zeros(417).long())
    mine = split_participant(records, 333, seed=0)
    assert (len(mine.train), len(mine.held_out), len(mine.context)) == (333, 84, 333)


def test_natural_clients_keep_their_sizes() -> None:
    owner = torch.repeat_interleave(torch.arange(8), torch.arange(45, 53))
    clients = divided(numbered(len(owner), owner), partition="client", records_per_client=0)
    assert sorted(clients.participants.sizes + clients.future.sizes) == list(range(45, 53))
    for mine in clients.participants:
        assert len({int(owner[i]) for i in numbers(mine.train) | numbers(mine.held_out)}) == 1


def test_normalization_uses_the_stated_constants_whatever_the_records_are() -> None:
    """Replacing all other records must not move a record's normalized value: that would be a release."""
    bytes_ = torch.randint(
        0, 256, (40, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    changed = bytes_.clone()
    changed[1:] = 255
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    one, two = (
        Dataset("d", x, torch.zeros(40).long(), Facts(x.shape[1:], 1, mean, std)) for x in (bytes_, changed)
    )
    first = torch.tensor([0])
    assert torch.equal(one.records(first).x, two.records(first).x)
    expected = (bytes_[0].double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.allclose(one.records(first).x[0].double(), expected, atol=1e-6)


def test_records_that_are_not_finite_pass_through() -> None:
    x = torch.zeros(400, 2)
    x[7, 0], x[8, 1] = float("nan"), float("inf")
    clients = divided(Dataset("holes", x, torch.arange(400) % 4, Facts(x.shape[1:], 4)), partition="iid")
    kept = torch.cat([part.x for c in clients.participants for part in (c.train, c.held_out)])
    kept = torch.cat([kept, *(part.x for c in clients.future for part in (c.context, c.held_out))])
    assert int((~kept.isfinite()).sum()) == 2


def test_a_look_at_a_client_reads_only_that_clients_records(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = Dataset.records

    def counting(self: Dataset, index: torch.Tensor) -> Records:
        read.append(len(index))
        return original(self, index)

    monkeypatch.setattr(Dataset, "records", counting)
    clients = divided(
        numbered(50_000), participants=9_990, future_clients=10, records_per_client=5, context_records=4
    )
    assert read == []
    assert len(clients.participants) == 9_990
    _ = clients.participants[17], clients.participants[-1], clients.participants[17]
    assert read == [5, 5]


def test_clients_looked_at_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("sottovoce.data.clients")
    monkeypatch.setattr(module, "CACHE_BYTES", 2 * 50 * 4)  # two clients of 50 numbers
    clients = divided(numbered(400))
    first = weakref.ref(clients.participants[0])
    assert first() is not None
    _ = clients.participants[1], clients.participants[2]
    gc.collect()
    assert first() is None


def test_clients_index_like_a_list() -> None:
    clients = divided(numbered(400)).participants
    assert len(clients[1:4]) == 3
    assert torch.equal(clients[-1].train.x, clients[5].train.x)
    with pytest.raises(IndexError):
        clients[6]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"context_records": 41}, "context_records=41, but there are 40 training records"),
        ({"context_records": -1}, "context_records must be 0 or more"),
        ({"participants": 0}, "participants must be above 0"),
        ({"future_clients": -1}, "future_clients must be 0 or more"),
        ({"records_per_client": 1, "context_records": 1}, "it needs 2"),
        ({"records_per_client": 51}, "8 clients × 51 records is more than the 400"),
    ],
)
def test_impossible_federations_name_the_numbers(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SottovoceError, match=says):
        divided(numbered(400), **changes)


def test_a_future_client_keeps_at_least_one_query_record() -> None:
    owner = torch.repeat_interleave(torch.arange(2), 50)
    both = {"partition": "client", "participants": 1, "future_clients": 1, "records_per_client": 0}
    assert len(divided(numbered(100, owner), **both, context_records=40).future[0].held_out) == 10
    small = torch.cat([torch.zeros(50).long(), torch.ones(20).long()])
    seeds = [
        seed
        for seed in range(20)
        if divided(numbered(70, small), **both, context_records=1, seed=seed).future.sizes == [20]
    ]
    with pytest.raises(SottovoceError, match="there are 19 records that the smallest future"):
        divided(numbered(70, small), **both, context_records=20, seed=seeds[0])


def test_a_future_client_cannot_give_more_context_than_it_has() -> None:
    records = Records(torch.zeros(5, 1), torch.zeros(5).long())
    assert len(split_future(records, 5, seed=0).held_out) == 0
    with pytest.raises(SottovoceError, match="context_records=6, but there are 5 records of a future client"):
        split_future(records, 6, seed=0)


def test_a_federation_may_have_no_future_clients() -> None:
    clients = divided(
        numbered(100),
        partition="iid",
        participants=5,
        future_clients=0,
        records_per_client=20,
        context_records=16,
    )
    assert len(clients.future) == 0
    assert clients.facts.shape == (1,)
    assert clients.facts.classes == 4


def test_one_changed_label_redeals_a_labelled_partition_and_nothing_else() -> None:
    def moved(partition: str) -> int:
        """Clients beside its own whose records change with one label."""
        data = numbered(400)
        y = data.y.clone()
        y[7] = (y[7] + 1) % 4
        before, after = (divided(records, partition=partition) for records in (data, replace(data, y=y)))
        pairs = zip(before.participants, after.participants, strict=True)
        return sum(numbers(a.train) != numbers(b.train) for a, b in pairs)

    assert moved("dirichlet") > 1
    assert moved("iid") == 0


def test_own_records_are_not_dealt_out_by_their_labels() -> None:
    own = replace(numbered(400), public=False)
    reason = r"no ε covers.*client column.*partition=iid"
    with pytest.raises(PlanError, match=reason):
        divided(own, partition="dirichlet")
    with pytest.raises(PlanError, match=reason):
        agree(Plan.load(overrides={"partition": "dirichlet", "clients_per_round": 1}), own)
    assert len(divided(own, partition="iid").participants) == 6
    owned = replace(own, client=torch.arange(400) % 8)
    assert len(divided(owned, partition="client", records_per_client=0).participants) == 6


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
@pytest.mark.parametrize("public", [False, True])
def test_records_of_units_are_never_dealt(partition: str, public: bool) -> None:
    """One visit more of one patient would change the sizes of clients, which are public."""
    owners = torch.arange(400) // 50
    visits = replace(numbered(400), unit=torch.arange(400) // 3, client=owners, public=public)
    reason = "partition=client" if partition == "dirichlet" else "would split units.*set partition=client"
    with pytest.raises(PlanError, match=reason):
        divided(visits, partition=partition, records_per_client=0)
    whole = divided(visits, partition="client", records_per_client=0, context_records=10)
    assert sum(whole.participants.sizes) > 0


def test_a_folder_of_patients_with_iid_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites", unit=True)
    with pytest.raises(PlanError, match=r"partition=iid .* set partition=client") as refused:
        train(planned(folder, partition="iid", participants=3, context_records=5), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not list(folder.glob("ledger*"))


def test_only_datasets_by_name_are_public(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist-small.npz", x=np.zeros((4, 1)), y=np.arange(4))
    assert load("mnist-small").public
    assert not load(tmp_path / "mnist-small.npz").public


def test_units_are_never_divided_between_training_and_held_out_records() -> None:
    rows = torch.arange(60)
    records = Records(rows.float()[:, None], rows % 3, unit=rows % 12 + 100)
    mine = split_participant(records, 4, seed=3)
    trained, held = {n % 12 for n in numbers(mine.train)}, {n % 12 for n in numbers(mine.held_out)}
    assert len(trained) == 9
    assert len(held) == 3
    assert not trained & held
    assert len(mine.train) == 45
    assert mine.context.units == 4
    assert numbers(mine.context) <= numbers(mine.train)
    later = split_future(records, 5, seed=3)
    assert (later.context.units, later.held_out.units, len(later.train)) == (5, 7, 0)
    assert torch.equal(mine.train.x.flatten().long() % 3, mine.train.y)


def test_how_many_records_a_unit_has_does_not_move_other_units() -> None:
    few = Records(torch.arange(10).float()[:, None], torch.zeros(10).long(), unit=torch.arange(10))
    doubled = torch.cat([torch.arange(10), torch.full((7,), 4)])
    many = Records(doubled.float()[:, None], torch.zeros(17).long(), unit=doubled)
    one, two = split_participant(few, 2, seed=1), split_participant(many, 2, seed=1)
    assert numbers(one.train) == numbers(two.train)
    assert numbers(one.context) == numbers(two.context)


def pictures(records: int = 400) -> Dataset:
    """Record i shows its number in one corner."""
    x = torch.zeros(records, 1, 4, 4)
    x[:, 0, 0, 0] = torch.arange(records).float()
    return Dataset("pictures", x, torch.arange(records) % 4, Facts((1, 4, 4), 4), public=True)


def test_every_client_sees_its_pictures_by_its_own_quarter_turn() -> None:
    plain, turned = divided(pictures()), divided(pictures(), shift="turns")
    turns = []
    for mine, seen in zip(
        [*plain.participants, *plain.future], [*turned.participants, *turned.future], strict=True
    ):
        [turn] = [
            t for t in range(4) if torch.equal(torch.rot90(mine.held_out.x, t, (2, 3)), seen.held_out.x)
        ]
        assert torch.equal(torch.rot90(mine.context.x, turn, (2, 3)), seen.context.x)
        assert torch.equal(mine.held_out.y, seen.held_out.y)
        turns.append(turn)
    assert set(turns[:6]) == {0, 1, 2, 3}
    assert len(set(turns[6:])) == 2


def test_only_square_pictures_are_turned() -> None:
    with pytest.raises(PlanError, match="turns square pictures"):
        divided(numbered(400), shift="turns")


def test_a_delta_above_a_tenth_of_the_limit_is_doubted() -> None:
    assert delta_doubt(1e-5, 10_000) == []
    (doubt,) = delta_doubt(5e-5, 10_000)
    assert "a chance of 50 %" in doubt


def test_only_records_that_were_copied_here_say_that_nobody_else_holds_their_memory() -> None:
    memory = np.zeros((40, 3), dtype=np.float32)
    given = Records(torch.from_numpy(memory), torch.zeros(40).long())
    assert not given.copied
    assert not given[:20].copied
    for records in (
        given[torch.arange(40)],
        given[torch.arange(40)][:9],
        split_participant(given, 5, 0).train,
    ):
        assert records.copied
        memory += 1.0
        assert records.x.unique().numel() == 1
        assert float(records.x[0, 0]) != memory[0, 0]
    of_units = Records(given.x, given.y, torch.arange(40) // 2).of_units(torch.arange(20))
    assert of_units.copied
    assert of_units.x.data_ptr() != given.x.data_ptr()
