"""What a client reads of its records for a run, and what it hears where they do not serve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sottovoce.data import Records, split_seeds
from sottovoce.errors import SottovoceError
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.site import holdings as module
from sottovoce.federation.site.holdings import Holdings

from ..world import QUICK, World


def test_a_client_reads_as_many_records_as_its_share_of_training_ones_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    plan, read, splits = world.agreement.plan, list[int](), list[tuple[Any, ...]]()
    nothing = Records(torch.zeros(0, 1), torch.zeros(0))
    monkeypatch.setattr(
        module, "described_client", lambda *_, needed, limited, local: (read.append(needed), nothing)[1]
    )
    monkeypatch.setattr(module, "split_participant", lambda *given: splits.append(given))
    for size in (80, 81):
        blueprint: Any = SimpleNamespace(
            plan=plan, facts=None, sizes=(1, size, 1), context_size=lambda participant: 40 + participant
        )
        Holdings(world.files[1], world.agreement).records(1, blueprint)
    assert read == [100, 102]  # four of five train
    seeds = split_seeds(plan.participants + plan.future_clients, plan.seed)
    assert splits == [(nothing, 41, seeds[1])] * 2


@pytest.mark.parametrize(
    ("error", "said"), [(SottovoceError("no such label"), "no such label"), (KeyError("x"), "KeyError('x')")]
)
def test_the_owner_reads_in_words_why_a_client_is_not_ready_and_the_kind_of_what_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    world = World(tmp_path, **QUICK)
    monkeypatch.setattr(module, "dry_client", broken)
    with pytest.raises(EnrolmentError, match="this client is not ready"):
        world.enrol(0)
    log = (tmp_path / "clients" / "client-0" / "client.log").read_text()
    assert log.splitlines()[0].endswith(f"ERROR not ready, and nothing was charged: {said}")
