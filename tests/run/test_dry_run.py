"""Whatever fails, fails before the first charge, and says at whose records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sottovoce import data
from sottovoce.data import DataError, Dataset, Facts
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.run.training import train

from .test_folder import planned, sites


def own(count: int = 60) -> Dataset:
    """Two clients' records of three numbers, made in Python."""
    generator = torch.Generator().manual_seed(2)
    x, owner = torch.randn(count, 3, generator=generator), torch.arange(count) % 2
    return Dataset("mine", x, (x[:, 0] > 0).long(), Facts((3,), 2), owner, ("east", "west"))


def own_plan(**changes: object) -> Plan:
    return Plan.load(overrides={"preset": "best", "rounds": 2, "channel": "direct", "epsilon": 4, **changes})


def charged(folder: Path) -> bool:
    return any(folder.rglob("*.sqlite"))


class Steep(nn.Module):
    """Overflows on large records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) * x.sum(dim=1, keepdim=True).exp()
        return out


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(3, 3), "Linear gives 3 outputs a record, but the records have 2"),
        (nn.Linear(4, 2), "Linear fails on records of shape .3,."),
        (nn.GRU(3, 2), "GRU returns tuple"),
    ],
)
def test_a_model_that_does_not_fit_costs_nothing(tmp_path: Path, module: nn.Module, reason: str) -> None:
    with pytest.raises(SottovoceError, match=reason):
        train(own_plan(), tmp_path / "run", dataset=own(), module=module)
    assert not charged(tmp_path)


def test_a_model_that_fails_on_somebodys_records_names_that_client(tmp_path: Path) -> None:
    records = own()
    records.x[records.client == 1] += 50
    with pytest.raises(SottovoceError, match=r"^west: .*outputs that are not finite"):
        train(own_plan(), tmp_path / "run", dataset=records, module=Steep())
    assert not charged(tmp_path)


def test_a_column_that_is_never_finite_is_refused_by_name_before_any_charge(tmp_path: Path) -> None:
    records = own()
    records.x[records.client == 0, 2] = torch.nan
    with pytest.raises(DataError, match=r"east has 24 of 24 records .* in column number 2"):
        train(own_plan(), tmp_path / "run", dataset=records)
    assert not charged(tmp_path)


def test_a_few_unusable_records_are_borne(tmp_path: Path) -> None:
    records = own()
    records.x[0] = torch.nan
    train(own_plan(), tmp_path / "run", dataset=records)


def test_a_folder_is_refused_by_client_and_column(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    text = (folder / "3.csv").read_text().replace("yes", "maybe")
    (folder / "3.csv").write_text(text)
    with pytest.raises(DataError, match=r"3 has .* cannot be used.*'ill'"):
        train(planned(folder), tmp_path / "run")
    assert not charged(tmp_path)


def test_public_records_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from sottovoce.run.prepare import prepare
    from sottovoce.run.session import dry_run
    from tests.small import small_plan

    plan, records = small_plan(), data.load("mnist-small")
    prepared = prepare(plan, records, trusted=True)
    federation = prepared.federation
    looked: list[int] = []
    whole = type(federation.participants).__getitem__

    def look(self: object, i: int) -> object:
        looked.append(i)
        return whole(self, i)  # type: ignore[arg-type]

    monkeypatch.setattr(type(federation.participants), "__getitem__", look)
    dry_run(prepared.blueprint, federation, own=False)
    assert looked == [0, 0]
