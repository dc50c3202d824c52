"""Federations of real processes: what survives kill -9 of each of them, compared with the simulator."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.data import Description
from sottovoce.federation import Agreement, agree, write_client_files
from sottovoce.federation.flower import write_app
from sottovoce.federation.keys import Parties
from sottovoce.federation.onboarding.remote import OnboardingError, onboard
from sottovoce.federation.server import Options
from sottovoce.machine.tokens import new_token
from sottovoce.models.tensors import load_tensors
from sottovoce.personal import PersonalModel
from sottovoce.personal.prediction import predict
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope
from sottovoce.run.prepare import complete
from sottovoce.run.training import train
from tests.run.test_folder import sites
from tests.small import federated_plan

from .overhearing import found, overheard
from .processes import Processes, write_certificates
from .test_noise_at_server import NOISE
from .world import SHARED, replayed, same


def prepare(folder: Path, retry: float = 15.0, **changes: Any) -> Agreement:
    agreement = agree(federated_plan(**changes))
    clients = folder / "clients"
    write_client_files(agreement, clients)
    write_app(
        agreement,
        folder / "app",
        run_directory=folder / "run",
        retry=retry,
        simulated_clients=clients if agreement.simulation else None,
    )
    return agreement


def rounds(folder: Path) -> int:
    """Rounds that the server has closed so far."""
    try:
        store = sqlite3.connect(f"file:{folder / 'run' / 'server.sqlite'}?mode=ro", uri=True)
        [(count,)] = store.execute("SELECT count(*) FROM round").fetchall()
        store.close()
    except sqlite3.Error:
        return 0
    return int(count)


def came(folder: Path, number: int) -> set[int]:
    """The clients whose gradient of a round the server has received."""
    query = "SELECT participant FROM release WHERE kind = 'gradient' AND round = ?"
    try:
        store = sqlite3.connect(f"file:{folder / 'run' / 'server.sqlite'}?mode=ro", uri=True)
        found = {participant for (participant,) in store.execute(query, (number,))}
        store.close()
    except sqlite3.Error:
        return set()
    return found


def equals_the_simulator(folder: Path, agreement: Agreement) -> None:
    """The generator of a seeded federation is the simulator's, and none of its codewords is left."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        codewords = overheard(patch)  # the same as in the federation, byte for byte
        train(agreement.plan, folder / "simulated")
    torch.set_num_threads(threads)
    assert codewords
    files = [path for path in folder.rglob("*") if path.is_file()]
    databases = [path for path in files if ".sqlite" in path.name or ".db" in path.name]
    assert {"superlink.db", "server.sqlite", "client-0.ledger.sqlite"} <= {path.name for path in databases}
    assert found([path for path in databases if "simulated" not in path.parts], codewords) == set()
    simulated, _ = load_tensors(folder / "simulated" / "model.safetensors")
    deployed, _ = load_tensors(folder / "run" / "model.safetensors")
    assert same(simulated, deployed)


def charged_once(folder: Path, agreement: Agreement) -> None:
    """Each client was charged once for each release that the server has received."""
    store = sqlite3.connect(folder / "run" / "server.sqlite")
    for index in range(agreement.plan.participants):
        received = store.execute("SELECT kind, round FROM release WHERE participant = ?", (index,)).fetchall()
        assert received
        records = folder / "clients" / f"client-{index}.npz"
        own = records.with_suffix(".ledger.sqlite")
        with Ledger.open(own, scope=client_scope(records.stem)) as ledger:
            charges = [(entry.charge.kind, entry.charge.round) for entry in ledger.charges(OWN_RECORDS)]
            assert sorted(charges) == sorted(received)
            assert ledger.epsilon(OWN_RECORDS, agreement.plan.delta, "exact") <= agreement.plan.epsilon
    store.close()


def test_a_short_federation_with_a_killed_node_equals_the_simulator(tmp_path: Path) -> None:
    agreement = prepare(tmp_path, participants=2, rounds=1)
    with Processes(tmp_path, tls=False) as processes:
        processes.start_superlink()
        for index in range(2):
            processes.start_supernode(index)
        processes.flwr("run", "app", "here")
        processes.wait("the first client process", lambda: bool(processes.children("flwr-clientapp")))
        processes.kill("supernode-1")
        processes.start_supernode(1)
        processes.wait("its round", (tmp_path / "run" / "result.json").exists)
        models = [tmp_path / "clients" / f"client-{index}.personal.safetensors" for index in range(2)]
        processes.wait("everybody's model", lambda: all(model.exists() for model in models))
    equals_the_simulator(tmp_path, agreement)
    charged_once(tmp_path, agreement)


