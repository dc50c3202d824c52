"""Four hospitals as real processes under mutual TLS, through kills: one charge a release, no log leaves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from sottovoce import data
from sottovoce.federation import Agreement
from sottovoce.federation.store import Store
from sottovoce.report.look import look
from tests.federation.test_engines import charges

from .network import Network, until

ROUNDS = 60


@pytest.mark.slow
def test_hospitals_train_through_kills_and_no_line_of_their_logs_reaches_the_server(tmp_path: Path) -> None:
    hospitals, run, job = tmp_path / "hospitals", tmp_path / "run", tmp_path / "job"
    data.copy_shipped("heart", hospitals)
    names = list(data.client_files(hospitals))
    with Network(tmp_path / "network", names) as network:
        plan = ["preset=best", "epsilon=4", f"rounds={ROUNDS}", "participants=4", "clients_per_round=4"]
        plan += ["future_clients=0", "channel=direct", "--records", str(hospitals / "records.toml")]
        where = ["--engine", "nvflare", "--out", str(job), "--run-directory", str(run), "--retry", "5"]
        network.command("sottovoce", "federate", *plan, *where)
        nodes = {}
        for index, name in enumerate(names):
            nodes[name] = tmp_path / f"{name}.toml"
            nodes[name].write_text(
                f'agreement = "job/app/config/agreement.toml"\ndirectory = "state-{name}"\n'
                f'records = "hospitals/{name}.csv"\nledger = "{name}.ledger.sqlite"\n'
                f"index = {index}\nepsilon = 4\n"
            )
        network.prepare(nodes)
        broken = hospitals / f"{names[0]}.csv"
        sound = broken.read_text()
        broken.write_text(sound.replace("age", "years", 1))  # its owner alone reads why
        network.start_all()
        network.supervise(job)
        log = run / "federation.log"
        until(lambda: log.exists() and f"{names[0]} refused" in log.read_text(), "the refusal")
        broken.write_text(sound)
        until(lambda: look(run).round >= 10, "round 10")
        network.kill_job(names[1])
        until(lambda: "continuing" in network.log("federate"), "a second submission")
        until(lambda: look(run).round >= 30, "round 30")
        network.kill_job("localhost")
        said = network.wait()
        assert said.count("submitted") >= 3
        assert "is completed" in said
        seconds = [json.loads(line)["seconds"] for line in (run / "rounds.jsonl").read_text().splitlines()]
        print(f"median of {len(seconds)} rounds: {statistics.median(seconds):.2f} s")
        assert "has no column 'age'" in (tmp_path / f"state-{names[0]}" / "client.log").read_text()
        files = [path for folder in (network.kit("localhost"), run) for path in folder.rglob("*")]
        server = b"".join(path.read_bytes() for path in files if path.is_file())
        assert b"has no column" not in server + network.log("localhost").encode()
    store = Store.open(run / "server.sqlite", Agreement.load(job / "app" / "config" / "agreement.toml"))
    for index, name in enumerate(names):
        paid = charges(tmp_path / f"{name}.ledger.sqlite")
        assert len(paid) == len(set(paid))  # each release once
        assert set(store.received(index)) <= set(paid)
        assert (tmp_path / f"{name}.personal.safetensors").exists()
    store.close()
