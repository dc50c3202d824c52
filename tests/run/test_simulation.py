"""A simulated round is the real one: the same clients, server, messages and charges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import Dataset
from sottovoce.models.tensors import load_tensors
from sottovoce.privacy.ledger import Ledger
from sottovoce.run.prepare import prepare
from sottovoce.run.simulation import Simulation
from sottovoce.run.training import train
from sottovoce.training.server import Server
from tests.small import small_plan


def simulation(records: Dataset, ledger: Ledger | None, **changes: object) -> Simulation:
    prepared = prepare(small_plan(**changes), records, trusted=True)
    blueprint = prepared.blueprint
    return Simulation(blueprint, prepared.federation, Server(blueprint), ledger, run="run", master=bytes(32))


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.sqlite", scope="test") as opened:
        yield opened


def test_every_participant_is_charged_for_what_its_rounds_say_and_for_one_context(
    records: Dataset, ledger: Ledger
) -> None:
    made, lines = simulation(records, ledger), []
    while not made.done:
        lines.append(made.step())
    for index in range(6):
        name = f"participant-{index}"
        charged = sorted((entry.charge.kind, entry.charge.round) for entry in ledger.charges(name))
        rounds = [("gradient", line["round"]) for line in lines if name in line["clients"]]
        assert charged == [("context", 0), *rounds]
    for index in range(2):
        assert ledger.releases(f"future-{index}") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"channel": "polar", "context": "predictions", "context_round": 2},
        {"model": "linear", "method": "blend", "coefficients": 0, "clients_per_round": 0, "channel": "lrsuq"},
        {"noise": "server", "model": "linear", "method": "blend", "context": "shares", "prior": "context"}
        | {"coefficients": 0, "context_share": 0.05},
    ],
)
def test_a_seeded_run_is_the_same_bit_for_bit_with_any_number_of_cores(
    records: Dataset, tmp_path: Path, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.gradients._CPU_BYTES", 1)  # several chunks of every client
    before, found = torch.get_num_threads(), []
    try:
        for cores in (1, 2, 5):
            torch.set_num_threads(cores)
            out = tmp_path / str(cores)
            result = train(small_plan(**changes), out, dataset=records)
            lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
            told = [{**line, "seconds": 0.0} for line in lines]
            found.append((load_tensors(out / "model.safetensors")[0], told, result["accuracy"]))
    finally:
        torch.set_num_threads(before)
    for model, told, accuracy in found[1:]:
        assert [name for name, value in found[0][0].items() if not torch.equal(model[name], value)] == []
        assert (told, accuracy) == found[0][1:]


def test_a_line_says_what_the_server_received(records: Dataset, ledger: Ledger) -> None:
    made = simulation(records, ledger)
    first, second = made.step(), made.step()
    assert (first["round"], second["round"]) == (1, 2)
    assert first["context_bytes"] > 0 == second["context_bytes"]
    assert first["bytes"] == 3 * (4 * made.blueprint.coefficients + 5)
    assert first["signal_norm"] <= made.blueprint.plan.clip
    expected = made.blueprint.sigma * np.sqrt(made.blueprint.coefficients)
    assert first["noise_norm"] == pytest.approx(expected, rel=0.1)
    assert first["seen"] is None
    made.evaluate_into(second)
    assert 0 <= second["seen"] <= 100


def test_means_computed_for_many_clients_at_once_are_released_like_ones_own(
    records: Dataset, tmp_path: Path
) -> None:
    states = []
    for name in ("alone", "together"):
        with Ledger.open(tmp_path / name, scope="test") as ledger:
            made = simulation(records, ledger)
            opened = made.open_round()
            release = made.blueprint.releases["gradient"]
            means = [
                release.statistic(client.training_records(1), coefficients)
                for client, coefficients in zip(opened.clients, opened.coefficients, strict=True)
            ]
            made.close_round(opened, torch.stack(means) if name == "together" else None)
            states.append(made.state())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_simulation_that_continues_from_its_state_gives_the_same_bits(
    records: Dataset, tmp_path: Path
) -> None:
    with Ledger.open(tmp_path / "steady", scope="test") as ledger:
        steady = simulation(records, ledger)
        while not steady.done:
            steady.step()
    with Ledger.open(tmp_path / "stopped", scope="test") as ledger:
        stopped = simulation(records, ledger)
        while not stopped.done:
            stopped.step()
            fresh = simulation(records, ledger)
            fresh.load_state(stopped.state())
            stopped = fresh
    assert all(torch.equal(value, stopped.state()[name]) for name, value in steady.state().items())
    assert steady.evaluate()[1].keys() == {"future-0", "future-1"}