@pytest.mark.slow
def test_a_federation_with_noise_at_the_server_whose_server_is_killed_equals_the_simulator(
    tmp_path: Path,
) -> None:
    agreement = prepare(tmp_path, participants=2, rounds=3, **NOISE)
    with Processes(tmp_path, tls=False) as processes:
        processes.start_superlink()
        for index in range(2):
            processes.start_supernode(index)
        supervise = ("sottovoce", "federate", "--app", str(tmp_path / "app"), "--on", "here")
        processes.start("federate", *supervise)
        processes.wait("round 1", lambda: rounds(tmp_path) >= 1)
        processes.wait("a server", lambda: processes.kill_one("flwr-serverapp"))
        processes.wait("three rounds", (tmp_path / "run" / "result.json").exists)
        processes.wait("the end of federate", lambda: not processes.running("federate"))
    equals_the_simulator(tmp_path, agreement)
    charged_once(tmp_path, agreement)


@pytest.mark.slow
def test_sites_with_tables_learn_to_predict_a_number(tmp_path: Path) -> None:
    """From a plan and `records.toml` alone; the models are the sites' own, and the server has no record."""
    clients = sites(tmp_path / "clients", "number", sizes={"client-0": 60, "client-1": 40})
    plan = Plan.load(
        overrides={"preset": "best", "dataset": "records.toml", "partition": "client", "participants": 2}
        | {"future_clients": 0, "rounds": 2, "channel": "direct"}
    )
    agreement = Agreement(*complete(plan, Description.load(clients / "records.toml").facts()))
    (clients / "agreement.toml").write_text(agreement.to_toml())
    write_app(agreement, tmp_path / "app", run_directory=tmp_path / "run", retry=40.0)
    models = [clients / f"client-{index}.personal.safetensors" for index in range(2)]
    with Processes(tmp_path, tls=False) as processes:
        processes.start_superlink()
        for index in range(2):
            processes.start_supernode(index)
        processes.flwr("run", "app", "here")
        processes.wait("everybody's model", lambda: all(model.exists() for model in models))
        processes.wait("the run's result", (tmp_path / "run" / "result.json").exists)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["task"], list(result["epsilon"]["per_client"])) == ("number", ["client-0", "client-1"])
    model = PersonalModel.read(models[0])
    assert predict(model, clients / "client-1.csv", tmp_path / "out.csv").records == 40


@pytest.mark.slow
def test_every_process_may_be_killed_and_a_future_client_still_gets_its_model(tmp_path: Path) -> None:
    agreement = prepare(tmp_path, rounds=6, seeded=False)
    with Processes(tmp_path, tls=True) as processes:
        processes.start_superlink()
        processes.register_nodes(3)
        for index in range(3):
            processes.start_supernode(index)
        supervise = ("sottovoce", "federate", "--app", str(tmp_path / "app"), "--on", "here")
        processes.start("federate", *supervise)
        processes.wait("round 1", lambda: rounds(tmp_path) >= 1)
        processes.kill("supernode-0")
        processes.start_supernode(0)
        processes.wait("a client process", lambda: processes.kill_one("flwr-clientapp"))
        processes.wait("round 2", lambda: rounds(tmp_path) >= 2)
        assert processes.kill_one("flwr-serverapp")
        processes.wait("round 3", lambda: rounds(tmp_path) >= 3)
        processes.kill("superlink")
        processes.start_superlink()
        processes.wait("round 4", lambda: rounds(tmp_path) >= 4)
        processes.kill("federate")
        processes.start("federate", *supervise)
        processes.wait("the end", (tmp_path / "run" / "result.json").exists)
        processes.wait("the end of federate", lambda: not processes.running("federate"))
        charged_once(tmp_path, agreement)
        walk_in(tmp_path, processes)


def walk_in(folder: Path, processes: Processes) -> None:
    """A future client gets the same model twice for one charge, and nothing without token or trust."""
    token, tls = new_token(folder / "run", "alice"), folder / "tls"
    url, records = f"https://127.0.0.1:{processes.onboarding_port}", folder / "clients" / "future-0.npz"
    ledger = records.with_suffix(".ledger.sqlite")
    processes.start_service()
    processes.start_proxy()
    with pytest.raises(OnboardingError, match="no such token"):
        onboard(url, records, folder / "model", token="wrong", authority=tls / "ca.crt")
    with pytest.raises(OnboardingError, match="not trusted"):
        onboard(url, records, folder / "model", token=token)
    assert not ledger.exists()
    first = onboard(url, records, folder / "one", token=token, authority=tls / "ca.crt")
    processes.kill("service")
    processes.start_service()
    again = onboard(url, records, folder / "two", token=token, authority=tls / "ca.crt")
    assert again["epsilon"] == first["epsilon"] > 0
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()
    processes.kill("proxy")
    write_certificates(tls, days=-1.0)
    processes.start_proxy()
    with pytest.raises(OnboardingError, match="expired"):
        onboard(url, records, folder / "three", token=token, authority=tls / "ca.crt")


