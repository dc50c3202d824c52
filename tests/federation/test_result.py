"""The run directory that a finished federation leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import personalize
from sottovoce.federation.status.progress import write_run
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope
from sottovoce.report.run import write_report
from sottovoce.run.finished import GeneratorFile
from sottovoce.run.training import evaluate, train

from .test_server import SHARES
from .world import World, ledger, same


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished federation: its clients, and its run directory."""
    home = tmp_path_factory.mktemp("federation")
    world = World(home)
    world.enrol_all()
    world.finish()
    result = write_run(home / "run", world.coordinator)
    assert result == json.loads((home / "run" / "result.json").read_text())
    return home


def test_a_federation_reports_the_epsilon_that_its_members_were_charged(federation: Path) -> None:
    result = json.loads((federation / "run" / "result.json").read_text())
    for index, name in enumerate(result["epsilon"]["per_client"]):
        records = federation / "clients" / f"client-{index}.npz"
        path = records.with_suffix("") / "ledger.sqlite"
        with Ledger.open(path, scope=client_scope(records.stem)) as ledger:
            charged = ledger.epsilon(OWN_RECORDS, result["delta"], "exact")
        assert result["epsilon"]["per_client"][name] == pytest.approx(charged)
    assert result["epsilon"]["spent_max"] <= result["epsilon"]["target"]


def test_its_model_serves_future_clients_and_only_its_clients_can_evaluate_it(federation: Path) -> None:
    answer = personalize(federation / "run", federation / "clients" / "future-0.npz", federation / "model")
    assert answer["epsilon"] > 0
    with pytest.raises(SottovoceError, match="keep their records"):
        evaluate(federation / "run")


def test_its_report_says_what_a_server_knows_and_nothing_else(federation: Path) -> None:
    text = write_report(federation / "run").read_text()
    for shown in ("Privacy spent", "Time of each round", "client-2", "Trusted server.", "The resolved plan"):
        assert shown in text, shown
    for unknown in ("accuracy</", "Bytes of each round", "Noise against signal", "NaN"):
        assert unknown not in text, unknown


def test_a_future_client_without_labels_gets_the_simulators_corrected_prior(tmp_path: Path) -> None:
    world = World(tmp_path, **SHARES)
    world.enrol_all()
    world.finish()
    result = write_run(tmp_path / "run", world.coordinator)
    assert not result["uses_future_labels"]
    with ledger(world, 0) as book:
        charged = book.epsilon(OWN_RECORDS, result["delta"], "exact")
    assert result["epsilon"]["per_client"]["client-0"] == pytest.approx(charged)  # the confusion too
    train(world.agreement.plan, tmp_path / "simulated")
    one, other = (GeneratorFile.read(tmp_path / run / "model.safetensors") for run in ("run", "simulated"))
    assert same(dict(one.state), dict(other.state))
    answer = personalize(tmp_path / "run", tmp_path / "clients" / "future-0.npz", tmp_path / "model")
    assert answer["epsilon"] == pytest.approx(world.agreement.plan.epsilon, rel=1e-3)
