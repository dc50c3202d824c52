"""Client files hold the records that the simulator gives to the same clients."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import division, load, read_client
from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.client_files import agree, write_client_files
from tests.run.test_folder import planned, sites
from tests.small import federated_plan


def test_the_files_are_the_simulators_clients_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    agreement, dataset = agree(federated_plan()), load("mnist-small")
    files = write_client_files(agreement, tmp_path / "clients")
    assert [file.name for file in files] == ["client-0.npz", "client-1.npz", "client-2.npz", "future-0.npz"]
    for file, index in zip(files, division(dataset, agreement.plan), strict=True):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with np.load(file) as arrays:
            assert (arrays["x"] == dataset.x[index].numpy()).all()
        records = read_client(file, facts=agreement.facts, needed=1)
        assert torch.equal(records.y, dataset.y[index])
    assert Agreement.load(tmp_path / "clients" / "agreement.toml", simulation=True) == agreement


def test_an_agreement_is_resolved_as_the_simulator_resolves_its_plan() -> None:
    agreement = agree(federated_plan(gradient_records=0))
    assert agreement.plan.gradient_records == 80


def test_sites_that_have_their_files_are_not_given_others(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites", sizes={"north": 10, "west": 10})
    with pytest.raises(SottovoceError, match=f"which have their files already: give its agreement {folder}"):
        agree(planned(folder))