@pytest.mark.slow
def test_a_node_does_not_join_over_an_expired_certificate(tmp_path: Path) -> None:
    prepare(tmp_path, seeded=False)
    with Processes(tmp_path, tls=True) as processes:
        processes.start_superlink()
        processes.register_nodes(1)
        processes.kill("superlink")
        write_certificates(tmp_path / "tls", days=-1.0)
        processes.start_superlink()
        processes.start_supernode(0)
        processes.wait("a refusal", lambda: "certificate" in processes.log("supernode-0").lower(), 60.0)
        refused = subprocess.run(
            ["flwr", "ls", "here"], env=processes.environment, capture_output=True, text=True, check=False
        )
        assert refused.returncode != 0
    assert not (tmp_path / "clients" / "client-0").exists()


@pytest.mark.slow
def test_flowers_simulation_engine_gives_the_same_generator(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="install sottovoce[simulation]")
    agreement = agree(federated_plan())
    clients = tmp_path / "clients"
    write_client_files(agreement, clients)
    write_app(agreement, tmp_path / "app", run_directory=tmp_path / "run", simulated_clients=clients)
    with Processes(tmp_path, tls=False, environment={"RAY_USAGE_STATS_ENABLED": "0"}) as processes:
        processes.start_superlink("--simulation")
        processes.flwr("run", "app", "here", "--federation-config", "num-supernodes=3")
        processes.wait("four rounds", (tmp_path / "run" / "result.json").exists)
    equals_the_simulator(tmp_path, agreement)
    charged_once(tmp_path, agreement)


@pytest.mark.slow
def test_a_client_with_another_plan_is_refused_and_both_ends_say_why(tmp_path: Path) -> None:
    prepare(tmp_path, participants=1, clients_per_round=1, seeded=False)
    theirs = tmp_path / "clients" / "agreement.toml"
    theirs.write_text(theirs.read_text().replace("epsilon = 8.0", "epsilon = 1.0"))
    with Processes(tmp_path, tls=False) as processes:
        processes.start_superlink()
        processes.start_supernode(0)
        processes.flwr("run", "app", "here")
        log = tmp_path / "run" / "federation.log"
        processes.wait("the server's reason", lambda: log.exists() and "another agreement" in log.read_text())
        processes.wait("the client's reason", lambda: "nothing is released" in processes.log("supernode-0"))
    assert not (tmp_path / "clients" / "client-0" / "ledger.sqlite").exists()


@pytest.mark.slow
def test_sites_vanish_a_round_is_given_up_a_helper_is_killed_and_the_sums_are_the_simulators(
    tmp_path: Path,
) -> None:
    """Six sites, three helpers: two sites vanish, a helper is away when masks are due, two more go."""
    plan = federated_plan(**{**SHARED, "context": "public", "prior": "none"})  # no context can be late
    clients, log = tmp_path / "clients", tmp_path / "run" / "federation.log"
    agreement = agree(plan, parties=Parties.dealt(clients, plan))
    write_client_files(agreement, clients)
    write_app(
        agreement,
        tmp_path / "app",
        run_directory=tmp_path / "run",
        options=Options(patience=90.0),
        retry=30.0,
        simulated_clients=clients,
    )
    with Processes(tmp_path, tls=False) as processes:
        processes.start_superlink()
        for index in range(9):
            processes.start_supernode(index)
        supervise = ("sottovoce", "federate", "--app", str(tmp_path / "app"), "--on", "here")
        processes.start("federate", *supervise)
        processes.wait("messages of round 1", lambda: came(tmp_path, 1) >= {0, 4})
        for index in (0, 4):
            processes.kill(f"supernode-{index}")
        processes.wait("round 1", lambda: rounds(tmp_path) >= 1)
        processes.kill("supernode-7")
        processes.wait("messages of round 2", lambda: came(tmp_path, 2) >= {1, 2, 3, 5})
        for index in (1, 5):
            processes.kill(f"supernode-{index}")
        processes.wait("a word about the helper", lambda: "waits for helper helper-1" in log.read_text())
        processes.start_supernode(7)
        processes.wait("round 2", lambda: rounds(tmp_path) >= 2)
        processes.wait("the end", (tmp_path / "run" / "result.json").exists)
    assert "round 3 is given up" in log.read_text()
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [len(line["clients"]) for line in lines] in ([6, 4, 0], [6, 5, 0], [6, 6, 0])
    assert lines[2]["given_up"]
    with pytest.MonkeyPatch.context() as patch:
        shares = overheard(patch)
        simulated = replayed(agreement.plan, lines, tmp_path / "simulated")
    deployed, _ = load_tensors(tmp_path / "run" / "model.safetensors")
    assert same(simulated, deployed)
    seen = [path for path in tmp_path.rglob("*") if path.is_file() and "simulated" not in path.parts]
    assert found(seen, shares) == set()
    for index in range(6):  # who came too late, or to a round that was given up, has paid for it
        with Ledger.open(
            clients / f"client-{index}.ledger.sqlite", scope=client_scope(f"client-{index}")
        ) as ledger:
            charges = {entry.charge.round for entry in ledger.charges(OWN_RECORDS)}
            assert charges >= {number for number in range(1, 4) if index in came(tmp_path, number)}
            assert ledger.epsilon(OWN_RECORDS, agreement.plan.delta, "exact") <= agreement.plan.epsilon
