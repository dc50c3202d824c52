"""`make demo-federation ENGINE=nvflare`: the four shipped hospitals as NVFlare's sites on loopback.

Server and sites are processes of their own under mutual TLS. `--beside` lets the same hospitals train by
Flower first, and prints both medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from sottovoce import data
from sottovoce.report.look import look
from tests.federation.nvflare.network import Network, until
from tests.federation.processes import Processes, free_port

ROUNDS = 20


def hospitals(folder: Path) -> list[str]:
    """The hospitals' files, in a folder; their names."""
    data.copy_shipped("heart", folder / "hospitals")
    return list(data.client_files(folder / "hospitals"))


def plan(folder: Path, sites: int, rounds: int) -> list[str]:
    """What is said to `sottovoce federate`, but for the engine."""
    said = ["preset=best", "epsilon=4", f"rounds={rounds}", f"participants={sites}", "future_clients=0"]
    said += [f"clients_per_round={sites}", "channel=direct", "evaluate_every=0"]
    records = str(folder / "hospitals" / "records.toml")
    return [*said, "--records", records, "--run-directory", str(folder / "run")]


def node(folder: Path, name: str, index: int, agreement: Path, flower: str = "") -> Path:
    """The node.toml of a hospital."""
    file = folder / f"{name}.toml"
    paths = {"agreement": agreement, "directory": f"state-{name}", "records": f"hospitals/{name}.csv"}
    lines = [f"{key} = {json.dumps(str(path))}" for key, path in paths.items()]
    lines += [f'ledger = "{name}.ledger.sqlite"', f"index = {index}", "epsilon = 4.0", flower]
    file.write_text("\n".join(lines))
    return file


def median(run: Path) -> float:
    """Seconds of a round."""
    lines = (run / "rounds.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines)


def by_nvflare(folder: Path, rounds: int) -> None:
    names = hospitals(folder)
    with Network(folder / "network", names) as network:
        how = ["--engine", "nvflare", "--out", str(folder / "job")]
        network.command("sottovoce", "federate", *plan(folder, len(names), rounds), *how)
        agreement = folder / "job" / "app" / "config" / "agreement.toml"
        network.prepare({name: node(folder, name, index, agreement) for index, name in enumerate(names)})
        network.start_all()
        began = time.monotonic()
        network.supervise(folder / "job")
        said = network.wait()
        print(f"{said}submitted and everybody's model: {time.monotonic() - began:.0f} s")


def by_flower(folder: Path, rounds: int) -> None:
    names = hospitals(folder)
    with Processes(folder, tls=True) as processes:
        app = folder / "app"
        processes.run("sottovoce", "federate", *plan(folder, len(names), rounds), "--out", str(app))
        processes.start_superlink()
        processes.register_nodes(len(names))
        for index, name in enumerate(names):
            tls = {"authority": folder / "tls" / "ca.crt", "node_key": folder / "tls" / f"node-{index}"}
            lines = [f"{key} = {json.dumps(str(path))}" for key, path in tls.items()]
            lines += [f'server = "127.0.0.1:{processes.port}"', f"port = {free_port()}"]
            agreement = app / "sottovoce_app" / "agreement.toml"
            file = node(folder, name, index, agreement, "\n".join(["[flower]", *lines]))
            processes.start(name, "sottovoce", "node", str(file))
        processes.start("federate", "sottovoce", "federate", "--app", str(app), "--on", "here")
        until(lambda: look(folder / "run").phase == "finished", "Flower's run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--beside", action="store_true", help="also by Flower, for comparison")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="sottovoce-nvflare-"))
    for name, carry in (("flower", by_flower), ("nvflare", by_nvflare)):
        if name == "nvflare" or given.beside:
            (place / name).mkdir()
            carry(place / name, given.rounds)
            print(f"{name}: median round {median(place / name / 'run'):.2f} s", flush=True)
    print(f"what they wrote is in {place}")


if __name__ == "__main__":
    main()
